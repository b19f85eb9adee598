package render_test

import (
	"errors"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

func folded(t *testing.T, f *render.Folded, traces ...*backtrace.Trace) string {
	t.Helper()
	for _, tr := range traces {
		f.Add(tr, 1)
	}
	var out strings.Builder
	if err := f.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestFolded(t *testing.T) {
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
	const base = "std::map<int,unsigned_long>::at_[i];[postgres]"
	want := strings.Join([]string{
		"io:_worker;[exited_meanwhile] 1",
		"postgres;...;" + base + ";epoll_wait 1",
		"postgres;" + base + ";epoll_wait 2",
		"postgres;" + base + `;sql:outer_one;plpgsql:"a:b"(integer);[anon] 1`,
		"",
	}, "\n")
	if got := folded(t, &render.Folded{}, sample(), cut, sample(), inPL); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	apart := folded(t, &render.Folded{ByProcess: true}, sample(), inPL, sample())
	for _, prefix := range []string{"postgres-4711;", "\npostgres-4713;"} {
		if !strings.Contains(apart, prefix) {
			t.Errorf("no %q in\n%s", prefix, apart)
		}
	}
	goroutines := &backtrace.Trace{PID: 1, Goroutines: []backtrace.Goroutine{
		{Thread: backtrace.Thread{Whole: true, Frames: []backtrace.Frame{{Function: "main.work"}}}, ID: 1},
		{Thread: backtrace.Thread{Whole: true, Frames: []backtrace.Frame{{Function: "main.work"}}}, ID: 2},
	}}
	if got := folded(t, &render.Folded{}, goroutines); got != "goroutines;main.work 2\n" {
		t.Errorf("got %q", got)
	}
	if got := folded(t, &render.Folded{}); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

type fullDisk struct{}

var errFull = errors.New("no space left on device")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// TestFoldedSaysWhatIsLost checks that a failed write gives an error, not a short file.
func TestFoldedSaysWhatIsLost(t *testing.T) {
	t.Parallel()
	var f render.Folded
	f.Add(sample(), 1)
	if err := f.Write(fullDisk{}); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
}
