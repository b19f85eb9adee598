package capture_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The tool chains of Go to test with, such as go1.21.13, and Go programs that read their standard input when started
// with --minify; scripts/check-go.sh sets them. Words.
const (
	toolchainsVariable = "PGSB_GO_TOOLCHAINS"
	programsVariable   = "PGSB_GO_PROGRAMS"
)

// TestGoVersions: goroutines, their stacks and the ways between Go and C, of programs that other versions of Go have
// made.
func TestGoVersions(t *testing.T) {
	toolchains, programs := strings.Fields(os.Getenv(toolchainsVariable)), strings.Fields(os.Getenv(programsVariable))
	if len(toolchains)+len(programs) == 0 {
		t.Skip("without " + toolchainsVariable + " and " + programsVariable + ": they are downloaded by make check-go-versions")
	}
	for _, version := range toolchains {
		t.Run(version, func(t *testing.T) {
			plain := buildWith(t, version, "goroutines", "0")
			compareLayout(t, plain, version)
			compareGoroutines(t, plain, "spin")
			compareGoroutines(t, buildWith(t, version, "goroutines", "0", "-ldflags=-s -w"), "spin")
			needC(t)
			compareCgo(t, buildWith(t, version, "cgo", "1"))
			compareCgo(t, buildWith(t, version, "cgo", "1", "-ldflags=-s -w"))
		})
	}
	for _, exe := range programs {
		t.Run(filepath.Base(exe), func(t *testing.T) { compareGoroutines(t, exe, "--minify") })
	}
}

// buildWith compiles a program of testdata by another tool chain. The module is one of its own: this one's needs a newer
// Go.
func buildWith(t *testing.T, version, name, cgo string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile(filepath.Join("testdata", name, "main.go"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.go"), source, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+name+"\n\ngo 1.18\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, name)
	cmd := exec.Command("go", append(append([]string{"build", "-o", exe}, flags...), ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=", "GOTOOLCHAIN="+version)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", version, err, out)
	}
	return exe
}
