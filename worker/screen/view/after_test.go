package view

import (
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/screen/source"
)

// TestAfter expects no age for a time in the future, as with a server or worker whose clock is ahead.
func TestAfter(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	for ahead, want := range map[time.Duration]string{
		-2 * time.Second: " for 2.0 s", 0: " for 0 ms", time.Second: " for 0 ms", 1001 * time.Millisecond: "", time.Hour: "",
	} {
		since := at.Add(ahead)
		if got := after(" for ", at, &since); got != want {
			t.Errorf("%s ahead: %q, want %q", ahead, got, want)
		}
	}
	if got := after(" for ", at, nil); got != "" {
		t.Errorf("no time: %q", got)
	}
}

// TestFindingFromTheFuture: a fact of which the begin is in the future has no age on the page.
func TestFindingFromTheFuture(t *testing.T) {
	t.Parallel()
	ahead := ago(-time.Hour)
	d := incident()
	for i := range d.Findings.Findings {
		d.Findings.Findings[i].Since = *ahead
	}
	d.Info.Replay = &source.Replay{LagBytes: new(uint64(1 << 20)), Since: ahead}
	g := NewGrid(120, 40)
	Draw(g, NewState("/srv/pg"), d, noon)
	if text := g.Plain(); strings.Contains(text, "0 ms") || strings.Contains(text, "≥") || strings.Contains(text, "not advanced") {
		t.Error(text)
	}
}
