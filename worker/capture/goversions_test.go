package capture_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/figure"
)

// TestGoVersions: goroutines, their stacks and the ways between Go and C, of programs that other versions of Go have
// made.
func TestGoVersions(t *testing.T) {
	toolchains, programs := figure.GoPrograms(t)
	for _, version := range toolchains {
		t.Run(version, func(t *testing.T) {
			plain := buildWith(t, version, "goroutines", "0")
			compareLayout(t, plain, version)
			compareGoroutines(t, plain, "spin")
			compareGoroutines(t, buildWith(t, version, "goroutines", "0", "-ldflags=-s -w"), "spin")
			checkGrowing(t, buildWith(t, version, "gogrow", "0", "-ldflags=-s -w"))
			needC(t)
			checkCalling(t, buildWith(t, version, "cgobusy", "1", "-ldflags=-s -w"))
			compareCgo(t, buildWith(t, version, "cgo", "1"))
			compareCgo(t, buildWith(t, version, "cgo", "1", "-ldflags=-s -w"))
		})
	}
	for _, exe := range programs {
		t.Run(filepath.Base(exe), func(t *testing.T) {
			if strings.HasSuffix(exe, "esbuild") {
				compareGoroutines(t, exe, "--minify")
			} else {
				compareConfigured(t, exe)
			}
		})
	}
}

// compareConfigured compares the goroutines of lefthook while it waits for its configuration, which is a pipe.
func compareConfigured(t *testing.T, exe string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "lefthook.yml"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "dump")
	cmd.Dir = dir
	dump := startDumping(t, cmd)
	awaitAny(t, cmd.Process.Pid, fmt.Sprintf("%d ", syscall.SYS_OPENAT))
	compareRunning(t, cmd, dump)
}

// buildWith compiles a program of testdata with another toolchain. The program gets its own module, because this
// module needs a newer Go.
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
