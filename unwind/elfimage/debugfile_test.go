package elfimage_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

const (
	id    = "0123456789abcdef"
	other = "fedcba9876543210"
)

// files is a file system in memory that notes which files are open.
type files struct {
	content map[string][]byte
	errs    map[string]error
	open    int
}

// openFile is one of them.
type openFile struct {
	*bytes.Reader

	fs *files
}

func (f openFile) Close() error {
	f.fs.open--
	return nil
}

func (f *files) Open(path string) (elfimage.File, error) {
	if err := f.errs[path]; err != nil {
		return nil, err
	}
	p, ok := f.content[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	f.open++
	return openFile{bytes.NewReader(p), f}, nil
}

// makeELF builds a file with a build-id ("" for none) and sections.
func makeELF(buildID string, sections ...imagetest.Section) []byte {
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64, Sections: sections}
	if raw, _ := hex.DecodeString(buildID); len(raw) > 0 {
		note := binary.LittleEndian.AppendUint32([]byte("\x04\x00\x00\x00"), uint32(len(raw)))
		note = append(note, "\x03\x00\x00\x00GNU\x00"...)
		f.Sections = append(f.Sections, imagetest.Section{
			Name: ".note.gnu.build-id", Type: elf.SHT_NOTE, Data: append(note, raw...),
		})
	}
	return f.Bytes()
}

// section is a section without an address.
func section(name string, content ...[]byte) imagetest.Section {
	return imagetest.Section{Name: name, Type: elf.SHT_PROGBITS, Data: bytes.Join(content, nil)}
}

// debugLink links to a file with this content.
func debugLink(name string, content []byte) imagetest.Section {
	padded := append([]byte(name), make([]byte, 4-len(name)%4)...)
	return section(".gnu_debuglink", binary.LittleEndian.AppendUint32(padded, crc32.ChecksumIEEE(content)))
}

