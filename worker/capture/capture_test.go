package capture_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// build compiles testdata/nest.c and returns the program.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	return compile(t, "testdata/nest.c", flags...)
}

// compile makes a program of one C file.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	args := append([]string{"-O1", "-pthread", "-Wall", "-Wextra", "-o", exe, source}, flags...)
	if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return exe
}

// start runs the program until it sleeps. The program ends with the test.
func start(t *testing.T, exe string, args ...string) int {
	t.Helper()
	pid := run(t, exe, args...)
	awaitState(t, pid, 'S')
	return pid
}

// run runs the program until it is ready. The program ends with the test.
func run(t *testing.T, exe string, args ...string) int {
	t.Helper()
	cmd := exec.Command(exe, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatalf("%s %v did not get ready: %v", exe, args, err)
	}
	return cmd.Process.Pid
}

func awaitState(t *testing.T, pid int, state byte) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
		st, err := process.ReadStat(pid)
		if err != nil {
			t.Fatal(err)
		}
		if st.State == state {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("process %d does not get into state %c", pid, state)
}

func capturer(t *testing.T) *capture.Capturer {
	t.Helper()
	c, err := capture.New(capture.Config{LinesWait: time.Minute}) // a busy machine must not leave out facts of the server
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func take(t *testing.T, c *capture.Capturer, pid int, o capture.Options) backtrace.Thread {
	t.Helper()
	if o.Deadline == 0 {
		o.Deadline = pgtest.Patience
	}
	var reading *backtrace.ReadingError
	tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, o)
	for errors.As(err, &reading) { // a busy machine: the reading continues in the background
		tr, err = c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkUntouched(t, pid)
	if tr.PID != pid || len(tr.Threads) == 0 || (tr.Pause > 0) == o.NonStop {
		t.Fatalf("trace %+v", tr)
	}
	return tr.Threads[0]
}

func checkUntouched(t *testing.T, pid int) {
	t.Helper()
	st, err := process.ReadStatus(pid)
	if err != nil {
		t.Fatal(err)
	}
	if st.State == 't' || st.State == 'T' || st.TracerPID != 0 {
		t.Errorf("process %d is left in state %c with tracer %d", pid, st.State, st.TracerPID)
	}
}

func names(th *backtrace.Thread) []string {
	out := make([]string, len(th.Frames))
	for i := range th.Frames {
		out[i] = th.Frames[i].Name()
	}
	return out
}

func checkOrder(t *testing.T, th *backtrace.Thread, want ...string) {
	t.Helper()
	got := names(th)
	i := 0
	for _, name := range got {
		if i < len(want) && name == want[i] {
			i++
		}
	}
	if i < len(want) {
		t.Errorf("%q not found, in this order, in %q (%s)", want[i:], got, th.Stop)
	}
	if !th.Whole {
		t.Errorf("the stack was cut: %s: %q", th.Stop, got)
	}
}

func TestKnownStacks(t *testing.T) {
	t.Parallel()
	checkKnownStacks(t, build(t))
}

func checkKnownStacks(t *testing.T, exe string) {
	t.Helper()
	tests := []struct {
		args []string
		want []string
	}{
		{nil, []string{"ready", "inner", "middle", "outer", "main", "_start"}},
		{[]string{"altstack"}, []string{"ready", "handler", "raise", "inner", "middle", "outer", "main", "_start"}},
		{[]string{"null"}, []string{"ready", "handler", "[unmapped]", "inner", "middle", "outer", "main", "_start"}},
		{
			[]string{"deep", "100"},
			[]string{"ready", "recurse", "recurse", "recurse", "inner", "middle", "outer", "main", "_start"},
		},
	}
	for _, tt := range tests {
		t.Run(strings.Join(append([]string{"nest"}, tt.args...), " "), func(t *testing.T) {
			t.Parallel()
			th := take(t, capturer(t), start(t, exe, tt.args...), capture.Options{})
			checkOrder(t, &th, tt.want...)
		})
	}
}

func TestKnownStacksOfOtherBuilds(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{
		{"-O2", "-fomit-frame-pointer"},
		{"-O0"},
		{"-static"},
		{"-static-pie"},
		{"-no-pie"},
		{"-fno-asynchronous-unwind-tables", "-g", "-fno-omit-frame-pointer"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			t.Parallel()
			th := take(t, capturer(t), start(t, build(t, flags...)), capture.Options{})
			checkOrder(t, &th, "ready", "inner", "middle", "outer", "main", "_start")
		})
	}
}

func TestMaxFrames(t *testing.T) {
	t.Parallel()
	pid := start(t, build(t), "deep", "10000")
	for _, limit := range []int{1, 50, 20000} {
		th := take(t, capturer(t), pid, capture.Options{MaxFrames: limit})
		if limit < 20000 && (len(th.Frames) != limit || th.Whole) {
			t.Errorf("limit %d: %d frames, %s", limit, len(th.Frames), th.Stop)
		}
		if limit == 20000 {
			checkOrder(t, &th, "recurse", "inner", "main", "_start")
			if n := len(th.Frames); n < 10000 {
				t.Errorf("%d frames of 10000 calls", n)
			}
		}
	}
}

