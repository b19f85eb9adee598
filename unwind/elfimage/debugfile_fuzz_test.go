package elfimage_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/elfimage"
)

// FuzzFind follows the links of a foreign file. The result must be an image or an error of this package. All opened
// paths must be below the root.
func FuzzFind(f *testing.F) {
	f.Add(makeELF(id, debugLink("p.debug", nil)), makeELF(id))
	f.Add(makeELF(id, section(".gnu_debugaltlink", []byte("../x\x00"), unhex(f, id))), makeELF(id))
	f.Add(makeELF("", debugSup(f, 0, "/../../etc/x", id)), makeELF("", debugSup(f, 1, "", id)))
	f.Fuzz(func(t *testing.T, file, found []byte) {
		m, err := elfimage.Open(bytes.NewReader(file), "fuzz")
		if err != nil {
			return
		}
		opened := 0
		open := func(path string) (elfimage.File, error) {
			if !strings.HasPrefix(path, "/root/") || filepath.Clean(path) != path {
				t.Fatalf("path %q", path)
			}
			opened++
			return openFile{bytes.NewReader(found), &files{}}, nil
		}
		path := "/usr/bin/p"
		if len(found)%2 == 1 {
			path = "../p"
		}
		o := elfimage.SearchOptions{Root: "/root", Open: open}
		for _, find := range []func(*elfimage.Image, string, elfimage.SearchOptions) (elfimage.FoundFile, error){
			elfimage.FindDebugFile, elfimage.FindSupplement,
		} {
			r, err := find(m, path, o)
			if (r.Image == nil) != (err != nil) {
				t.Fatalf("%+v, %v", r, err)
			}
			if err != nil && !errors.Is(err, elfimage.ErrNone) && !errors.Is(err, elfimage.ErrMismatch) {
				t.Fatal(err)
			}
		}
		if opened > 12 {
			t.Fatalf("%d files tried", opened)
		}
	})
}