func openBytes(t testing.TB, name string, p []byte) *elfimage.Image {
	t.Helper()
	m, err := elfimage.Open(bytes.NewReader(p), name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The places of the build-id, and files with the right build-id, with another one, with an unknown one, and without
// one.
const (
	byID    = "/usr/lib/debug/.build-id/01/23456789abcdef.debug"
	byOther = "/srv/debug/.build-id/01/23456789abcdef.debug"
)

var (
	good   = makeELF(id, section(".x"))
	bad    = makeELF(other, section(".x"))
	none   = makeELF("", section(".x"))
	broken = []byte("\x7fELF")
)

// findCase is an image, the files beside it, and the expected result of Find.
type findCase struct {
	id       string
	sections []imagetest.Section
	files    map[string][]byte
	options  elfimage.SearchOptions
	path     string
	how      elfimage.FoundHow
	skipped  int
	err      error
}

func (c *findCase) run(t *testing.T) {
	t.Helper()
	f := &files{content: c.files}
	c.options.Open = f.Open
	m := openBytes(t, "p", makeELF(c.id, append(c.sections, section(".y"))...))
	r, err := elfimage.FindDebugFile(m, "/usr/bin/p", c.options)
	if !errors.Is(err, c.err) || r.Path != c.path || r.How != c.how || len(r.Skipped) != c.skipped {
		t.Fatalf("%q by %q, skipped %v: %v", r.Path, r.How, r.Skipped, err)
	}
	if (r.Image == nil) != (err != nil) {
		t.Errorf("image %v, error %v", r.Image, err)
	}
	if err := r.Close(); err != nil || f.open != 0 {
		t.Errorf("%v; %d files left open", err, f.open)
	}
}

func TestFindByBuildID(t *testing.T) {
	for name, c := range map[string]findCase{
		"build-id": {id: id, files: map[string][]byte{byID: good}, path: byID, how: elfimage.ByBuildID},
		"second folder": {
			id: id, files: map[string][]byte{byOther: good}, path: byOther, how: elfimage.ByBuildID,
			options: elfimage.SearchOptions{Folders: []string{elfimage.DefaultFolder, "/srv/debug"}},
		},
		"no folders": {
			id: id, files: map[string][]byte{byID: good}, err: elfimage.ErrNone,
			options: elfimage.SearchOptions{Folders: []string{}},
		},
		"root": {
			id: id, files: map[string][]byte{"/proc/1/root" + byID: good}, path: byID, how: elfimage.ByBuildID,
			options: elfimage.SearchOptions{Root: "/proc/1/root"},
		},
		"other build":      {id: id, files: map[string][]byte{byID: bad}, err: elfimage.ErrMismatch},
		"build-id missing": {id: id, files: map[string][]byte{byID: none}, err: elfimage.ErrMismatch},
		"broken":           {id: id, files: map[string][]byte{byID: broken}, err: elfimage.ErrNone},
		"nothing":          {id: id, err: elfimage.ErrNone},
		"nothing to go by": {files: map[string][]byte{byID: good}, err: elfimage.ErrNone},
	} {
		t.Run(name, c.run)
	}
}

func TestFindByLink(t *testing.T) {
	link := debugLink("p.debug", good)
	for name, c := range map[string]findCase{
		"link, same folder": {
			id: id, sections: []imagetest.Section{link}, files: map[string][]byte{"/usr/bin/p.debug": good},
			path: "/usr/bin/p.debug", how: elfimage.ByDebugLink,
		},
		"link, .debug": {
			id: id, sections: []imagetest.Section{link}, files: map[string][]byte{"/usr/bin/.debug/p.debug": good},
			path: "/usr/bin/.debug/p.debug", how: elfimage.ByDebugLink,
		},
		"link, folder": {
			id: id, sections: []imagetest.Section{link},
			files: map[string][]byte{"/usr/lib/debug/usr/bin/p.debug": good},
			path:  "/usr/lib/debug/usr/bin/p.debug", how: elfimage.ByDebugLink,
		},
		"link, short folder": {
			id: id, sections: []imagetest.Section{link}, files: map[string][]byte{"/usr/lib/debug/bin/p.debug": good},
			path: "/usr/lib/debug/bin/p.debug", how: elfimage.ByDebugLink,
		},
		"link, no build-ids": {
			sections: []imagetest.Section{debugLink("p.debug", none)},
			files:    map[string][]byte{"/usr/bin/p.debug": none}, path: "/usr/bin/p.debug", how: elfimage.ByDebugLink,
		},
		"link, other checksum": {
			id: id, sections: []imagetest.Section{debugLink("p.debug", bad)},
			files: map[string][]byte{"/usr/bin/p.debug": good}, err: elfimage.ErrMismatch,
		},
		"link, other build-id": {
			id: id, sections: []imagetest.Section{debugLink("p.debug", bad)},
			files: map[string][]byte{"/usr/bin/p.debug": bad}, err: elfimage.ErrMismatch,
		},
		"link that climbs": {
			id: id, sections: []imagetest.Section{debugLink("../p.debug", good)},
			files: map[string][]byte{"/usr/p.debug": good}, err: elfimage.ErrNone,
		},
		"link behind a mismatch": {
			id: id, sections: []imagetest.Section{link}, skipped: 1,
			files: map[string][]byte{byID: bad, "/usr/bin/p.debug": good},
			path:  "/usr/bin/p.debug", how: elfimage.ByDebugLink,
		},
	} {
		t.Run(name, c.run)
	}
}

func TestFindDebugData(t *testing.T) {
	data := section(".gnu_debugdata", elfimage.Compressed(t, good, xz.WriterConfig{}))
	for name, c := range map[string]findCase{
		"debugdata": {id: id, sections: []imagetest.Section{data}, path: "/usr/bin/p", how: elfimage.ByDebugData},
		"debugdata behind a mismatch": {
			id: id, sections: []imagetest.Section{data}, files: map[string][]byte{byID: bad}, skipped: 1,
			path: "/usr/bin/p", how: elfimage.ByDebugData,
		},
		"debugdata without build-id": {
			id: id, sections: []imagetest.Section{section(".gnu_debugdata", elfimage.Compressed(t, none, xz.WriterConfig{}))},
			path: "/usr/bin/p", how: elfimage.ByDebugData,
		},
		"debugdata of another build": {
			id: id, sections: []imagetest.Section{section(".gnu_debugdata", elfimage.Compressed(t, bad, xz.WriterConfig{}))},
			err: elfimage.ErrMismatch,
		},
		"debugdata broken": {
			id: id, sections: []imagetest.Section{section(".gnu_debugdata", []byte("garbage"))}, err: elfimage.ErrNone,
		},
	} {
		t.Run(name, c.run)
	}
}

// TestReported checks that the error names the obstacle.
func TestReported(t *testing.T) {
	const path = "/usr/lib/debug/.build-id/01/23456789abcdef.debug"
	m := openBytes(t, "/usr/bin/p", makeELF(id))
	f := &files{errs: map[string]error{path: fs.ErrPermission}}
	_, err := elfimage.FindDebugFile(m, "", elfimage.SearchOptions{Open: f.Open})
	if !errors.Is(err, elfimage.ErrNone) || !errors.Is(err, fs.ErrPermission) || errors.Is(err, elfimage.ErrMismatch) {
		t.Error(err)
	}
	f = &files{content: map[string][]byte{path: makeELF(other)}}
	_, err = elfimage.FindDebugFile(m, "", elfimage.SearchOptions{Open: f.Open})
	if errors.Is(err, elfimage.ErrNone) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), other) {
		t.Error(err)
	}
}

// TestFileSystem finds a debug file on the disk, below a root and in a folder.
func TestFileSystem(t *testing.T) {
	root := t.TempDir()
	place := filepath.Join(root, "usr/lib/debug/.build-id/01")
	file := filepath.Join(place, "23456789abcdef.debug")
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	m := openBytes(t, "p", makeELF(id))
	find := func() (elfimage.FoundFile, error) {
		return elfimage.FindDebugFile(m, "/usr/bin/p", elfimage.SearchOptions{Open: onDisk, Root: root})
	}
	if _, err := find(); !errors.Is(err, elfimage.ErrNone) {
		t.Error(err)
	}
	if err := os.WriteFile(file, makeELF(id), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := find()
	if err != nil || r.Path != "/usr/lib/debug/.build-id/01/23456789abcdef.debug" {
		t.Fatal(r.Path, err)
	}
	if err = r.Close(); err != nil {
		t.Error(err)
	}
	folders := elfimage.SearchOptions{Open: onDisk, Folders: []string{filepath.Join(root, elfimage.DefaultFolder)}}
	if r, err = elfimage.FindDebugFile(m, "", folders); err != nil || r.Path != file {
		t.Fatal(r.Path, err)
	}
	if err = r.Close(); err != nil {
		t.Error(err)
	}
}
