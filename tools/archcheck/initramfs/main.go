// Command initramfs packs folders into an archive that a Linux kernel accepts as its first file system: cpio, "newc"
// format (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel). It omits files of Debian
// packages that no test reads. It puts /bin, /sbin, /lib and /lib64 below /usr, as in installed systems. All files
// belong to root.
//
//	initramfs FOLDER... >FILE
//
// If several folders contain the same path, the file of the last one counts.
package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unwanted are folders to leave out, by their path in the archive.
var unwanted = []string{
	"boot", "usr/lib/modules", "usr/share/bug", "usr/share/doc", "usr/share/gcc", "usr/share/icons", "usr/share/lintian",
	"usr/share/locale", "usr/share/man", "usr/share/perl", "usr/share/perl5", "usr/lib/postgresql/*/lib/bitcode",
	"usr/lib/postgresql/*/lib/llvmjit*", "usr/share/postgresql/*/man",
}

// merged are the folders that are links to the folders of the same name below /usr. Some packages still use the old
// paths.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// entry is a file of the archive.
type entry struct {
	source string // "" for generated files
	mode   uint32 // type and permissions, as in stat(2)
	link   string // target of a symbolic link
	size   int64
}

const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
	typeChar = 0o020000
)

func main() {
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	err := run(out, os.Args[1:])
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "initramfs:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, folders []string) error {
	entries := map[string]entry{"dev": {mode: typeDir | 0o755}, "dev/console": {mode: typeChar | 0o600}}
	for _, dir := range merged {
		entries["usr/"+dir] = entry{mode: typeDir | 0o755}
		entries[dir] = entry{mode: typeLink | 0o777, link: "usr/" + dir}
	}
	entries["usr"] = entry{mode: typeDir | 0o755}
	for _, folder := range folders {
		if err := collect(entries, folder); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names) // a folder comes before its content
	w := archive{out: out}
	for _, name := range names {
		if err := w.add(name, entries[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return w.end()
}

// collect adds the files below a folder.
func collect(entries map[string]entry, folder string) error {
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name := strings.TrimPrefix(path, folder+"/")
		if slices.Contains(merged, name) {
			return nil // a link in the archive
		}
		if top, _, _ := strings.Cut(name, "/"); slices.Contains(merged, top) {
			name = "usr/" + name
		}
		for _, pattern := range unwanted {
			if match, err := filepath.Match(pattern, name); err != nil {
				return err
			} else if match {
				if d.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{source: path, mode: uint32(info.Mode().Perm()), size: info.Size()}
		switch info.Mode().Type() {
		case 0:
			e.mode |= typeFile
		case fs.ModeDir:
			e.mode, e.size = typeDir|0o755, 0
		case fs.ModeSymlink:
			e.mode |= typeLink
			e.link, err = os.Readlink(path)
		default:
			return nil // no other types come in packages
		}
		entries[name] = e
		return err
	})
}

// archive writes cpio's headers and contents.
type archive struct {
	out   io.Writer
	inode int
}

func (a *archive) add(name string, e entry) error {
	size := e.size
	if e.link != "" {
		size = int64(len(e.link))
	}
	major, minor := 0, 0
	if e.mode&0o170000 == typeChar {
		major, minor = 5, 1 // the console
	}
	if err := a.header(name, e.mode, size, major, minor); err != nil {
		return err
	}
	switch {
	case e.link != "":
		_, err := io.WriteString(a.out, e.link+padding(int(size)))
		return err
	case size == 0 || e.source == "":
		return nil
	}
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if n, err := io.Copy(a.out, f); err != nil || n != size {
		return fmt.Errorf("%d bytes of %d: %w", n, size, err)
	}
	_, err = io.WriteString(a.out, padding(int(size)))
	return err
}

// header writes the fields c_magic, c_ino, c_mode, c_uid, c_gid, c_nlink, c_mtime, c_filesize, c_maj, c_min, c_rmaj,
// c_rmin, c_namesize, c_chksum and the name.
func (a *archive) header(name string, mode uint32, size int64, major, minor int) error {
	a.inode++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name)+1, 0)
	text := header + name + "\x00"
	_, err := io.WriteString(a.out, text+padding(len(text)))
	return err
}

func (a *archive) end() error { return a.header("TRAILER!!!", 0, 0, 0, 0) }

// padding fills up to a multiple of four bytes.
func padding(n int) string { return "\x00\x00\x00"[:-n&3] }
