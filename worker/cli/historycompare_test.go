package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/cli/historycmd"
	"pg_stat_backtrace/worker/history/store"
)

// recordedSpans writes two spans of four seconds, and returns the directory and the begin of both. The later one lacks its last
// two sweeps.
func recordedSpans(t *testing.T) (dir string, before, after time.Time) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	w, err := store.Open(store.Options{Dir: dir, MinFree: 1, Meta: store.Meta{SystemID: "1", ServerVersion: "18.4"}})
	if err != nil {
		t.Fatal(err)
	}
	after = time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	before = after.Add(-24 * time.Hour)
	stacks := []store.Stack{{ID: 11, Frames: []string{"epoll_wait", "main"}}, {ID: 12, Frames: []string{"epoll_wait", "main"}}}
	row := func(pid int32, query, wait string, by ...store.Blocker) store.Row {
		r := store.Row{PID: pid, Type: "client backend", User: "u", State: "active", Query: query, Stack: 11, BlockedBy: by}
		if wait != "" {
			r.WaitType, r.WaitEvent = "Lock", wait
		}
		return r
	}
	add := func(at time.Time, rows ...store.Row) {
		t.Helper()
		if err := w.Append(&store.Sweep{Time: at.Add(time.Second), Period: time.Second, Rows: rows, Stacks: stacks}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		add(before.Add(time.Duration(i)*time.Second), row(7, "SELECT ?", ""), row(8, "old", "tuple", store.Blocker{PID: 7}))
	}
	for i := range 2 {
		busy := row(70, "SELECT ?", "")
		busy.Stack = 12
		add(after.Add(time.Duration(i)*time.Second), busy, row(80, "a\x1b[1m, \"b\"", "tuple", store.Blocker{PID: 70}),
			row(81, "a\x1b[1m, \"b\"", "tuple", store.Blocker{PID: 70}), row(82, "x", "relation", store.Blocker{}, store.Blocker{PID: 999}))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, before, after
}

// TestHistoryCompare compares averages, so the missing half of a span changes nothing. Blockers match without their PIDs, and
// stacks by their functions.
func TestHistoryCompare(t *testing.T) {
	t.Setenv("TZ", "UTC")
	dir, before, after := recordedSpans(t)
	compare := func(more ...string) string {
		t.Helper()
		return history(t, append([]string{
			"--record-dir", dir, "--since", after.Format(time.RFC3339), "--until", after.Add(5 * time.Second).Format(time.RFC3339),
			"--compare", before.Format(time.RFC3339),
		}, more...)...)
	}
	for _, c := range []struct {
		by, want string
	}{
		{"wait", "2.000,1.000,1.000,4.000,4.000,4,4,Lock:tuple\n1.000,0.000,1.000,2.000,0.000,2,0,Lock:relation\n1.000,1.000,0.000,2.000,4.000,2,4,no wait\n"},
		{"query", "2.000,0.000,2.000,4.000,0.000,4,0,\"a?[1m, \"\"b\"\"\"\n"},
		{"blocker", "2.000,1.000,1.000,4.000,4.000,4,4,\"client backend, u, active\"\n" +
			"1.000,0.000,1.000,2.000,0.000,2,0,a process without a record\n1.000,0.000,1.000,2.000,0.000,2,0,prepared transaction\n"},
		{"stack", "4.000,2.000,2.000,8.000,8.000,8,8,epoll_wait < main\n"},
		{"user,wait", ",u,Lock:tuple\n"},
	} {
		got := compare("--by", c.by, "-f", "csv")
		if !strings.Contains(got, "average,average_before,change,seconds,seconds_before,samples,samples_before,"+c.by+"\n") {
			t.Errorf("no header in\n%s", got)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("by %s:\n%s\nwant\n%s", c.by, got, c.want)
		}
	}
	text := compare("--limit", "1")
	for _, want := range []string{"compared with ", "sessions  before  change  wait\n2.00      1.00    +1.00   Lock:tuple", "-- not recorded", "before: 4 sweeps"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "Lock:relation") {
		t.Errorf("--limit has no effect in\n%s", text)
	}
	var c historycmd.Comparison
	if err := json.Unmarshal([]byte(compare("-f", "json", "--by", "wait,user")), &c); err != nil {
		t.Fatal(err)
	}
	if c.Summary.Sweeps != 2 || c.Before.Sweeps != 4 || len(c.Changes) != 3 || c.Changes[1].Change != 1 || c.Changes[1].Keys["user"] != "u" {
		t.Errorf("%+v", c)
	}
}

// TestHistoryCompareRefuses expects messages for spans that cannot be compared, and nothing on the standard output.
func TestHistoryCompareRefuses(t *testing.T) {
	dir, before, after := recordedSpans(t)
	since := []string{"--since", after.Format(time.RFC3339), "--until", after.Add(5 * time.Second).Format(time.RFC3339)}
	for _, c := range []struct {
		at, format, want string
	}{
		{"soon", "text", `"soon" is no time`},
		{after.Format(time.RFC3339), "text", "same time as --since"},
		{"now", "text", "ends in the future"},
		{before.Format(time.RFC3339), "folded", "--compare needs the format text, json or csv"},
		{before.Add(-time.Hour).Format(time.RFC3339), "text", "no history is recorded from"},
		{before.Add(time.Minute).Format(time.RFC3339), "csv", "no history is recorded from"},
	} {
		var stdout, stderr strings.Builder
		arguments := append([]string{"history", "--record-dir", dir, "--compare", c.at, "-f", c.format}, since...)
		status := Main("test", arguments, &stdout, &stderr)
		if status == exitOK || !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
			t.Errorf("%s: status %d, %q, %q", fmt.Sprint(c), status, stdout.String(), stderr.String())
		}
	}
}

// TestHistoryProfiles reads the pprof file back, and expects the time axis with its gap in the page.
func TestHistoryProfiles(t *testing.T) {
	t.Setenv("TZ", "UTC")
	dir, _, after := recordedSpans(t)
	write := func(format string) []byte {
		t.Helper()
		file := filepath.Join(t.TempDir(), "result")
		history(t, "--record-dir", dir, "--since", after.Format(time.RFC3339), "--until", after.Add(5*time.Second).Format(time.RFC3339),
			"-f", format, "-o", file)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	p, err := pprof.ParseData(write("pprof"))
	if err != nil {
		t.Fatal(err)
	}
	total, found := int64(0), false
	for _, s := range p.Sample {
		total += s.Value[1]
		if s.Label["query"] != nil {
			t.Errorf("the text of a query in a pprof file: %v", s.Label)
		}
		found = found || s.Label["pid"][0] == "80" && s.Label["wait_event"][0] == "tuple" && s.Label["user"][0] == "u" &&
			s.Value[0] == 2 && len(s.Location) == 2 && s.Location[0].Line[0].Function.Name == "epoll_wait"
	}
	if total != (8*time.Second).Nanoseconds() || !found || p.TimeNanos != after.UnixNano() || p.DurationNanos != (2*time.Second).Nanoseconds() {
		t.Errorf("%d ns, %s", total, p)
	}
	page := string(write("html"))
	for _, want := range []string{
		`<figure id="timeline"`, `class="t-Lock"`, "sessions by time, at most 4.0", "not recorded: ", "no later sweep is recorded",
		`style-src 'sha256-`, "epoll_wait", "SELECT ?",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing in the page", want)
		}
	}
	figure := page[strings.Index(page, "<figure"):strings.Index(page, "</figure>")]
	if strings.Contains(figure, "style=") || strings.Contains(figure, "<script") {
		t.Errorf("the page's policy forbids parts of\n%s", figure)
	}
}
