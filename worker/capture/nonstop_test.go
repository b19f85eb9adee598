package capture_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace"
	nonstop "pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

var frameLine = regexp.MustCompile(`^#\d+\s+0x[0-9a-f]{16}\s+in\s+\S+\+0x[0-9a-f]+`)

// seen captures a process and checks that the capture has not stopped it. The parameter engine is the expected engine.
func seen(t *testing.T, pid int, o capture.Options, engine string) *backtrace.Trace {
	t.Helper()
	if o.Deadline == 0 {
		o.Deadline = pgtest.Patience
	}
	c := capturer(t)
	tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, o)
	for deadline := time.Now().Add(pgtest.Patience); errors.Is(err, nonstop.ErrNotObserved) && time.Now().Before(deadline); {
		tr, err = c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, o) // a busy machine
	}
	if err != nil {
		t.Fatal(err)
	}
	if tr.Engine != engine || tr.Pause != 0 {
		t.Errorf("engine %s, pause %v", tr.Engine, tr.Pause)
	}
	text := render.Text(tr, render.Options{})
	for line := range strings.Lines(text) {
		if len(tr.Threads) == 1 && !frameLine.MatchString(line) {
			t.Errorf("line %q", line)
		}
	}
	if !strings.Contains(text, "engine "+engine) {
		t.Errorf("engine %s is not named:\n%s", engine, text)
	}
	return tr
}

// TestNonStopKnownStacks checks the frames of programs with and without frame pointers, asleep and running.
func TestNonStopKnownStacks(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{
		{"-O2"},
		{"-O2", "-fno-omit-frame-pointer"},
		{"-O0"},
		{"-O0", "-static"},
		{"-O2", "-fno-omit-frame-pointer", "-fno-plt"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			t.Parallel()
			exe := build(t, flags...)
			o := capture.Options{NonStop: true}
			tr := seen(t, start(t, exe), o, "blocked")
			checkOrder(t, &tr.Threads[0], "ready", "inner", "middle", "outer", "main", "_start")
			tr = seen(t, start(t, exe, "altstack"), o, "blocked")
			checkOrder(t, &tr.Threads[0], "ready", "handler", "inner", "middle", "outer", "main", "_start")
			tr = seen(t, start(t, exe, "deep", "1000"), o, "blocked")
			if n := len(tr.Threads[0].Frames); n != 256 {
				t.Errorf("%d frames, %s", n, tr.Threads[0].Stop)
			}
			tr = seen(t, run(t, exe, "busy"), o, "running")
			checkOrder(t, &tr.Threads[0], "spin", "inner", "middle", "outer", "main", "_start")
			// Two copies of 64 KiB: the stack is deeper than a sample can hold.
			tr = seen(t, run(t, exe, "busy"), capture.Options{NonStop: true, MaxFrames: 2}, "running")
			if th := &tr.Threads[0]; len(th.Frames) != 2 || th.Whole {
				t.Errorf("%d frames, %s", len(th.Frames), th.Stop)
			}
		})
	}
}

// TestNoCallFrameInformation checks a sleeping program without call frame information, whose frame pointer is
// unknown. The walk must find its stack by its instructions, without guesses.
func TestNoCallFrameInformation(t *testing.T) {
	t.Parallel()
	exe := build(t, "-O2", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables")
	tr := seen(t, start(t, exe), capture.Options{NonStop: true}, "blocked")
	th := &tr.Threads[0]
	checkOrder(t, th, "ready", "inner", "middle", "outer", "main", "_start")
	for i := range th.Frames {
		if f := &th.Frames[i]; f.Note != "" && f.Note != "by instructions" {
			t.Errorf("%s: %s", f.Name(), f.Note)
		}
	}
}

// TestUninterruptible captures a process that cannot be stopped, without the option NonStop.
func TestUninterruptible(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"-O2"}, {"-O2", "-fno-omit-frame-pointer"}} {
		pid := run(t, build(t, flags...), "vfork")
		awaitState(t, pid, 'D')
		began := time.Now()
		tr := seen(t, pid, capture.Options{Deadline: pgtest.Patience}, "blocked")
		if took := time.Since(began); took > pgtest.Patience/2 {
			t.Errorf("took %v", took)
		}
		checkOrder(t, &tr.Threads[0], "__vfork", "fork_and_wait", "inner", "middle", "outer", "main", "_start")
		if tr.NotStopped != "in uninterruptible sleep" || len(tr.Threads[0].Kernel) == 0 {
			t.Errorf("not stopped because %q, in kernel %q", tr.NotStopped, tr.Threads[0].Kernel)
		}
		first, _, _ := strings.Cut(render.Text(tr, render.Options{}), "\n")
		if !strings.Contains(first, "[not stopped: in uninterruptible sleep, engine blocked] [in kernel: ") {
			t.Errorf("first line %q", first)
		}
		t.Log(first)
		if os.Geteuid() == 0 && !strings.Contains(strings.Join(tr.Threads[0].Kernel, " "), "vfork") {
			t.Errorf("kernel stack %q", tr.Threads[0].Kernel)
		}
	}
}

