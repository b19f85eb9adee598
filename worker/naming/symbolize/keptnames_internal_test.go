package symbolize

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"pg_stat_backtrace/worker/host/buildcache"
)

// reporting is a program that reports an error from a static function as PostgreSQL does.
const reporting = `
__attribute__((noinline, noclone)) void errfinish(const char *file, int line, const char *function)
{ __asm__ volatile("" : : "r"(file), "r"(line), "r"(function)); }
static __attribute__((noinline, noclone)) void innermost(void) { errfinish("src/small.c", 7, "innermost"); }
int main(void) { innermost(); return 0; }
`

// strippedProgram builds the program without its symbol table.
func strippedProgram(t *testing.T) string {
	t.Helper()
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("no names are derived on this architecture")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "small.c"), filepath.Join(dir, "small")
	if err := os.WriteFile(source, []byte(reporting), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "gcc", "-O1", "-fPIE", "-pie", "-s", "-rdynamic", "-Wl,--build-id", "-o", program, source).
		CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// notesWith returns the notes on the functions of a program, and how often its code was read.
func notesWith(t *testing.T, program string, folder buildcache.Folder) (notes []string, scans int) {
	t.Helper()
	im, closeFile, err := OpenImage(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closeFile() }()
	ended := 0
	im.module.Sources.Kept = func() buildcache.Folder { return folder }
	im.module.Sources.Scanning = func(string, string) func(error) {
		scans++
		return func(err error) {
			if ended++; err != nil {
				t.Error(err)
			}
		}
	}
	im.module.Sources.Report = func(err error) { t.Error(err) }
	names := im.derivedNow()
	table, _ := im.module.Table(nil)
	for fde := range table.FDEs {
		if fact, ok := names.At(fde.Start); ok {
			notes = append(notes, fact.Name+fact.Note)
		}
	}
	if scans != ended {
		t.Errorf("%d scans, of which %d have ended", scans, ended)
	}
	return notes, scans
}

// TestNamesAreKept reads the code of a program once, and again if the file or the kept result is another one.
func TestNamesAreKept(t *testing.T) {
	t.Parallel()
	program := strippedProgram(t)
	folder := buildcache.Folder(filepath.Join(t.TempDir(), "cache"))
	check := func(what, program string, folder buildcache.Folder, function string, wantScans int) {
		t.Helper()
		notes, scans := notesWith(t, program, folder)
		if len(notes) != 1 || notes[0] != "static, has code of "+function+"; small.c" || scans != wantScans {
			t.Errorf("%s: %q after %d scans, want %q after %d", what, notes, scans, function, wantScans)
		}
	}
	check("without a folder", program, "", "innermost", 0)
	check("first run", program, folder, "innermost", 1)
	check("second run", program, folder, "innermost", 0)

	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "small")
	changed := bytes.ReplaceAll(content, []byte("innermost\x00"), []byte("outermost\x00"))
	if bytes.Equal(changed, content) {
		t.Fatal("the program has no such name")
	}
	if err := os.WriteFile(other, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	check("another file with this build-id", other, folder, "outermost", 1)
	check("the first file again", program, folder, "innermost", 0)

	im, closeFile, err := OpenImage(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closeFile() }()
	sum := sha256.Sum256(content)
	key := buildcache.Key{Kind: kindOfNames, Build: im.BuildID(), Detail: programID() + " " + hex.EncodeToString(sum[:])}
	kept := folder.Load(key)
	if kept == nil {
		t.Fatal("no result for the key")
	}
	for i := 0; i < len(kept); i += 16 {
		if err := folder.Save(key, kept[:i]); err != nil {
			t.Fatal(err)
		}
		check("a result that ends early", program, folder, "innermost", 1)
		check("its replacement", program, folder, "innermost", 0)
	}
}