func TestStackLongerThanTheCopy(t *testing.T) {
	t.Parallel()
	th := take(t, capturer(t), start(t, build(t), "deep", "10000"),
		capture.Options{MaxFrames: 20000, MaxStack: 16384})
	if th.Whole || !strings.Contains(th.Stop, "16384 bytes of stack copied") || len(th.Frames) < 100 {
		t.Errorf("%d frames, %s", len(th.Frames), th.Stop)
	}
}

// TestExecutableIsGone replaces and deletes the program while it runs: its
// names must stay, and must not become those of the file in its place.
func TestExecutableIsGone(t *testing.T) {
	t.Parallel()
	other := build(t, "-Dinner=wrong", "-Dmiddle=misnamed", "-Douter=invented", "-O0")
	for _, what := range []string{"deleted", "replaced", "replaced after a capture"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			exe := build(t)
			pid := start(t, exe)
			c := capturer(t)
			if what == "replaced after a capture" {
				take(t, c, pid, capture.Options{})
			}
			if err := os.Remove(exe); err != nil {
				t.Fatal(err)
			}
			if what != "deleted" {
				if err := os.Rename(copyFile(t, other), exe); err != nil {
					t.Fatal(err)
				}
				th := take(t, c, start(t, exe), capture.Options{})
				checkOrder(t, &th, "ready", "wrong", "misnamed", "invented", "main", "_start")
			}
			th := take(t, c, pid, capture.Options{})
			checkOrder(t, &th, "ready", "inner", "middle", "outer", "main", "_start")
		})
	}
}

// copyFile copies a program so that the copy can be renamed. It blocks forks meanwhile: a forked child could inherit
// the open file, and a file that is open for writing cannot be executed.
func copyFile(t *testing.T, file string) string {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := os.CreateTemp(t.TempDir(), "copy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(dst, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := dst.Chmod(0o700); err != nil {
		t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
	return dst.Name()
}

func TestStrippedHasNoInventedNames(t *testing.T) {
	t.Parallel()
	exe := build(t, "-s")
	th := take(t, capturer(t), start(t, exe), capture.Options{})
	for i := range th.Frames {
		f := &th.Frames[i]
		if f.Module == "nest" && f.Function != "" {
			t.Errorf("%q in a stripped file without dynamic symbols", f.Function)
		}
		if f.Module == "nest" && (f.BuildID == "" || f.Offset != f.ModuleOffset) {
			t.Errorf("frame %+v", f)
		}
	}
	if !th.Whole || len(th.Frames) < 6 {
		t.Errorf("%d frames, %s", len(th.Frames), th.Stop)
	}
}

// TestSeparateDebugFile strips the program as distributions do: the names come
// back from the debug file beside it, unless that is another build's.
func TestSeparateDebugFile(t *testing.T) {
	t.Parallel()
	for _, other := range []bool{false, true} {
		exe := build(t, "-g")
		debug := exe + ".debug"
		source := exe
		if other {
			source = build(t, "-g", "-Dinner=wrong", "-Dmiddle=misnamed", "-Douter=invented", "-O0")
		}
		command(t, "objcopy", "--only-keep-debug", source, debug)
		command(t, "strip", exe)
		command(t, "objcopy", "--add-gnu-debuglink="+debug, exe)
		th := take(t, capturer(t), start(t, exe), capture.Options{})
		if !other {
			checkOrder(t, &th, "ready", "inner", "middle", "outer", "main", "_start")
			continue
		}
		for i := range th.Frames {
			if f := &th.Frames[i]; f.Module == "nest" && f.Function != "" {
				t.Errorf("%q from another build's debug file", f.Function)
			}
		}
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func TestConcurrentCallersShareAStop(t *testing.T) {
	t.Parallel()
	c := capturer(t)
	pid := start(t, build(t))
	take(t, c, pid, capture.Options{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{})
				if err != nil {
					t.Errorf("capture: %v", err)
					return
				}
				if !slices.Contains(names(&tr.Threads[0]), "middle") {
					t.Errorf("stack %q", names(&tr.Threads[0]))
				}
			}
		})
	}
	wg.Wait()
	checkUntouched(t, pid)
}

func TestCancelledBefore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := capturer(t)
	if _, err := c.Capture(ctx, process.Target{PID: 1, UID: -1}, capture.Options{}); err == nil {
		t.Error("no error")
	}
}

// BenchmarkCapture is the whole capture of a warm process: stop, copy, walk,
// name.
func BenchmarkCapture(b *testing.B) {
	exe := filepath.Join(b.TempDir(), "nest")
	gcc := exec.CommandContext(b.Context(), "gcc", "-O1", "-o", exe, "testdata/nest.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		b.Fatalf("gcc: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(b.Context(), exe, "deep", "20")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
	c, err := capture.New(capture.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var pause, walk, name time.Duration
	for b.Loop() {
		tr, err := c.Capture(b.Context(), process.Target{PID: cmd.Process.Pid, UID: -1}, capture.Options{})
		if err != nil {
			b.Fatal(err)
		}
		pause += tr.Pause
		walk += tr.Unwind
		name += tr.Symbolize
	}
	b.ReportMetric(float64(pause.Nanoseconds())/float64(b.N), "ns-pause/op")
	b.ReportMetric(float64(walk.Nanoseconds())/float64(b.N), "ns-unwind/op")
	b.ReportMetric(float64(name.Nanoseconds())/float64(b.N), "ns-name/op")
}