// TestOtherTracers captures processes that strace or gdb traces.
func TestOtherTracers(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "strace.log")
	for name, args := range map[string][]string{"strace": {"-o", log}, "gdb": {"-nx", "-q"}} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Logf("no %s: not tested with it", name)
			continue
		}
		pid := start(t, build(t))
		tracer := exec.Command(program, append(args, "-p", strconv.Itoa(pid))...)
		stdin, err := tracer.StdinPipe()
		if err := errors.Join(err, tracer.Start()); err != nil {
			t.Fatal(err)
		}
		if name == "strace" {
			awaitStrace(t, tracer.Process.Pid, pid, log, 'S')
		} else {
			awaitTracer(t, pid, 't') // gdb does not resume it
		}
		tr := seen(t, pid, capture.Options{}, "blocked")
		checkOrder(t, &tr.Threads[0], "ready", "inner", "middle", "outer", "main", "_start")
		if want := fmt.Sprintf("traced by process %d (%s)", tracer.Process.Pid, name); tr.NotStopped != want {
			t.Errorf("%q instead of %q", tr.NotStopped, want)
		}
		_ = stdin.Close()
		if name == "strace" {
			_ = tracer.Process.Signal(syscall.SIGTERM)
		}
		_ = tracer.Wait()
		checkUntouched(t, pid)
	}
}

// awaitTracer waits until a process has a tracer and is in a state.
func awaitTracer(t *testing.T, pid int, state byte) {
	t.Helper()
	pgtest.Wait(t, "a tracer of the process", func() bool {
		st, err := process.ReadStatus(pid)
		return err == nil && st.TracerPID != 0 && st.State == state
	})
}

// awaitStrace waits until strace has attached to a process, has reported a signal, and leaves the process in a state.
func awaitStrace(t *testing.T, tracer, pid int, log string, state byte) {
	t.Helper()
	pgtest.Wait(t, "strace traces", func() bool {
		st, err := process.ReadStatus(pid)
		return err == nil && st.TracerPID != 0
	})
	if err := syscall.Kill(pid, syscall.SIGWINCH); err != nil { // only strace gets it
		t.Fatal(err)
	}
	pgtest.Wait(t, "strace has reported the signal and waits", func() bool {
		reported, err1 := os.ReadFile(log)
		st, err2 := process.ReadStat(tracer)
		traced, err3 := process.ReadStat(pid)
		return errors.Join(err1, err2, err3) == nil && strings.Contains(string(reported), "SIGWINCH") &&
			st.State == 'S' && traced.State == state
	})
}

// TestTracedAndBusy checks that a process on the CPU with another tracer is sampled.
func TestTracedAndBusy(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace")
	}
	pid := run(t, build(t), "busy")
	log := filepath.Join(t.TempDir(), "strace.log")
	tracer := exec.Command(program, "-o", log, "-p", strconv.Itoa(pid))
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tracer.Process.Signal(syscall.SIGTERM); _ = tracer.Wait() })
	awaitStrace(t, tracer.Process.Pid, pid, log, 'R')
	tr := seen(t, pid, capture.Options{}, "running")
	checkOrder(t, &tr.Threads[0], "spin", "inner", "middle", "outer", "main", "_start")
}

