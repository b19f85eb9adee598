package capture_test

import (
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
)

// TestCoroutineBase checks that the stack of a coroutine is complete. It must end with the function whose entry
// makecontext has stored in place of a return address.
func TestCoroutineBase(t *testing.T) {
	t.Parallel()
	pid := run(t, compile(t, "testdata/coroutine.c"))
	awaitState(t, pid, 'S')
	for _, nonStop := range []bool{false, true} {
		tr, err := capturer(t).Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{
			NonStop: nonStop, Deadline: pgtest.Patience,
		})
		if err != nil {
			t.Fatal(err)
		}
		th := &tr.Threads[0]
		if last := &th.Frames[len(th.Frames)-1]; !th.Whole || len(th.Frames) < 3 || last.Module != "libc.so.6" ||
			last.Function != "" && (last.Function != "__start_context" || last.Offset != 0) {
			t.Errorf("nonstop %t: whole %t, %s: %+v", nonStop, th.Whole, th.Stop, th.Frames)
		}
	}
}
