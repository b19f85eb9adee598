package render_test

import (
	"regexp"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

// waiting is a server process that waits for a row in a PL/pgSQL function.
func waiting() *backtrace.Trace {
	frame := func(function, module string) backtrace.Frame {
		return backtrace.Frame{Address: 0x55d0a03f1c05, Offset: 0x3f1c05, Function: function, Module: module}
	}
	var frames []backtrace.Frame
	frames = append(frames, frame("epoll_wait", "libc.so.6"))
	for _, f := range []string{"WaitEventSetWait", "WaitLatch", "ProcSleep", "", "", "LockAcquireExtended", "XactLockTableWait", "heap_update"} {
		frames = append(frames, frame(f, "postgres"))
	}
	frames[4].Note, frames[5].Note = "static, between A and B", "static, between A and C"
	frames = append(frames, frame("", "postgres"), frame("exec_stmt_execsql", "plpgsql.so"), frame("PostgresMain", "postgres"),
		frame("ServerLoop", "postgres"), frame("PostmasterMain", "postgres"), frame("main", "postgres"), frame("__libc_start_main", "libc.so.6"))
	frames[9].Note = "static, in nodeModifyTable.c"
	frames[7].Levels = []backtrace.Level{{
		Kind: backtrace.Tuple, Text: `while updating tuple (0,1) in relation "stock"`, Relation: "stock",
	}}
	frames[8].File, frames[8].Line = "/build/src/heapam.c", 3180
	frames[10].Levels = []backtrace.Level{{
		Kind: backtrace.PLpgSQL, Text: "PL/pgSQL function take(text) line 4 at SQL statement", Function: "take(text)", Line: 4,
	}}
	return &backtrace.Trace{
		PID: 4711, Engine: "stop", Wait: backtrace.Wait{Class: "Lock", Event: "transactionid"},
		Query: "SELECT\n\ttake('bolt')", QueryFrame: 11,
		Threads: []backtrace.Thread{{TID: 4711, Name: "postgres", Whole: true, Frames: frames}},
	}
}

func TestBrief(t *testing.T) {
	t.Parallel()
	want := strings.Join([]string{
		"waits for the row (0,1) of stock",
		"wait: Lock: transactionid",
		"query: SELECT take('bolt')",
		"WaitEventSetWait",
		"WaitLatch",
		"ProcSleep",
		"(2 functions without a name)",
		"LockAcquireExtended",
		`while updating tuple (0,1) in relation "stock"`,
		"XactLockTableWait",
		"heap_update heapam.c:3180",
		"(static, in nodeModifyTable.c)",
		"PL/pgSQL function take(text) line 4 at SQL statement",
		"exec_stmt_execsql",
		"PostgresMain",
	}, "\n")
	got := render.Brief(waiting(), render.Options{})
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	coloured := render.Brief(waiting(), render.Options{Colour: true})
	if plain := regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(coloured, ""); plain != want || coloured == want {
		t.Errorf("with colours: %q", coloured)
	}
}

// TestBriefOfOtherStacks renders a stack that lies in the C library as a whole, a stack that was cut, and hostile texts.
func TestBriefOfOtherStacks(t *testing.T) {
	t.Parallel()
	sleeps := &backtrace.Trace{Threads: []backtrace.Thread{{Whole: true, Frames: []backtrace.Frame{
		{Function: "clock_nanosleep", Module: "libc.so.6"}, {Function: "main", Module: "sleep"}, {Function: "_start", Module: "sleep"},
	}}}}
	if got := render.Brief(sleeps, render.Options{}); got != "clock_nanosleep" {
		t.Errorf("got %q", got)
	}
	hostile := waiting()
	hostile.NotStopped = "traced by process 7 (\x1b[2Jgdb)"
	hostile.Query = strings.Repeat("\n", 100) + "SELECT '" + strings.Repeat("\u00e9", 10_000) + "\x1b[31m\u202e'"
	hostile.Threads[0].Frames[11].Levels = []backtrace.Level{{Text: "SQL statement \"SELECT\n1\x1b[0m\""}}
	hostile.Threads[0].Whole, hostile.Threads[0].Stop = false, "no call frame information at 0x5"
	got := render.Brief(hostile, render.Options{})
	for _, part := range []string{
		"\nnot stopped: traced by process 7 (\\x1b[2Jgdb)\n", "\nSQL statement \"SELECT 1\\x1b[0m\"\nPostgresMain\n",
		"\nstack cut: no call frame information at 0x5", "\u00e9...\n",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("no %q in %q", part, got)
		}
	}
	if strings.ContainsAny(got, "\x1b\u202e\ufffd") || len(got) > 2000 {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