// TestManyThreads stops 500 threads that come and go, again and again.
func TestManyThreads(t *testing.T) {
	const n, rounds = 500, 20
	pid := run(t, compile(t, "testdata/threads.c"), strconv.Itoa(n))
	c := capturer(t)
	var longest, sum time.Duration
	ended, walked, stops, late := 0, 0, 0, 0
	for range rounds {
		tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{AllThreads: true})
		if errors.Is(err, ptrace.ErrDeadline) {
			t.Logf("the machine is too busy: %v", err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if tr.NotStopped != "" {
			t.Logf("the machine is too busy for a stop of all threads: %s", tr.NotStopped)
			continue
		}
		stops++
		longest, sum = max(longest, tr.Pause), sum+tr.Pause
		resting := 0
		for i := range tr.Threads {
			th := &tr.Threads[i]
			switch {
			case len(th.Frames) == 0 && th.Stop == "exited meanwhile":
				ended++
			case len(th.Frames) == 0 && strings.Contains(th.Stop, "the limit for the pause of its process was reached"):
				late++ // on a busy machine: the pause is bounded
			case len(th.Frames) == 1 && strings.Contains(th.Stop, "no call frame information"):
				walked++ // in clone3, on its way to its first function
			case len(th.Frames) == 0 || !th.Whole:
				t.Errorf("thread %d: %d frames: %s", th.TID, len(th.Frames), th.Stop)
			default:
				walked++
				if slices.Contains(names(th), "resting") {
					resting++
				}
			}
		}
		if late == 0 && resting != n/2 || tr.Threads[0].TID != pid {
			t.Errorf("%d threads rest instead of %d; the first is %d of %d", resting, n/2, tr.Threads[0].TID, pid)
		}
		checkThreadText(t, tr)
	}
	checkUntouched(t, pid)
	if stops == 0 {
		t.Fatal("no stop of all threads")
	}
	figure.Printf(t, "%d captures: %d threads, %d had ended meanwhile, %d did not stop in time; pause %v on average, "+
		"%v at most",
		stops, walked, ended, late, sum/time.Duration(stops), longest)
	if longest > pgtest.Soon {
		t.Errorf("a pause of %v", longest)
	}
	tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{
		AllThreads: true, NonStop: true, Deadline: pgtest.Patience,
	})
	if err != nil || len(tr.Threads) < n/2 || tr.Pause != 0 || tr.Engine == snapshot.EngineStop {
		t.Errorf("without a stop: %v", err)
	}
}

// checkThreadText checks that the text has a header for each thread, and then its frames, or the reason why there are
// none.
func checkThreadText(t *testing.T, tr *backtrace.Trace) {
	t.Helper()
	header := regexp.MustCompile(`^Thread \d+ \((threads|)\)( state .)?( \[.*\])?$`)
	headers := 0
	for line := range strings.Lines(render.Text(tr, render.Options{})) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case header.MatchString(line):
			headers++
		case !frameLine.MatchString(line):
			t.Errorf("line %q", line)
		}
	}
	if headers != len(tr.Threads) {
		t.Errorf("%d headers of %d threads", headers, len(tr.Threads))
	}
}

// TestPreferNonStop captures a program that sleeps without a stop, and a program that runs by a stop.
func TestPreferNonStop(t *testing.T) {
	t.Parallel()
	c := capturer(t)
	program := build(t)
	for mode, want := range map[string]string{"sleep": snapshot.EngineBlocked, "busy": snapshot.EngineStop} {
		pid := run(t, program, mode)
		pgtest.Wait(t, mode+" is captured by engine "+want, func() bool {
			tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{
				PreferNonStop: true, Deadline: pgtest.Patience,
			})
			if err != nil {
				t.Fatal(err)
			}
			if (tr.Pause > 0) != (tr.Engine == snapshot.EngineStop) {
				t.Errorf("%s: engine %s, pause %v", mode, tr.Engine, tr.Pause)
			}
			return tr.Engine == want && tr.Threads[0].Whole
		})
	}
}
