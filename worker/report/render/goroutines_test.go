package render_test

import (
	"bytes"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

// TestGoroutines prints goroutines in each format.
func TestGoroutines(t *testing.T) {
	t.Parallel()
	frame := backtrace.Frame{Address: 0x401001, Function: "main.f[...]", Offset: 1, Module: "a"}
	tr := &backtrace.Trace{
		PID: 4711, Engine: "stop", Go: "go1.26.8", GoroutinesLeftOut: 3,
		Goroutines: []backtrace.Goroutine{
			{ID: 1, Status: "chan receive", Thread: backtrace.Thread{Whole: true, Frames: []backtrace.Frame{frame}}},
			{
				ID: 20, Status: "running", Locked: true, Creator: "main.main", Parent: 1,
				Thread: backtrace.Thread{TID: 4712, Stop: "exited meanwhile"},
			},
		},
	}
	want := strings.Join([]string{
		"Goroutine 1 [chan receive]",
		"#0  0x0000000000401001 in main.f[...]+0x1 (a)",
		"Goroutine 20 [running, locked to thread] on thread 4712 created by main.main in goroutine 1 [exited meanwhile]",
		"and 3 more goroutines",
	}, "\n")
	if got := render.Text(tr, render.Options{}); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	brief := "goroutine 1 [chan receive]\nmain.f[...]\ngoroutine 20 [running]\nstack cut: exited meanwhile\nand 3 more goroutines"
	if got := render.Brief(tr, render.Options{}); got != brief {
		t.Errorf("%q, not %q", got, brief)
	}
	var buf bytes.Buffer
	if err := render.JSON(&buf, tr); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"threads":[]`, `"go_version":"go1.26.8"`, `"goroutines_left_out":3`,
		`{"id":1,"state":"chan receive","stop_reason":"","frames":[{"level":0,"address":"0x401001","function":"main.f[...]"`,
		`{"id":20,"state":"running","tid":4712,"locked_to_thread":true,"created_by":"main.main","parent":1,` +
			`"stop_reason":"exited meanwhile","frames":[]}`,
	} {
		if !strings.Contains(buf.String(), part) {
			t.Errorf("no %s in %s", part, &buf)
		}
	}
}
