package queue

import (
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
	s := &session{database: "a", signal: make(chan struct{}, 1)}
	j.attach(s)
	if rows := j.take("a"); len(rows) != 2 || rows[0].PID != 1 {
		t.Errorf("%+v", rows)
	}
	j.Add("a", Row{PID: 3})
	select {
	case <-s.signal:
	case <-time.After(time.Minute):
		t.Error("the session is not woken")
	}
	j.putBack("a", []Row{{PID: 2}})
	if rows := j.take("a"); len(rows) != 2 || rows[0].PID != 2 || rows[1].PID != 3 {
		t.Errorf("after putting one back: %+v", rows)
	}
	other := &session{database: "a", signal: make(chan struct{}, 1)}
	j.attach(other)
	j.detach(s) // too late: another one has taken over
	for range journalBatch {
		j.Add("a", Row{})
	}
	if len(other.signal) != 1 {
		t.Error("a full batch wakes nobody")
	}
}

func TestJournalBounds(t *testing.T) {
	var j Journal
	for range journalRows + 5 {
		j.Add("a", Row{})
	}
	if n := j.lost(); n != 5 || j.total != journalRows || j.lost() != 0 {
		t.Errorf("lost %d, kept %d", n, j.total)
	}
	j.retain(map[string]bool{"b": true})
	if j.total != 0 || len(j.places) != 0 {
		t.Errorf("a dropped database: %d rows in %d places", j.total, len(j.places))
	}
	j.Add("a", Row{})
	j.suspend(true)
	j.Add("a", Row{})
	j.putBack("a", []Row{{}})
	if j.total != 0 || j.take("a") != nil {
		t.Errorf("during recovery: %d rows", j.total)
	}
	j.suspend(false)
	j.Add("a", Row{})
	j.discard("a")
	j.discard("b")
	if j.total != 0 || j.take("a") != nil {
		t.Errorf("without the extension: %d rows", j.total)
	}
}

func BenchmarkJournalAdd(b *testing.B) {
	var j Journal
	j.attach(&session{database: "a", signal: make(chan struct{}, 1)})
	for b.Loop() {
		j.Add("a", Row{})
		if j.total == journalBatch {
			j.take("a")
		}
	}
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string][2]string{
		"#0 a\n\tb":  {"#0 a\n\tb", "#0 a\n\tb"},
		"é€😀":        {"é€😀", `\u00e9\u20ac\U0001f600`},
		"\x00\x7f\r": {`\x00\x7f\x0d`, `\x00\x7f\x0d`},
		"a\xff":      {`a\xff`, `a\xff`},
		"\u0085":     {`\u0085`, `\u0085`},
	} {
		if got := [2]string{Printable(s, false), Printable(s, true)}; got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

// FuzzPrintable holds what the database relies on.
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
