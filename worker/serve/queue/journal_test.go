package queue

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestJournal(t *testing.T) {
	var j Journal
	news := make(chan string, 10)
	j.onNewcomer(func(database string) { news <- database })
	j.Add("a", Row{PID: 1})
	j.Add("a", Row{PID: 2})
	if got := <-news; got != "a" || len(news) != 0 {
		t.Errorf("told of %q, and %d more", got, len(news))
	}
	s := &session{database: "a", lease: &lease{signal: make(chan struct{}, 1)}}
	j.attach(s)
	if rows := j.take("a"); len(rows) != 2 || rows[0].PID != 1 {
		t.Errorf("%+v", rows)
	}
	j.Add("a", Row{PID: 3})
	select {
	case <-s.lease.signal:
	case <-time.After(time.Minute):
		t.Error("the session is not woken")
	}
	j.putBack("a", []Row{{PID: 2}})
	if rows := j.take("a"); len(rows) != 2 || rows[0].PID != 2 || rows[1].PID != 3 {
		t.Errorf("after putting one back: %+v", rows)
	}
	other := &session{database: "a", lease: &lease{signal: make(chan struct{}, 1)}}
	j.attach(other)
	j.detach(s) // too late: another one has taken over
	for range journalBatch {
		j.Add("a", Row{})
	}
	if len(other.lease.signal) != 1 {
		t.Error("a full batch wakes nobody")
	}
}

// TestJournalBounds checks that a database whose rows cannot be written loses only its own newest rows.
func TestJournalBounds(t *testing.T) {
	var j Journal
	long := Row{Result: Result{Message: strings.Repeat("é", 31_000), SQLState: "22023"}}
	for range 10_000 {
		j.Add("a", long)
	}
	for i := range 100 {
		j.Add("b", Row{PID: i})
	}
	if j.bytes > journalBytes+100*300 {
		t.Errorf("the rows take %d bytes", j.bytes)
	}
	lost := j.lost()
	kept := 0
	for rows := j.take("a"); rows != nil; rows = j.take("a") {
		kept += len(rows)
		if m := rows[0].Result.Message; len(m) > journalText+3 || !utf8.ValidString(m) {
			t.Fatalf("a message of %d bytes", len(m))
		}
	}
	if lost["a"] != 10_000-kept || len(lost) != 1 || kept == 0 || j.lost() != nil {
		t.Errorf("lost %v, kept %d", lost, kept)
	}
	if rows := j.take("b"); len(rows) != 100 || rows[99].PID != 99 || j.bytes != 0 {
		t.Errorf("of another database %d rows are left, and %d bytes", len(rows), j.bytes)
	}
	j.testTotal(t, long)
	j.Add("a", Row{})
	j.retain(map[string]bool{"b": true})
	if j.bytes != 0 || len(j.places) != 0 {
		t.Errorf("a dropped database: %d bytes in %d places", j.bytes, len(j.places))
	}
	j.Add("a", Row{})
	j.suspend(true)
	j.Add("a", Row{})
	j.putBack("a", []Row{{}})
	if j.bytes != 0 || j.take("a") != nil {
		t.Errorf("during recovery: %d bytes", j.bytes)
	}
	j.suspend(false)
	j.Add("a", Row{})
	j.discard("a")
	j.discard("b")
	if j.bytes != 0 || j.take("a") != nil {
		t.Errorf("without the extension: %d bytes", j.bytes)
	}
}

// TestJournalOfRenamedDatabase: unwritten rows follow a database to its new name, also if another database gets the former one.
func TestJournalOfRenamedDatabase(t *testing.T) {
	t.Parallel()
	var j Journal
	add := func(database string, pids ...int) {
		for _, pid := range pids {
			j.Add(database, Row{PID: pid})
		}
	}
	add("app", 1, 2)
	add("app_new", 3)
	add("other", 4)
	q := Queue{names: map[uint32]string{1: "app", 2: "app_new", 3: "other", 4: "quiet"}}
	now := []database{{oid: 1, name: "app_old"}, {oid: 2, name: "app"}, {oid: 3, name: "other"}, {oid: 4, name: "quieter"}}
	add("app_old", 5) // before the queue has seen the new name
	j.rename(q.renamed(now))
	j.retain(map[string]bool{"app_old": true, "app": true, "other": true, "quieter": true})
	if again := q.renamed(now); len(again) != 0 {
		t.Errorf("renamed twice: %v", again)
	}
	for name, want := range map[string][]int{"app_old": {1, 2, 5}, "app": {3}, "other": {4}, "app_new": nil} {
		var got []int
		for _, row := range j.take(name) {
			got = append(got, row.PID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the rows %v, not %v", name, got, want)
		}
	}
	if j.retain(nil); j.bytes != 0 || len(j.places) != 0 || j.lost() != nil {
		t.Errorf("%d bytes in %d places are left", j.bytes, len(j.places))
	}
}

// testTotal: where many databases together have too much, the largest gives its newest rows.
func (j *Journal) testTotal(t *testing.T, long Row) {
	t.Helper()
	for i := range 20 {
		for range 3000 {
			j.Add(string(rune('A'+i)), long)
		}
	}
	j.Add("small", Row{PID: 1})
	if j.bytes > journalTotal {
		t.Errorf("all databases take %d bytes", j.bytes)
	}
	if rows := j.take("small"); len(rows) != 1 {
		t.Error("a database with one row has lost it")
	}
	for i := range 20 {
		if rows := j.take(string(rune('A' + i))); len(rows) == 0 {
			t.Errorf("database %d has lost all", i)
		}
	}
	j.retain(nil)
	j.lost()
}

func BenchmarkJournalAdd(b *testing.B) {
	var j Journal
	j.attach(&session{database: "a", lease: &lease{signal: make(chan struct{}, 1)}})
	for b.Loop() {
		j.Add("a", Row{})
		if len(j.places["a"].rows) == journalBatch {
			j.take("a")
		}
	}
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string][2]string{
		"#0 a\n\tb":    {"#0 a\n\tb", "#0 a\n\tb"},
		"é€😀":          {"é€😀", `\u00e9\u20ac\U0001f600`},
		"\x00\x7f\r":   {`\x00\x7f\x0d`, `\x00\x7f\x0d`},
		"a\xff":        {`a\xff`, `a\xff`},
		"\u202e\u2028": {`\u202e\u2028`, `\u202e\u2028`},
		"\u0085":       {`\u0085`, `\u0085`},
	} {
		if got := [2]string{Printable(s, false), Printable(s, true)}; got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

// FuzzPrintable checks the properties that the database relies on.
func FuzzPrintable(f *testing.F) {
	f.Add("#0 é\x00\xff", true)
	f.Fuzz(func(t *testing.T, s string, ascii bool) {
		got := Printable(s, ascii)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) ||
			ascii && strings.IndexFunc(got, func(r rune) bool { return r > 0x7e }) >= 0 {
			t.Errorf("%q", got)
		}
	})
}
