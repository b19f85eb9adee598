package profilefmt

import (
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
)

func folded(t *testing.T, c *Traces, traces ...*backtrace.Trace) string {
	t.Helper()
	for _, tr := range traces {
		c.Add(tr, 1)
	}
	var out strings.Builder
	if err := Write(&out, c.Profile(), Options{Format: Folded, Root: []string{LabelThread}}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// sample is a trace with an inlined call, a frame without a symbol and a function of C++.
func sample() *backtrace.Trace {
	const cpp, shared = 0x55d0a03f2000, "my lib.so"
	return &backtrace.Trace{PID: 4711, Threads: []backtrace.Thread{{
		TID: 4711, Name: "postgres", Stop: "end of stack", Whole: true, Frames: []backtrace.Frame{
			{Address: 0x7f0102030405, Function: "epoll_wait", Offset: 0x16, Module: "libc.so.6", BuildID: "ab"},
			{Address: 0x55d0a03f1c05, Offset: 0x3f1c05, ModuleOffset: 0x3f1c05, Module: "postgres", BuildID: "cd"},
			{Address: cpp, Function: "std::map<int, unsigned long>::at", Module: shared, Inlined: true},
			{Address: cpp, Function: "main", Module: shared},
		},
	}}}
}

// TestTraces counts equal stacks: cut ones, of threads without a stack, with functions of procedural languages, and of goroutines.
func TestTraces(t *testing.T) {
	t.Parallel()
	cut := sample()
	cut.Threads[0].Whole = false
	cut.Threads = append(cut.Threads, backtrace.Thread{TID: 4712, Name: "io; worker", Stop: "exited meanwhile"})
	inPL := sample()
	inPL.PID = 4713
	inPL.Threads[0].Frames[1].Levels = []backtrace.Level{
		{Kind: backtrace.PLpgSQL, Function: `"a;b"(integer)`, Text: "PL/pgSQL function", Line: 3},
		{Kind: backtrace.SPI, Query: "SELECT 1"},
		{Kind: backtrace.SQL, Function: "outer_one"},
	}
	inPL.Threads[0].Frames[0].Module, inPL.Threads[0].Frames[0].Function = "[anon]", ""
	const base = "main;std::map<int,unsigned_long>::at_[i];[postgres]"
	want := strings.Join([]string{
		"io:_worker;[exited_meanwhile] 1",
		"postgres;...;" + base + ";epoll_wait 1",
		"postgres;" + base + ";epoll_wait 2",
		"postgres;" + base + `;sql:outer_one;plpgsql:"a:b"(integer);[anon] 1`,
		"",
	}, "\n")
	if got := folded(t, &Traces{}, sample(), cut, sample(), inPL); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	var lines strings.Builder
	typed := &Traces{}
	typed.AddTyped(inPL, "client backend", 2)
	if err := Write(&lines, typed.Profile(), Options{Format: Text, Root: []string{LabelBackendType}}); err != nil ||
		!strings.Contains(lines.String(), `  plpgsql:"a,b"(integer) line 3`+"\n") || !strings.Contains(lines.String(), "  client backend\n") {
		t.Errorf("no line of PL/pgSQL and no type: %v\n%s", err, lines.String())
	}
	apart := folded(t, &Traces{ByProcess: true}, sample(), inPL, sample())
	for _, prefix := range []string{"postgres-4711;", "\npostgres-4713;"} {
		if !strings.Contains(apart, prefix) {
			t.Errorf("no %q in\n%s", prefix, apart)
		}
	}
	goroutines := &backtrace.Trace{PID: 1, Goroutines: []backtrace.Goroutine{
		{Thread: backtrace.Thread{Whole: true, Frames: []backtrace.Frame{{Function: "main.work"}}}, ID: 1},
		{Thread: backtrace.Thread{Whole: true, Frames: []backtrace.Frame{{Function: "main.work"}}}, ID: 2},
	}}
	if got := folded(t, &Traces{}, goroutines); got != "goroutines;main.work 2\n" {
		t.Errorf("got %q", got)
	}
	if got := folded(t, &Traces{}); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}
