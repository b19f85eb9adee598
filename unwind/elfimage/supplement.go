package elfimage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxLink bounds the size in bytes of a section with a link to another file.
const maxLink = 64 << 10

// SupplementName is the link in a debug file to its supplementary file (dwz(1); DWARF 5, section 7.3.6).
type SupplementName struct {
	// Name is the path of the supplementary file: absolute, or relative to the folder of the debug file.
	Name string
	// ID identifies the supplementary file, in hexadecimal: its build-id, or its checksum with DWARF 5.
	ID string
}

// SupplementLink returns the link in a debug file, from .gnu_debugaltlink or .debug_sup. The result is false if the
// file has no link.
func SupplementLink(debug *Image) (SupplementName, bool) {
	if p, _, err := debug.Section(".gnu_debugaltlink"); err == nil && len(p) <= maxLink {
		name, id, ok := bytes.Cut(p, []byte{0})
		return SupplementName{Name: string(name), ID: hex.EncodeToString(id)}, ok && len(name) > 0 && len(id) > 0
	}
	sup, ok := readSup(debug)
	if !ok || sup.supplementary || sup.name == "" || sup.checksum == "" {
		return SupplementName{}, false
	}
	return SupplementName{Name: sup.name, ID: sup.checksum}, true
}

// sup is the content of .debug_sup.
type sup struct {
	supplementary  bool
	name, checksum string
}

// readSup reads .debug_sup: the version, whether this file is the supplementary file, the other file's name, and the
// checksum.
func readSup(m *Image) (sup, bool) {
	p, _, err := m.Section(".debug_sup")
	if err != nil || len(p) < 4 || len(p) > maxLink || m.Order().Uint16(p) != 5 {
		return sup{}, false
	}
	name, rest, ok := bytes.Cut(p[3:], []byte{0})
	if !ok {
		return sup{}, false
	}
	size, n := binary.Uvarint(rest) // Uvarint reads the same format as unsigned LEB128
	if n <= 0 || size > uint64(len(rest)-n) {
		return sup{}, false
	}
	sum := rest[n:][:size]
	return sup{supplementary: p[2] != 0, name: string(name), checksum: hex.EncodeToString(sum)}, true
}

// FindSupplement searches for the supplementary file of a debug file at path. The error is ErrNone or ErrMismatch. It
// is also ErrNone if the debug file has no link to a supplementary file.
func FindSupplement(debug *Image, path string, o SearchOptions) (FoundFile, error) {
	link, ok := SupplementLink(debug)
	if !ok {
		return FoundFile{}, fmt.Errorf("%s: no supplementary file named: %w", debug.Name(), ErrNone)
	}
	s := search{options: o, image: debug, path: path}
	for _, p := range link.paths(path, o.folders()) {
		if r, ok := s.trySupplement(p, link); ok {
			return r, nil
		}
	}
	return FoundFile{}, s.failure()
}

// OpenSupplement opens the file at path and verifies that it is the supplementary file of a debug file. The error is
// ErrNone, ErrMismatch or an error of the file.
func OpenSupplement(debug *Image, path string, o SearchOptions) (FoundFile, error) {
	link, ok := SupplementLink(debug)
	if !ok {
		return FoundFile{}, fmt.Errorf("%s: no supplementary file named: %w", debug.Name(), ErrNone)
	}
	s := search{options: o, image: debug}
	if r, ok := s.trySupplement(path, link); ok {
		return r, nil
	}
	return FoundFile{}, s.failure()
}

// FindSplit searches for a split file (.dwo) of an image. path is the path of the image or its debug file. name is the
// split file's name, and dir the folder in which the compiler ran. FindSplit tries the path where the compiler put the
// file, and then the folder of path. Callers must verify, by the ids of the file's units, that the file belongs to the
// image. The error is ErrNone or ErrMismatch.
func FindSplit(debug *Image, path, dir, name string, o SearchOptions) (FoundFile, error) {
	s := search{options: o, image: debug, path: path}
	at := name
	if !filepath.IsAbs(name) {
		at = filepath.Join(dir, name)
	}
	all := []string{at}
	if base := filepath.Base(name); path != "" && plainName(base) {
		all = append(all, filepath.Join(filepath.Dir(path), base))
	}
	return s.firstOf(all, ".dwo")
}

