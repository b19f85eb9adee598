package plan

import (
	"testing"

	"pg_stat_backtrace/worker/moment"
)

// TestSame has pairs of results of which the second differs in one place.
func TestSame(t *testing.T) {
	t.Parallel()
	levels := func(change func(l *Level)) []*Level {
		l := &Level{
			Source: "q", estate: 1, plannedStmt: 2, root: 3,
			Top: &Node{Kind: "Limit", addr: 3, plan: 4, Rows: 5, Children: []*Node{{Kind: "SeqScan", addr: 6, plan: 7, Width: 8}}},
		}
		if change != nil {
			change(l)
		}
		return []*Level{l}
	}
	none := func(l *Level) { l.Top = nil }
	if !Same(levels(nil), levels(nil)) || !Same(levels(none), levels(none)) || !Same(nil, nil) {
		t.Error("equal results are not the same")
	}
	if Same(levels(nil), nil) || Same(nil, levels(nil)) {
		t.Error("results of one and of no level are the same")
	}
	for name, change := range map[string]func(l *Level){
		"no plan":          none,
		"source":           func(l *Level) { l.Source = "r" },
		"estate":           func(l *Level) { l.estate++ },
		"statement":        func(l *Level) { l.plannedStmt++ },
		"root":             func(l *Level) { l.root++ },
		"address":          func(l *Level) { l.Top.addr++ },
		"plan":             func(l *Level) { l.Top.plan++ },
		"title":            func(l *Level) { l.Top.Kind = "Sort" },
		"label":            func(l *Level) { l.Top.Label = "InitPlan 1" },
		"startup cost":     func(l *Level) { l.Top.Startup++ },
		"total cost":       func(l *Level) { l.Top.Total++ },
		"rows":             func(l *Level) { l.Top.Rows++ },
		"width of a child": func(l *Level) { l.Top.Children[0].Width++ },
		"children":         func(l *Level) { l.Top.Children = nil },
	} {
		if Same(levels(nil), levels(change)) || Same(levels(change), levels(nil)) {
			t.Errorf("%s: different results are the same", name)
		}
	}
}

// TestNumbersOfCommands compares the commands of each version with progress.h: 19 has REPACK, and other numbers.
func TestNumbersOfCommands(t *testing.T) {
	t.Parallel()
	view := func(major, command int) string {
		if r := DescribeCommand(major, &moment.Progress{Command: command}); r != nil {
			return r.View
		}
		return ""
	}
	before := []string{"", "vacuum", "analyze", "cluster", "create_index", "basebackup", "copy", ""}
	for major, want := range map[int][]string{
		13: make([]string, 8), 14: before, 15: before, 16: before, 17: before, 18: before,
		19: {"", "vacuum", "analyze", "create_index", "basebackup", "copy", "repack", ""}, 20: make([]string, 8),
	} {
		for command := range want {
			if got := view(major, command); got != want[command] {
				t.Errorf("PostgreSQL %d, command %d: %q, want %q", major, command, got, want[command])
			}
		}
		if got := view(major, -1); got != "" {
			t.Errorf("PostgreSQL %d, command -1: %q", major, got)
		}
	}
}
