package elfimage_test

import (
	"encoding/hex"
	"errors"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	p, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// debugSup is .debug_sup of DWARF 5.
func debugSup(t testing.TB, supplementary byte, name, sum string) imagetest.Section {
	t.Helper()
	raw := unhex(t, sum)
	return section(".debug_sup", []byte{5, 0, supplementary}, []byte(name+"\x00"), []byte{byte(len(raw))}, raw)
}

func TestFindSupplement(t *testing.T) {
	const debugPath = "/usr/lib/debug/.build-id/aa/bb.debug"
	altLink := section(".gnu_debugaltlink", []byte("../../.dwz/common\x00"), unhex(t, id))
	absolute := section(".gnu_debugaltlink", []byte("/opt/common\x00"), unhex(t, id))
	good, bad := makeELF(id, section(".x")), makeELF(other, section(".x"))
	for name, c := range map[string]struct {
		link  imagetest.Section
		files map[string][]byte
		path  string
		err   error
	}{
		"relative": {altLink, map[string][]byte{"/usr/lib/debug/.dwz/common": good}, "/usr/lib/debug/.dwz/common", nil},
		"absolute": {absolute, map[string][]byte{"/opt/common": good}, "/opt/common", nil},
		"by build-id": {
			absolute, map[string][]byte{"/usr/lib/debug/.build-id/01/23456789abcdef.debug": good},
			"/usr/lib/debug/.build-id/01/23456789abcdef.debug", nil,
		},
		"moved":       {absolute, map[string][]byte{"/usr/lib/debug/.dwz/common": good}, "/usr/lib/debug/.dwz/common", nil},
		"other build": {altLink, map[string][]byte{"/usr/lib/debug/.dwz/common": bad}, "", elfimage.ErrMismatch},
		"missing":     {altLink, nil, "", elfimage.ErrNone},
		"DWARF 5": {
			debugSup(t, 0, "/opt/s", id), map[string][]byte{"/opt/s": makeELF("", debugSup(t, 1, "", id))}, "/opt/s", nil,
		},
		"DWARF 5, another's": {
			debugSup(t, 0, "/opt/s", id), map[string][]byte{"/opt/s": makeELF("", debugSup(t, 1, "", other))}, "",
			elfimage.ErrMismatch,
		},
		"itself supplementary": {
			debugSup(t, 1, "/opt/s", id), map[string][]byte{"/opt/s": makeELF("", debugSup(t, 1, "", id))}, "",
			elfimage.ErrNone,
		},
		"no link":    {section(".x"), nil, "", elfimage.ErrNone},
		"cut":        {section(".gnu_debugaltlink", []byte("common")), nil, "", elfimage.ErrNone},
		"cut length": {section(".debug_sup", []byte{5, 0, 0, 'x', 0, 200}), nil, "", elfimage.ErrNone},
	} {
		t.Run(name, func(t *testing.T) {
			f := &files{content: c.files}
			m := openBytes(t, "debug", makeELF("", c.link))
			r, err := elfimage.FindSupplement(m, debugPath, elfimage.SearchOptions{Open: f.Open})
			if !errors.Is(err, c.err) || r.Path != c.path || (r.Image == nil) != (err != nil) {
				t.Fatalf("%q: %v", r.Path, err)
			}
			if err := r.Close(); err != nil || f.open != 0 {
				t.Errorf("%v; %d files left open", err, f.open)
			}
		})
	}
}

// TestOpenSupplement checks that a file at a given path is verified, too.
func TestOpenSupplement(t *testing.T) {
	link := section(".gnu_debugaltlink", []byte("/opt/common\x00"), unhex(t, id))
	for name, c := range map[string]struct {
		debug, file []byte
		err         error
	}{
		"good":        {makeELF("", link), makeELF(id, section(".x")), nil},
		"other build": {makeELF("", link), makeELF(other, section(".x")), elfimage.ErrMismatch},
		"absent":      {makeELF("", link), nil, elfimage.ErrNone},
		"no link":     {makeELF("", section(".x")), makeELF(id, section(".x")), elfimage.ErrNone},
	} {
		t.Run(name, func(t *testing.T) {
			f := &files{content: map[string][]byte{}}
			if c.file != nil {
				f.content["/cache/s"] = c.file
			}
			r, err := elfimage.OpenSupplement(openBytes(t, "debug", c.debug), "/cache/s", elfimage.SearchOptions{Open: f.Open})
			if !errors.Is(err, c.err) || (r.Image == nil) != (err != nil) {
				t.Fatalf("%q: %v", r.Path, err)
			}
			if err := r.Close(); err != nil || f.open != 0 {
				t.Errorf("%v; %d files left open", err, f.open)
			}
		})
	}
}

// TestFindSplit finds the file where the compiler put it, or beside the debug file. It never accepts a file of
// another kind.
func TestFindSplit(t *testing.T) {
	m := openBytes(t, "debug", makeELF(id))
	dwo := makeELF("", section(".debug_info.dwo"))
	for _, c := range []struct{ at, dir, name, want string }{
		{"/build/x.dwo", "/build", "x.dwo", "/build/x.dwo"},
		{"/build/x.dwo", "/elsewhere", "/build/x.dwo", "/build/x.dwo"},
		{"/usr/lib/debug/x.dwo", "/build", "sub/x.dwo", "/usr/lib/debug/x.dwo"},
		{"/usr/lib/debug/x.dwo", "", "x.dwo", "/usr/lib/debug/x.dwo"},
		{"/etc/secret", "/etc", "secret", ""},
		{"/build/x.dwo", "/build", "", ""},
		{"/build/y.dwo", "/build", "x.dwo", ""},
	} {
		f := &files{content: map[string][]byte{c.at: dwo}}
		r, err := elfimage.FindSplit(m, "/usr/lib/debug/p.debug", c.dir, c.name, elfimage.SearchOptions{Open: f.Open})
		if r.Path != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, elfimage.ErrNone) {
			t.Errorf("%+v: %q, %v", c, r.Path, err)
		}
	}
}

// TestFindPackage finds the package beside the image or its debug file. The name has ".dwp" appended, or in place of
// ".debug".
func TestFindPackage(t *testing.T) {
	m := openBytes(t, "debug", makeELF(id))
	for at, want := range map[string]string{
		"/bin/p.dwp": "/bin/p.dwp", "/dbg/p.debug.dwp": "/dbg/p.debug.dwp", "/dbg/p.dwp": "/dbg/p.dwp", "/dbg/q.dwp": "",
	} {
		f := &files{content: map[string][]byte{at: makeELF("", section(".debug_info.dwo"))}}
		o := elfimage.SearchOptions{Open: f.Open}
		r, err := elfimage.FindPackage(m, []string{"/bin/p", "/dbg/p.debug", "", "relative"}, o)
		if r.Path != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, elfimage.ErrNone) {
			t.Errorf("%s: %q, %v", at, r.Path, err)
		}
	}
}
