package incident

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
)

// chain is an incident in which two sessions wait for the same lock, with equal stacks.
func chain(at time.Time) *Incident {
	waits := func(pid int32) Session {
		return Session{PID: pid, User: "app", Database: "shop", State: "active", WaitType: "Lock", BlockedBy: []store.Blocker{{PID: 471, Object: "orders"}}}
	}
	list := []Session{
		{PID: 471, User: "app", Database: "shop", App: "crm", State: "idle in transaction"}, waits(472), waits(473),
		{PID: 474, Type: "startup", BlockedBy: []store.Blocker{{PID: 471}}},
	}
	stack := func(pid int32, phrase, innermost string) ProcessStack {
		return ProcessStack{PID: pid, Time: at, Stack: &recorder.Stack{Frames: []string{innermost, "main"}, Phrase: phrase}}
	}
	return &Incident{
		Schema: Schema, ID: newID(at, rules.LockWait), Time: at, Sessions: list, Forest: forest(list),
		Reason: rules.Finding{Rule: rules.LockWait, Root: 471, Summary: "2 sessions wait for a lock behind process 471, the longest for 6 s", Since: at},
		Stacks: []ProcessStack{
			stack(471, "waits for its client", "epoll_wait"), stack(472, "waits for a row", "ProcSleep"), stack(473, "waits for another row", "ProcSleep"),
			{PID: 475, Error: "it has ended"},
		},
	}
}

// TestAge expects no age for a time in the future, as after the clock was set back.
func TestAge(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for ahead, want := range map[time.Duration]string{-2 * time.Second: "2.0 s", time.Second: "0 ms", time.Hour: ""} {
		since := now.Add(ahead)
		if got := age(now, &since); got != want {
			t.Errorf("%s ahead: %q, want %q", ahead, got, want)
		}
	}
	if got := age(now, nil); got != "" {
		t.Errorf("no time: %q", got)
	}
}

// TestText expects each stack once, the owner of the process that blocks others, and no owner of a process without one.
func TestText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 3, 0, 12, 0, time.UTC)
	i := chain(at)
	var b strings.Builder
	if err := Text(&b, i); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"behind process 471 (crm app@shop), the longest for 6 s\n", "or before, no end seen\n", "\nstack of 471 at 03:00:12: waits for its client\n    epoll_wait\n    main\n",
		"\n2 processes with the same stack:\n  472 at 03:00:12: waits for a row\n  473 at 03:00:12: waits for another row\n    ProcSleep\n    main\n",
		"\nstack of 475: it has ended\n", "\n    474 wants  on  startup\n", "\n  471 crm app@shop idle in transaction\n",
	} {
		if !strings.Contains(b.String(), want) && !strings.Contains(strings.ReplaceAll(b.String(), " wants  on ", ""), strings.ReplaceAll(want, " wants  on ", "")) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if text := b.String(); strings.Contains(text, "-@-") || strings.Count(text, "ProcSleep") != 1 {
		t.Errorf("an owner that is not known, or a stack twice:\n%s", text)
	}
	for summary, want := range map[string]string{
		"process 4711 runs": "process 4711 runs", "process 471": "process 471 (crm app@shop)", "nothing": "nothing",
	} {
		i.Reason.Summary = summary
		if got := i.Headline(); got != want {
			t.Errorf("%q: %q, want %q", summary, got, want)
		}
	}
}

// TestEnd writes the end of an incident. This removes no other incident.
func TestEnd(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 3, 0, 12, 0, time.UTC)
	d := Dir{Path: filepath.Join(t.TempDir(), "incidents"), Keep: 2}
	var ids []string
	for n := range 2 {
		i := chain(at.Add(time.Duration(n) * time.Minute))
		if _, err := d.Write(i); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, i.ID)
	}
	ended := at.Add(90 * time.Second)
	if err := d.End(ids[1], ended); err != nil {
		t.Fatal(err)
	}
	for n, id := range ids {
		i, err := d.Read(id)
		if err != nil {
			t.Fatal(err)
		}
		if (i.Ended != nil) != (n == 1) || n == 1 && !i.Ended.Equal(ended) {
			t.Errorf("incident %d ended %v", n, i.Ended)
		}
		page, err := os.ReadFile(filepath.Join(d.Path, id+".html"))
		if err != nil || strings.Contains(string(page), "03:01:42") != (n == 1) {
			t.Errorf("page of incident %d: %v\n%.2000s", n, err, page)
		}
		var text strings.Builder
		if err := Text(&text, i); err != nil || strings.Contains(text.String(), "ended 2026-11-28 03:01:42 UTC") != (n == 1) {
			t.Errorf("%v\n%s", err, text.String())
		}
	}
	if err := d.End("20260102T030405Z-lock_wait-0001", ended); err != nil {
		t.Errorf("an incident that was removed: %v", err)
	}
}
