package render_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

// contract is the form that every line of a stack has.
var contract = regexp.MustCompile(`^#\d+\s+0x[0-9a-f]{16}\s+in\s+\S+\+0x[0-9a-f]+`)

func sample() *backtrace.Trace {
	return &backtrace.Trace{
		PID: 4711, Engine: "stop", Pause: 9250 * time.Nanosecond,
		Threads: []backtrace.Thread{{
			TID: 4711, Name: "postgres", State: 'S', Stop: "end of stack", Whole: true,
			Frames: []backtrace.Frame{
				{Level: 0, Address: 0x7f0102030405, Function: "epoll_wait", Offset: 0x16, Module: "libc.so.6", BuildID: "ab"},
				{Level: 1, Address: 0x55d0a03f1c05, Offset: 0x3f1c05, ModuleOffset: 0x3f1c05, Module: "postgres", BuildID: "cd"},
				{
					Level: 2, Address: 0xffffffffffffffff, Function: "std::map<int, unsigned long>::at", Offset: 1,
					Module: "my lib.so", File: "a b.cc", Line: 7, Inlined: true, Note: "by frame pointer",
				},
			},
		}},
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	want := strings.Join([]string{
		"#0  0x00007f0102030405 in epoll_wait+0x16 (libc.so.6)",
		"#1  0x000055d0a03f1c05 in postgres+0x3f1c05",
		"#2  0xffffffffffffffff in std::map<int,unsigned_long>::at+0x1 (my lib.so) a b.cc:7 [inlined] [by frame pointer]",
	}, "\n")
	got := render.Text(sample(), render.Options{})
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	checkContract(t, got)
}

func checkContract(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if !contract.MatchString(line) {
			t.Errorf("line does not have the promised form: %q", line)
		}
	}
}

func TestTextSaysWhereItWasCut(t *testing.T) {
	t.Parallel()
	tr := sample()
	tr.Threads[0].Whole, tr.Threads[0].Stop = false, "no call frame information at 0x5"
	got := render.Text(tr, render.Options{})
	if !strings.HasSuffix(got, " [stack cut: no call frame information at 0x5]") {
		t.Errorf("got:\n%s", got)
	}
	checkContract(t, got)
}

