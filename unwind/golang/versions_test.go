package golang_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/internal/figure"
)

// TestVersions compares programs of other versions of Go: every function with debug/gosym, and inlined calls with
// debugging information.
func TestVersions(t *testing.T) {
	toolchains, programs := figure.GoPrograms(t)
	for _, version := range toolchains {
		t.Run(version, func(t *testing.T) {
			exe := buildWith(t, version)
			compareDWARF(t, exe)
			compareFunctions(t, exe)
			compareFunctions(t, buildWith(t, version, "-ldflags=-s -w"))
		})
	}
	for _, exe := range programs {
		t.Run(filepath.Base(exe), func(t *testing.T) { compareFunctions(t, exe) })
	}
}

// buildWith builds testdata/program with another tool chain. It creates a separate module, because this module needs
// a newer Go.
func buildWith(t *testing.T, version string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile("testdata/program/main.go")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.go"), source, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module program\n\ngo 1.18\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "program")
	cmd := exec.Command("go", append(append([]string{"build", "-o", exe}, flags...), ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOTOOLCHAIN="+version)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", version, err, out)
	}
	return exe
}
