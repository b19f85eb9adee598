package symbolize

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// separated builds the program of TestNamesAreKept with a separate debug file. It returns the paths of the program, of the
// debug file and of the folder for debug files.
func separated(t *testing.T) (program, debug, folder string) {
	t.Helper()
	dir := t.TempDir()
	source, whole := filepath.Join(dir, "small.c"), filepath.Join(dir, "whole")
	program, folder = filepath.Join(dir, "small"), filepath.Join(dir, "debug")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	if err := os.WriteFile(source, []byte(reporting), 0o600); err != nil {
		t.Fatal(err)
	}
	run("gcc", "-g", "-O1", "-fPIE", "-pie", "-rdynamic", "-Wl,--build-id", "-o", whole, source)
	run("strip", "-s", "-o", program, whole)
	im, closeFile, err := OpenImage(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = closeFile()
	id := im.BuildID()
	debug = filepath.Join(folder, ".build-id", id[:2], id[2:]+".debug")
	if err := os.MkdirAll(filepath.Dir(debug), 0o755); err != nil { // like the folder of a host
		t.Fatal(err)
	}
	run("objcopy", "--only-keep-debug", whole, debug)
	if err := os.Chmod(debug, 0o644); err != nil { // like a file of a package
		t.Fatal(err)
	}
	return program, debug, folder
}

// framesWith names each function of a program, keeps the names, and returns whether symbols were read.
func framesWith(t *testing.T, program, debugDir string, kept buildcache.Folder) (frames []backtrace.Frame, read bool) {
	t.Helper()
	im, closeFile, err := OpenImage(program, []string{debugDir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closeFile() }()
	m := im.module
	m.Sources.Kept = func() buildcache.Folder { return kept }
	m.Sources.Report = func(err error) { t.Error(err) }
	table, _ := m.Table(nil)
	for fde := range table.FDEs {
		out := backtrace.Frame{ModuleOffset: fde.Start}
		frames = m.AppendFrames(frames, &out, fde.Start, nil, nil)
	}
	if err := m.keep(); err != nil {
		t.Error(err)
	}
	_, read = m.Symbols.ifReady()
	return frames, read
}

// TestFramesAreKept names the functions of a program without its symbols and lines, as long as all files are the same.
func TestFramesAreKept(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only files of root are trusted")
	}
	program, debug, debugDir := separated(t)
	kept := buildcache.Folder(filepath.Join(t.TempDir(), "cache"))
	want, read := framesWith(t, program, debugDir, kept)
	lines := 0
	for i := range want {
		if want[i].Line > 0 && want[i].Function != "" {
			lines++
		}
	}
	if !read || lines < 3 {
		t.Fatalf("read %t: %+v", read, want)
	}
	check := func(what string, wantRead bool) {
		t.Helper()
		got, read := framesWith(t, program, debugDir, kept)
		if read != wantRead || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: read %t, want %t; %+v", what, read, wantRead, got)
		}
	}
	check("second run", false)

	content, err := os.ReadFile(debug)
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func() {
		t.Helper()
		if err := os.WriteFile(debug+".new", content, 0o644); err != nil { // like a file of a package
			t.Fatal(err)
		}
		if err := os.Rename(debug+".new", debug); err != nil {
			t.Fatal(err)
		}
	}
	rewrite()
	check("another debug file", true)
	check("another debug file, second run", false)

	for what, change := range map[string]func() error{
		"a group can write the debug file": func() error { return os.Chmod(debug, 0o664) }, // the case
		"another user's debug file":        func() error { return os.Chown(debug, 12345, 0) },
		"others can write the program":     func() error { return os.Chmod(program, 0o757) }, // the case
		"another user's program":           func() error { return os.Chown(program, 12345, 0) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		check(what, true)
		check(what+", second run", true)
		rewrite()
		if err := os.Chown(program, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(program, 0o755); err != nil { // a program
			t.Fatal(err)
		}
	}
	if err := os.Remove(debug); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, _ := framesWith(t, program, debugDir, kept); reflect.DeepEqual(got, want) {
			t.Error("lines of a debug file that is gone")
		}
	}
}

// TestIncompleteFramesAreNotKept has a module of which a part could not be read.
func TestIncompleteFramesAreNotKept(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only files of root are trusted")
	}
	program, _, debugDir := separated(t)
	for what, damage := range map[string]func(*Module){
		"nothing":               func(*Module) {},
		"a symbol table":        func(m *Module) { m.partial = true },
		"another debug file":    func(m *Module) { m.debugFile = "none" },
		"lines of another file": func(m *Module) { m.Lines.mix() },
		"an unreadable line":    func(m *Module) { setUncertain(&m.Lines) },
		"names from the code":   func(m *Module) { m.stripped = true },
	} {
		kept := buildcache.Folder(filepath.Join(t.TempDir(), "cache"))
		im, closeFile, err := OpenImage(program, []string{debugDir})
		if err != nil {
			t.Fatal(err)
		}
		m := im.module
		m.Sources.Kept = func() buildcache.Folder { return kept }
		table, _ := m.Table(nil)
		for fde := range table.FDEs {
			m.AppendFrames(nil, &backtrace.Frame{}, fde.Start, nil, nil)
		}
		damage(m)
		if err := m.keep(); err != nil {
			t.Error(err)
		}
		m.kept = Lazy[*keptFrames]{}
		found := 0
		for fde := range table.FDEs {
			if m.Kept(fde.Start, nil) {
				found++
			}
		}
		if (found > 0) != (what == "nothing") {
			t.Errorf("%s: %d addresses are kept", what, found)
		}
		_ = closeFile()
	}
}

// setUncertain marks the lookup of each address as one with an error.
func setUncertain(l *lines) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.answers {
		a.certain = false
	}
}

func someFrames() map[uint64][]annotation {
	return map[uint64][]annotation{
		0x1000: {{function: "f", file: "a.c", line: 3, base: 0x1000, inlined: true}, {function: "g", note: "note", derived: true}},
		0x2000: {{}},
	}
}

func TestEncodedFrames(t *testing.T) {
	t.Parallel()
	p := encodeFrames(someFrames())
	if got := decodeFrames(p); !reflect.DeepEqual(got, someFrames()) {
		t.Errorf("got %+v", got)
	}
	for i := range p {
		if got := decodeFrames(p[:i]); len(got) >= len(someFrames()) {
			t.Errorf("%d of %d bytes: %+v", i, len(p), got)
		}
	}
}

// FuzzDecodeFrames decodes frames that may be damaged.
func FuzzDecodeFrames(f *testing.F) {
	f.Add(encodeFrames(someFrames()))
	f.Fuzz(func(t *testing.T, p []byte) {
		all := decodeFrames(p)
		if len(all) > maxKeptFrames {
			t.Errorf("%d addresses", len(all))
		}
		for _, known := range all {
			if len(known) == 0 || len(known) > maxKeptCalls {
				t.Errorf("%d calls", len(known))
			}
		}
	})
}
