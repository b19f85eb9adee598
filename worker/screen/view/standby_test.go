package view

import (
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/screen/source"
)

// TestReplayLine: the page Load of a standby says how far replay is.
func TestReplayLine(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]*source.Replay{
		"standby: replay is 120 MB behind the received WAL, and has not advanced for 8 min; it is paused": {
			LagBytes: new(uint64(120 << 20)), Since: ago(8 * time.Minute), Paused: true,
		},
		"standby: all received WAL is replayed":           {LagBytes: new(uint64(0))},
		"standby: it has received no WAL since its start": {},
	} {
		d := incident()
		d.Info.Replay = r
		if got := picture(PageLoad, 120, 40, d, nil); !strings.Contains(got, "\n "+want+"\n") {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if got := picture(PageLoad, 120, 40, incident(), nil); strings.Contains(got, "standby") {
		t.Errorf("a primary:\n%s", got)
	}
}

// TestFilterIsNamed: each page names the filter, and the keys that remove it there.
func TestFilterIsNamed(t *testing.T) {
	t.Parallel()
	for page, want := range map[Page]string{
		PageLoad: "only user = web  (Backspace: wider, r: all)", PageFlame: "only user = web  (Backspace: wider, r: all)",
		PageBlocking: "filter of Load, Who and Flame: user = web  (r removes it)", PageSession: "filter of Load, Who and Flame: user = web  (r removes it)",
	} {
		got := picture(page, 100, 40, incident(), func(s *State, _ *Grid) { s.Filter = source.Filter{{By: source.ByUser, Key: "10", Name: "web"}} })
		if !strings.Contains(got, want) {
			t.Errorf("page %d: no %q in\n%s", page, want, got)
		}
	}
	s := NewState("")
	s.Page, s.PID, s.Filter = PageSession, 4712, source.Filter{{By: source.ByUser, Key: "10"}}
	if Handle(s, incident(), "r"); len(s.Filter) != 0 {
		t.Error("r does not remove the filter")
	}
}

// TestPlanOfACommand: the panel of a command without a plan shows its progress.
func TestPlanOfACommand(t *testing.T) {
	t.Parallel()
	d := incident()
	d.Plan = &source.Plan{Time: noon, Engine: "blocked", Levels: []source.PlanLevel{}, Progress: &source.Progress{
		Time: noon, Text: "VACUUM on orders: scanning heap, 0 of 569 blocks", View: "pg_stat_progress_vacuum",
		Columns: []source.ProgressColumn{{Name: "heap_blks_total", Value: "569"}},
	}}
	for _, failed := range []bool{false, true} {
		if failed {
			d.Plan.Engine, d.Plan.Levels = "", []source.PlanLevel{{Reason: "the stack changes"}}
		}
		got := picture(PageSession, 120, 40, d, nil)
		if !strings.Contains(got, "scanning heap, 0 of 569 blocks") || !strings.Contains(got, "  heap_blks_total: 569") ||
			strings.Contains(got, "executes no plan") || strings.Contains(got, "outer statements") || strings.Contains(got, "✗ the stack changes") != failed {
			t.Errorf("%s", got)
		}
	}
}
