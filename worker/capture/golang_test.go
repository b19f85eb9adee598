package capture_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// buildGo compiles testdata/golang and returns the program.
func buildGo(t *testing.T, flags ...string) string {
	t.Helper()
	return buildGoProgram(t, "golang", "0", flags...)
}

// buildGoProgram compiles a program of testdata, with or without cgo.
func buildGoProgram(t *testing.T, name, cgo string, flags ...string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", append(append([]string{"build", "-o", exe}, flags...), "./testdata/"+name)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return exe
}

// goFrames are the frames of functions of the program itself, as "name file:line".
func goFrames(th *backtrace.Thread) []string {
	var out []string
	for i := range th.Frames {
		if f := &th.Frames[i]; strings.HasPrefix(f.Function, "main.") {
			out = append(out, fmt.Sprintf("%s %s:%d", f.Function, path.Base(f.File), f.Line))
		}
	}
	return out
}

// dumpFrames returns the frames in Go's dump of the program's first goroutine, which SIGQUIT makes it print.
func dumpFrames(dump string) []string {
	_, dump, _ = strings.Cut(dump, "\ngoroutine 1 ")
	dump, _, _ = strings.Cut(dump, "\n\n")
	lines := strings.Split(dump, "\n")
	var out []string
	for i := 1; i+1 < len(lines); i++ {
		name, _, ok := strings.Cut(lines[i], "(")
		if !ok || !strings.HasPrefix(name, "main.") {
			continue
		}
		place, _, _ := strings.Cut(path.Base(strings.TrimSpace(lines[i+1])), " ")
		out = append(out, name+" "+place)
	}
	return out
}

// TestGo checks that a Go program's frames, inlined calls and lines equal those in its own stack trace. It does so
// with names from debugging information and from Go's table.
func TestGo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		flags []string
	}{
		{"debugging information", nil},
		{"symbols only", []string{"-ldflags=-w"}},
		{"stripped", []string{"-ldflags=-s -w"}},
		{"stripped, position-independent", []string{"-ldflags=-s -w", "-buildmode=pie"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.name, "position") && !pgtest.Full() {
				t.Skip("without PGSB_TEST_FULL=1: it takes a build of Go's own library")
			}
			checkGo(t, buildGo(t, tt.flags...))
		})
	}
}

// checkGo compares a capture of the program with its output after SIGQUIT.
func checkGo(t *testing.T, exe string) {
	t.Helper()
	cmd := exec.Command(exe)
	var dump bytes.Buffer
	cmd.Stderr = &dump
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = input.Close() })
	awaitCall(t, cmd.Process.Pid)
	th := take(t, patient(t, capture.Config{}), cmd.Process.Pid, capture.Options{})
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	checkLevels(t, &th)
	got, want := goFrames(&th), dumpFrames(dump.String())
	if !slices.Equal(got, want) || len(want) != 25 {
		t.Errorf("got  %q\nwant %q\n%s", got, want, &dump)
	}
	inlined := 0
	for i := range th.Frames {
		f := &th.Frames[i]
		if f.Function == "" {
			t.Errorf("frame %d has no name: %+v", i, f)
		}
		if f.Inlined && strings.HasPrefix(f.Function, "main.") {
			inlined++
		}
	}
	if inlined != 2 {
		t.Errorf("%d inlined calls, not 2", inlined)
	}
	last := th.Frames[len(th.Frames)-1]
	if last.Function != "runtime.goexit" && !strings.HasPrefix(last.Function, "runtime.goexit.") {
		t.Errorf("the outermost frame is %+v; the walk ended with %s", last, th.Stop)
	}
}

// awaitCall waits until the program's first thread is in the system call that reads its standard input.
func awaitCall(t *testing.T, pid int) {
	t.Helper()
	want := fmt.Sprintf("%d 0x0 ", syscall.SYS_READ)
	var got []byte
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got, _ = os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		if strings.HasPrefix(string(got), want) {
			return
		}
	}
	t.Fatalf("process %d is in %s", pid, got)
}