// FindPackage searches for the package of split files (.dwp) of an image. paths are the paths of the image and of its
// debug file. The package has one of these paths, with .dwp appended or in place of .debug. Callers must verify, by the
// ids of the package's units, that the package belongs to the image. The error is ErrNone or ErrMismatch.
func FindPackage(debug *Image, paths []string, o SearchOptions) (FoundFile, error) {
	s := search{options: o, image: debug}
	all := make([]string, 0, 2*len(paths))
	for _, p := range paths {
		all = append(all, p+".dwp", strings.TrimSuffix(p, ".debug")+".dwp")
	}
	return s.firstOf(all, ".dwp")
}

// firstOf opens the first of the paths at which a file exists. It tries only absolute paths whose names have the
// suffix.
func (s *search) firstOf(paths []string, suffix string) (FoundFile, error) {
	for _, p := range paths {
		if !filepath.IsAbs(p) || !strings.HasSuffix(p, suffix) {
			continue
		}
		if r, ok := s.trySplit(p); ok {
			return r, nil
		}
	}
	return FoundFile{}, s.failure()
}

// trySplit opens a candidate and verifies that it is for the image's architecture.
func (s *search) trySplit(path string) (FoundFile, bool) {
	f, err := s.options.open(path)
	if errors.Is(err, os.ErrNotExist) {
		return FoundFile{}, false
	}
	if err != nil {
		return s.skip(path, err)
	}
	m, err := Open(f, path)
	if err == nil && m.Machine() != s.image.Machine() {
		err = fmt.Errorf("%w: for %v, not %v", ErrMismatch, m.Machine(), s.image.Machine())
	}
	if err != nil {
		_ = f.Close()
		return s.skip(path, err)
	}
	return FoundFile{Image: m, Path: path, How: BySplit, Skipped: s.skipped, file: f}, true
}

// paths returns the paths where the supplementary file may be.
func (l SupplementName) paths(path string, folders []string) []string {
	base := filepath.Base(l.Name)
	if !plainName(base) {
		return nil
	}
	all := make([]string, 0, 2*len(folders)+1)
	switch {
	case filepath.IsAbs(l.Name):
		all = append(all, filepath.Clean(l.Name))
	case path != "":
		all = append(all, filepath.Join(filepath.Dir(path), l.Name))
	}
	for _, folder := range folders {
		if p, ok := buildIDPath(folder, l.ID); ok {
			all = append(all, p)
		}
		all = append(all, filepath.Join(folder, ".dwz", base))
	}
	return all
}

// trySupplement opens a candidate and verifies that the link refers to it.
func (s *search) trySupplement(path string, link SupplementName) (FoundFile, bool) {
	f, err := s.options.open(path)
	if errors.Is(err, os.ErrNotExist) {
		return FoundFile{}, false
	}
	if err != nil {
		return s.skip(path, err)
	}
	m, err := Open(f, path)
	if err == nil {
		err = link.proves(m)
	}
	if err != nil {
		_ = f.Close()
		return s.skip(path, err)
	}
	return FoundFile{Image: m, Path: path, How: BySupplement, Skipped: s.skipped, file: f}, true
}

// proves verifies that m is the supplementary file to which the link refers. The error is ErrMismatch.
func (l SupplementName) proves(m *Image) error {
	if other, ok := readSup(m); ok && other.supplementary && other.checksum == l.ID {
		return nil
	}
	if m.BuildID() == l.ID {
		return nil
	}
	return fmt.Errorf("%w: build-id %q, not %q", ErrMismatch, m.BuildID(), l.ID)
}
