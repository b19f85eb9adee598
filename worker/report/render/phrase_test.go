package render_test

import (
	"bytes"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

func traceOf(wait backtrace.Wait, functions ...string) *backtrace.Trace {
	t := &backtrace.Trace{PID: 1, Wait: wait, Threads: make([]backtrace.Thread, 1)}
	for _, f := range functions {
		t.Threads[0].Frames = append(t.Threads[0].Frames, backtrace.Frame{Function: f})
	}
	return t
}

// TestPhrase makes phrases of traces: of a server's process, of another program with the same functions, and of a wait for a
// row whose relation has a hostile name.
func TestPhrase(t *testing.T) {
	sleep := []string{"epoll_wait", "WaitLatch", "pg_sleep", "ExecInterpExpr", "ExecResult", "standard_ExecutorRun", "PostgresMain", "main"}
	timeout := backtrace.Wait{Class: "Timeout", Event: "PgSleep"}
	if got := render.Phrase(traceOf(timeout, sleep...)); got.Text != "sleeps in pg_sleep" {
		t.Errorf("%+v", got)
	}
	if got := render.Phrase(traceOf(timeout, sleep[:6]...)); got.Key != "" {
		t.Errorf("without a server's main function: %+v", got)
	}
	row := traceOf(backtrace.Wait{Class: "Lock", Event: "transactionid"}, "epoll_wait", "WaitLatch", "ProcSleep", "LockAcquireExtended",
		"XactLockTableWait", "heap_update", "heapam_tuple_update", "ExecUpdate", "ExecModifyTable", "standard_ExecutorRun", "PostgresMain")
	row.Threads[0].Frames[4].Levels = []backtrace.Level{{
		Kind: backtrace.Tuple, Text: `while updating tuple (0,1) in relation "x"`, Relation: "x\x1b[31m",
	}}
	got := render.Phrase(row)
	if !strings.Contains(got.Text, "row") || strings.Contains(got.Text, "\x1b") || !strings.Contains(got.Text, "of x") {
		t.Errorf("%+v", got)
	}
	plain := render.PlainPhrase(row.Threads[0].Frames, row.Wait, "client backend", 18)
	if plain == "" || strings.Contains(plain, "x") || plain == got.Text {
		t.Errorf("without names: %q", plain)
	}
	var b bytes.Buffer
	if err := render.JSON(&b, row); err != nil || !strings.Contains(b.String(), `"phrase":{"key":"`) {
		t.Errorf("%s, %v", b.String(), err)
	}
	if p := render.Phrase(&backtrace.Trace{}); p.Key != "" {
		t.Errorf("no threads: %+v", p)
	}
}
