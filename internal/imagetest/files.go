package imagetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
)

// Files returns the paths of x86-64 files with call frame information. It skips the test if there are none.
func Files(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	for dir := range strings.SplitSeq(os.Getenv("PGSB_TEST_BINDIRS"), ":") {
		if dir != "" {
			files = append(files, filepath.Join(dir, "postgres"))
		}
	}
	if len(files) == 0 {
		t.Skip("no x86-64 GNU C library, and PGSB_TEST_BINDIRS names no server")
	}
	return files
}

// FilesOf returns the paths of files of another architecture: the C library of Debian's cross compilers, and files in
// PGSB_OTHER_FILES. It skips the test if there are none.
func FilesOf(t *testing.T, a *arch.Arch) []string {
	t.Helper()
	files, err := filepath.Glob("/usr/" + a.Name + "-linux-gnu/lib/libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range filepath.SplitList(os.Getenv("PGSB_OTHER_FILES")) {
		if OpenedImage(t, file).Machine() == a.Machine {
			files = append(files, file)
		}
	}
	if len(files) == 0 {
		t.Skipf("no GNU C library of %s (Debian: libc6-…-cross), and PGSB_OTHER_FILES names no file", a.Name)
	}
	return files
}

// OpenedImage opens an ELF file, and closes it at the end of the test.
func OpenedImage(t *testing.T, file string) *elfimage.Image {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	img, err := elfimage.Open(f, file)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Open opens an ELF file of an architecture and its call frame information. It closes the file at the end of the test.
func Open(t *testing.T, file string, a *arch.Arch) (*elfimage.Image, *cfi.Table) {
	t.Helper()
	img := OpenedImage(t, file)
	s, err := img.CFISections()
	if err != nil {
		t.Fatal(err)
	}
	table, err := cfi.New(cfi.Sections{
		EHFrameHdr: cfi.Section(s.EHFrameHdr), EHFrame: cfi.Section(s.EHFrame), Arch: a,
	})
	if err != nil {
		t.Fatal(err)
	}
	return img, table
}
