package elfimage_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/unwind/elfimage"
)

// run runs a tool in a folder; the test is skipped if it is not installed.
func run(t testing.TB, dir, tool string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is not installed", tool)
	}
	cmd := exec.CommandContext(t.Context(), tool, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", tool, args, err, out)
	}
}

// program compiles a program with debug information; it is a.out in a new folder.
func program(t testing.TB, source string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.c"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "gcc", "-g", "-O1", "-Wl,--build-id=sha1", "p.c")
	return dir
}

const source = `struct node { int a, b, c; struct node *next; };
static __attribute__((noinline)) int deep(struct node *p) { return p ? p->a + deep(p->next) : 0; }
int main(int n, char **v) { struct node first = { n, 0, 0, 0 }; return deep(&first); }
`

func openFileImage(t testing.TB, path string) *elfimage.Image {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return openBytes(t, path, p)
}

// hasSymbol reports whether .symtab has a name.
func hasSymbol(t testing.TB, m *elfimage.Image, name string) bool {
	t.Helper()
	symbols, err := m.Symbols(".symtab")
	if err != nil {
		t.Fatal(err)
	}
	for s := range symbols {
		if s.Name == name {
			return true
		}
	}
	return false
}

// onDisk opens a file of this machine.
func onDisk(path string) (elfimage.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// expect finds debug information and checks that it has the static function.
func expect(t testing.TB, path string, o elfimage.SearchOptions, how elfimage.FoundHow) {
	t.Helper()
	r, err := elfimage.FindDebugFile(openFileImage(t, path), path, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.How != how || !hasSymbol(t, r.Image, "deep") {
		t.Errorf("found %s by %s", r.Path, r.How)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestObjcopy splits a program as distributions do.
func TestObjcopy(t *testing.T) {
	dir := program(t, source)
	path := filepath.Join(dir, "a.out")
	run(t, dir, "objcopy", "--only-keep-debug", "a.out", "a.debug")
	run(t, dir, "objcopy", "--strip-unneeded", "--add-gnu-debuglink=a.debug", "a.out")
	expect(t, path, elfimage.SearchOptions{Open: onDisk}, elfimage.ByDebugLink)
	id := openFileImage(t, path).BuildID()
	place := filepath.Join(dir, "debug", ".build-id", id[:2])
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "a.debug"), filepath.Join(place, id[2:]+".debug")); err != nil {
		t.Fatal(err)
	}
	expect(t, path, elfimage.SearchOptions{Open: onDisk, Folders: []string{filepath.Join(dir, "debug")}}, elfimage.ByBuildID)
}

// TestMiniDebugInfo creates .gnu_debugdata as the GDB manual describes.
func TestMiniDebugInfo(t *testing.T) {
	for _, flags := range [][]string{
		{}, {"-9", "--check=sha256"}, {"--check=crc32", "--block-size=4096"}, {"-T2", "--check=none"},
	} {
		dir := program(t, source)
		run(t, dir, "objcopy", "-S", "--keep-symbol=deep", "a.out", "mini")
		run(t, dir, "xz", append(flags, "mini")...)
		run(t, dir, "objcopy", "--strip-unneeded", "--add-section", ".gnu_debugdata=mini.xz", "a.out")
		expect(t, filepath.Join(dir, "a.out"), elfimage.SearchOptions{Open: onDisk}, elfimage.ByDebugData)
	}
}

// TestDwz makes supplementary files in both encodings.
func TestDwz(t *testing.T) {
	for name, flags := range map[string][]string{"altlink": nil, "debug_sup": {"--dwarf-5"}} {
		t.Run(name, func(t *testing.T) {
			dir := program(t, source)
			run(t, dir, "cp", "a.out", "b.out")
			common := filepath.Join(dir, "common")
			run(t, dir, "dwz", append(flags, "-m", common, "-M", common, "a.out", "b.out")...)
			m := openFileImage(t, filepath.Join(dir, "a.out"))
			link, ok := elfimage.SupplementLink(m)
			if !ok {
				t.Skip("dwz found nothing in common")
			}
			r, err := elfimage.FindSupplement(m, filepath.Join(dir, "a.out"), elfimage.SearchOptions{Open: onDisk})
			if err != nil {
				t.Fatal(link, err)
			}
			if r.Path != common || r.How != elfimage.BySupplement {
				t.Errorf("found %s by %s", r.Path, r.How)
			}
			if _, _, err := r.Image.Section(".debug_str"); err != nil && !errors.Is(err, elfimage.ErrNoSection) {
				t.Error(err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestInstalled finds the debug files of this machine's C library, if its debug package is installed.
func TestInstalled(t *testing.T) {
	paths, _ := filepath.Glob("/usr/lib/*-linux-gnu/lib[cm].so.6")
	found := 0
	for _, path := range paths {
		r, err := elfimage.FindDebugFile(openFileImage(t, path), path, elfimage.SearchOptions{Open: onDisk})
		if errors.Is(err, elfimage.ErrNone) {
			t.Log(err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		found++
		if _, _, err = r.Image.Section(".debug_info"); err != nil || r.How != elfimage.ByBuildID {
			t.Errorf("%s by %s: %v", r.Path, r.How, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if found == 0 {
		t.Skip("libc6-dbg is not installed")
	}
}
