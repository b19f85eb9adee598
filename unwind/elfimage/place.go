package elfimage

import (
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strings"
)

// maxChecked bounds the bytes of a file that are read for its checksum.
const maxChecked = 4 << 30

// buildIDPath returns the path of the debug file with a build-id in a folder: .build-id/ab/cdef….debug.
func buildIDPath(folder, id string) (string, bool) {
	if len(id) < 4 {
		return "", false
	}
	return filepath.Join(folder, ".build-id", id[:2], id[2:]+".debug"), true
}

// plainName reports whether a name is only a base name, without a folder.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// linkPaths returns the possible paths of a debug link's file: in the folder of the image, in .debug below this folder,
// and below each of folders. If /lib is a link to /usr/lib, packages may still use the path without /usr, so linkPaths
// returns this path too.
func linkPaths(path, name string, folders []string) []string {
	if path == "" {
		return nil
	}
	dir := filepath.Dir(path)
	all := []string{filepath.Join(dir, name), filepath.Join(dir, ".debug", name)}
	for _, folder := range folders {
		all = append(all, filepath.Join(folder, dir, name))
		if short, ok := strings.CutPrefix(dir, "/usr/"); ok {
			all = append(all, filepath.Join(folder, short, name))
		}
	}
	return all
}

// checkCRC reads a whole file and compares its CRC-32 with the CRC-32 in the debug link, the parameter want.
func checkCRC(f File, want uint32) error {
	h := crc32.NewIEEE()
	n, err := io.Copy(h, io.NewSectionReader(f, 0, maxChecked))
	if err != nil {
		return fmt.Errorf("checksum: %w", err)
	}
	if n == maxChecked {
		return fmt.Errorf("checksum: file has more than %d bytes", int64(maxChecked))
	}
	if got := h.Sum32(); got != want {
		return fmt.Errorf("%w: checksum %08x, not %08x", ErrMismatch, got, want)
	}
	return nil
}
