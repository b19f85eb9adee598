package capture_test

import (
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// TestMainThreadExited captures a process whose main thread has exited before another thread. The worker must reach
// its files and memory through the other thread.
func TestMainThreadExited(t *testing.T) {
	t.Parallel()
	pid := run(t, compile(t, "testdata/mainexit.c"))
	awaitState(t, pid, 'Z')
	if tid := process.LiveThread(pid); tid == pid {
		t.Fatal("no thread shows the memory of the process")
	}
	for _, nonStop := range []bool{false, true} {
		o := capture.Options{NonStop: nonStop, Deadline: pgtest.Patience}
		var exited *process.MainThreadError
		_, err := capturer(t).Capture(t.Context(), process.Target{PID: pid, UID: -1}, o)
		if !errors.As(err, &exited) || exited.Threads != 1 {
			t.Errorf("nonstop %t, main thread only: %v", nonStop, err)
		}
		o.AllThreads = true
		tr, err := capturer(t).Capture(t.Context(), process.Target{PID: pid, UID: -1}, o)
		if err != nil {
			t.Fatal(err)
		}
		if len(tr.Threads) != 2 || tr.Threads[0].Stop != "exited before" || !tr.Threads[1].Whole {
			t.Fatalf("nonstop %t: %+v", nonStop, tr.Threads)
		}
		found := slices.IndexFunc(tr.Threads[1].Frames, func(f backtrace.Frame) bool { return f.Function == "wait_for_ever" })
		if found < 0 || tr.Threads[1].Frames[found].Note != "" {
			t.Errorf("nonstop %t: %+v", nonStop, tr.Threads[1].Frames)
		}
	}
	images, err := symbolize.Images(pid, nil)
	if err != nil || !slices.ContainsFunc(images, func(m symbolize.Image) bool { return m.Name() == "mainexit" }) {
		t.Errorf("images %v, %v", images, err)
	}
}