func TestTextSaysHowItWasSeen(t *testing.T) {
	t.Parallel()
	tr := sample()
	tr.Engine, tr.Pause, tr.NotStopped = "blocked", 0, "traced by process 7 (gdb)"
	tr.Threads[0].Kernel = []string{"ep_poll+0x2f0/0x3d0", "do_syscall_64+0x71/0x280"}
	got := render.Text(tr, render.Options{})
	want := "#0  0x00007f0102030405 in epoll_wait+0x16 (libc.so.6) " +
		"[not stopped: traced by process 7 (gdb), engine blocked] [in kernel: ep_poll <- do_syscall_64]\n"
	if !strings.HasPrefix(got, want) {
		t.Errorf("got:\n%s", got)
	}
	checkContract(t, got)
	var b bytes.Buffer
	if err := render.JSON(&b, tr); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"engine":"blocked"`, `"not_stopped":"traced by process 7 (gdb)"`, `"pause_us":0`,
		`"kernel_stack":["ep_poll+0x2f0/0x3d0","do_syscall_64+0x71/0x280"]`,
	} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("no %s in %s", part, b.String())
		}
	}
	rows := render.Rows(tr, render.Options{})
	note := "not stopped: traced by process 7 (gdb), engine blocked; in kernel: ep_poll <- do_syscall_64"
	if rows[0][11] != note || rows[1][11] != "" {
		t.Errorf("notes %q, %q", rows[0][11], rows[1][11])
	}
	tr.NotStopped = ""
	if got := render.Text(tr, render.Options{}); !strings.Contains(got, " [not stopped, engine blocked] ") {
		t.Errorf("got:\n%s", got)
	}
}

func TestTextOfThreadsThatEnded(t *testing.T) {
	t.Parallel()
	tr := sample()
	tr.Threads = append(tr.Threads, backtrace.Thread{TID: 4712, Name: "io", Stop: "exited meanwhile"})
	if got := render.Text(tr, render.Options{}); !strings.HasSuffix(got, "\nThread 4712 (io) [exited meanwhile]") {
		t.Errorf("got:\n%s", got)
	}
	tr.Threads[1] = backtrace.Thread{TID: 4712, Name: "iou", Stop: "no stack", Kernel: []string{"io_wq_worker+0x9/0x99", "x"}}
	want := "\nThread 4712 (iou) [no stack] [in kernel: io_wq_worker <- x]"
	if got := render.Text(tr, render.Options{}); !strings.HasSuffix(got, want) {
		t.Errorf("got:\n%s", got)
	}
}

func TestTextIsBounded(t *testing.T) {
	t.Parallel()
	tr := sample()
	frame := tr.Threads[0].Frames[0]
	for range 1000 {
		frame.Level++
		tr.Threads[0].Frames = append(tr.Threads[0].Frames, frame)
	}
	got := render.Text(tr, render.Options{MaxBytes: 1000})
	if len(got) > 1200 || !strings.Contains(got, "[output cut: ") {
		t.Errorf("%d bytes: …%s", len(got), got[len(got)-100:])
	}
	checkContract(t, got)
}

func TestThreadsHaveHeaders(t *testing.T) {
	t.Parallel()
	tr := sample()
	tr.Threads = append(tr.Threads, backtrace.Thread{TID: 4712, Name: "io\x1b[2J", State: 'R', Whole: true})
	got := render.Text(tr, render.Options{})
	for _, want := range []string{"Thread 4711 (postgres) state S\n#0 ", `Thread 4712 (io\x1b[2J) state R`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q not in:\n%s", want, got)
		}
	}
}

// TestNames checks names that no compiler makes, but that a file may have.
func TestNames(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, utf8, ascii string }{
		{"größe", "größe", `gr\u00f6\u00dfe`},
		{"関数", "関数", `\u95a2\u6570`},
		{"\U0001f600", "\U0001f600", `\U0001f600`},
		{"a\nb\tc\x00d\x7f", `a\x0ab\x09c\x00d\x7f`, `a\x0ab\x09c\x00d\x7f`},
		{"bad\xffutf", `bad\xffutf`, `bad\xffutf`},
		{"nel\u0085sep\u2028", `nel\x85sep\u2028`, `nel\x85sep\u2028`},
		{"operator new", "operator_new", "operator_new"},
		{"a\u202eb\u2066c\u200d\ufeff", `a\u202eb\u2066c\u200d\ufeff`, `a\u202eb\u2066c\u200d\ufeff`},
		{"tag\U000e0041", `tag\U000e0041`, `tag\U000e0041`},
	}
	for _, tt := range tests {
		tr := &backtrace.Trace{Threads: []backtrace.Thread{{Whole: true, Frames: []backtrace.Frame{{Function: tt.name, Module: "m"}}}}}
		prefix := "#0  0x0000000000000000 in "
		if got := render.Text(tr, render.Options{}); got != prefix+tt.utf8+"+0x0 (m)" {
			t.Errorf("UTF-8 %q: %q", tt.name, got)
		}
		if got := render.Text(tr, render.Options{ASCII: true}); got != prefix+tt.ascii+"+0x0 (m)" {
			t.Errorf("ASCII %q: %q", tt.name, got)
		}
	}
}

// TestNothingTurnsText: no form of output has a character that reverses or hides the text around it, even if a name, a
// file, a query or a note has such characters.
func TestNothingTurnsText(t *testing.T) {
	t.Parallel()
	const trick = "a\u202eb\u2069\u200f\u2028"
	tr := sample()
	tr.NotStopped, tr.Query, tr.Go = trick, trick, trick
	tr.Wait = backtrace.Wait{Class: "Lock", Event: trick}
	tr.Threads[0].Name, tr.Threads[0].Kernel = trick, []string{trick}
	f := &tr.Threads[0].Frames[0]
	f.Function, f.Module, f.File, f.Note, f.Line = trick, trick, trick, trick, 1
	f.Levels = []backtrace.Level{{Kind: backtrace.PLpgSQL, Text: trick, Function: trick, Query: trick, Relation: trick}}
	tr.Threads = append(tr.Threads, tr.Threads[0])
	tr.Goroutines = []backtrace.Goroutine{{Thread: tr.Threads[0], Status: trick, Creator: trick}}
	var out bytes.Buffer
	if err := render.JSON(&out, tr); err != nil {
		t.Fatal(err)
	}
	out.WriteString(render.Text(tr, render.Options{}) + render.Brief(tr, render.Options{}) +
		render.Names(tr, render.Options{}))
	for _, row := range render.Rows(tr, render.Options{}) {
		out.WriteString(strings.Join(row, " "))
	}
	for _, r := range out.String() {
		if strings.ContainsRune(trick[1:], r) && r != 'b' {
			t.Fatalf("%U in %q", r, out.String())
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	if err := render.JSON(&buf, sample()); err != nil {
		t.Fatal(err)
	}
	want := `{"pid":4711,"engine":"stop","pause_us":9.25,"threads":[{"tid":4711,"name":"postgres","state":"S",` +
		`"stop_reason":"end of stack","frames":[` +
		`{"level":0,"address":"0x7f0102030405","function":"epoll_wait","offset":"0x16","module":"libc.so.6",` +
		`"build_id":"ab","module_offset":"0x0"},` +
		`{"level":1,"address":"0x55d0a03f1c05","module":"postgres","build_id":"cd","module_offset":"0x3f1c05"},` +
		`{"level":2,"address":"0xffffffffffffffff","function":"std::map<int, unsigned long>::at","offset":"0x1",` +
		`"module":"my lib.so","module_offset":"0x0","file":"a b.cc","line":7,"inlined":true,` +
		`"note":"by frame pointer"}]}]}` + "\n"
	if buf.String() != want {
		t.Errorf("got  %s\nwant %s", buf.String(), want)
	}
	if !json.Valid(buf.Bytes()) {
		t.Error("not JSON")
	}
}

func TestRowsMarkDerivedNames(t *testing.T) {
	t.Parallel()
	tr := sample()
	tr.Threads[0].Frames[1].Function, tr.Threads[0].Frames[1].Derived = "ExecSort", true
	rows := render.Rows(tr, render.Options{})
	const derived = 12 // its column
	if got := rows[1][derived]; got != "true" {
		t.Errorf("derived is %q", got)
	}
	if got := rows[0][derived]; got != "false" {
		t.Errorf("derived is %q for a name that a symbol has", got)
	}
}

func TestJSONMarksDerivedNames(t *testing.T) {
	t.Parallel()
	tr := sample()
	tr.Threads[0].Frames[1].Function, tr.Threads[0].Frames[1].Derived = "ExecSort", true
	var buf bytes.Buffer
	if err := render.JSON(&buf, tr); err != nil {
		t.Fatal(err)
	}
	const want = `"function":"ExecSort","derived":true,"offset":`
	if !strings.Contains(buf.String(), want) || strings.Count(buf.String(), "derived") != 1 {
		t.Errorf("got  %s\nwant once: %s", buf.String(), want)
	}
}

// ofServer is the sample as a process of PostgreSQL's.
func ofServer() *backtrace.Trace {
	tr := sample()
	tr.Wait = backtrace.Wait{Class: "Lock", Event: "transactionid"}
	tr.Query, tr.QueryFrame = "SELECT 'ä',\n"+strings.Repeat("x", 300), 1
	tr.Threads[0].Frames[1].Levels = []backtrace.Level{
		{Kind: backtrace.SPI, Text: `SQL statement "SELECT 1"`, Query: "SELECT 1", Cut: true},
		{
			Kind: backtrace.PLpgSQL, Text: "PL/pgSQL function f(integer) line 3 at IF", Function: "f(integer)", Line: 3,
			Statement: "IF",
		},
	}
	return tr
}

func TestTextOfServer(t *testing.T) {
	t.Parallel()
	tr := ofServer()
	second := []backtrace.Frame{{Module: "m"}, {Level: 1, Module: "m"}}
	tr.Threads = append(tr.Threads, backtrace.Thread{Whole: true, Frames: second})
	got := render.Text(tr, render.Options{ASCII: true})
	want := []string{
		"#0  0x00007f0102030405 in epoll_wait+0x16 (libc.so.6) [waiting for Lock: transactionid]\n",
		`#1  0x000055d0a03f1c05 in postgres+0x3f1c05 [SQL statement "SELECT 1"] ` +
			`[PL/pgSQL function f(integer) line 3 at IF] [query: SELECT '\u00e4',\x0a` + strings.Repeat("x", 187) + "...]\n",
		"#0  0x0000000000000000 in m+0x0\n#1  0x0000000000000000 in m+0x0",
	}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%q is not in:\n%s", w, got)
		}
	}
	if n := strings.Count(got, "waiting for") + strings.Count(got, "[query"); n != 2 {
		t.Errorf("%d notes of the process in:\n%s", n, got)
	}
}

func TestJSONOfServer(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	if err := render.JSON(&buf, ofServer()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"wait_event_type":"Lock","wait_event":"transactionid","query":"SELECT 'ä',\nx`,
		`"context":[{"kind":"statement","text":"SQL statement \"SELECT 1\"","query":"SELECT 1","query_truncated":true},` +
			`{"kind":"plpgsql","text":"PL/pgSQL function f(integer) line 3 at IF","function":"f(integer)","line":3,` +
			`"statement":"IF"}]`,
	} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("%s is not in:\n%s", want, buf.String())
		}
	}
}
