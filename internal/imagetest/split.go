package imagetest

import (
	"debug/elf"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// SplitProgram is a stripped program and its separate debug file.
type SplitProgram struct {
	// Exe is the stripped program. Debug is its debug file in a separate folder. Both have the build-id BuildID.
	Exe, Debug, BuildID string
}

// BuildSplit compiles a C file with debug information, and splits the program as distributions do, but without a debug link.
func BuildSplit(t testing.TB, source string, flags ...string) SplitProgram {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "program")
	run(t, "gcc", append([]string{"-g", "-O1", "-Wl,--build-id=sha1", "-o", exe, source}, flags...)...)
	return Split(t, exe)
}

// Split makes a copy of a program without debug information and symbols, and a debug file that has them.
func Split(t testing.TB, exe string) SplitProgram {
	t.Helper()
	p := SplitProgram{
		Exe:   filepath.Join(t.TempDir(), filepath.Base(exe)),
		Debug: filepath.Join(t.TempDir(), filepath.Base(exe)+".debug"),
	}
	run(t, "objcopy", "--only-keep-debug", exe, p.Debug)
	run(t, "objcopy", "--strip-all", exe, p.Exe)
	if err := os.Chmod(p.Exe, 0o755); err != nil {
		t.Fatal(err)
	}
	p.BuildID = BuildID(t, p.Exe)
	return p
}

// Share moves common parts of two programs' debug files to a third file in a separate folder, as dwz does for a
// distribution. Both debug files refer to a path where the third file does not exist. Share returns the file and its
// build-id.
func Share(t testing.TB, a, b SplitProgram) (file, id string) {
	t.Helper()
	if _, err := exec.LookPath("dwz"); err != nil {
		t.Skipf("no dwz: %v", err)
	}
	file = filepath.Join(t.TempDir(), "shared.debug")
	run(t, "dwz", "-m", file, "-M", "/nonexistent/shared.debug", a.Debug, b.Debug)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("dwz found nothing in common: %v", err)
	}
	return file, BuildID(t, file)
}

// BuildID returns the build-id of a file in hex. It uses debug/elf, not the code under test.
func BuildID(t testing.TB, file string) string {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	s := f.Section(".note.gnu.build-id")
	if s == nil {
		t.Fatalf("%s has no build-id", file)
	}
	data, err := s.Data()
	if err != nil || len(data) <= 16 {
		t.Fatalf("build-id of %s: %v", file, err)
	}
	return hex.EncodeToString(data[16:])
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
