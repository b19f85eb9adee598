package measurecmd

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/measure/heap"
	"pg_stat_backtrace/worker/pg/state"
)

// TestShareOfBudget: a number without a unit is a percentage, as with trace.
func TestShareOfBudget(t *testing.T) {
	for text, want := range map[string]float64{"1": 0.01, "1%": 0.01, "0.5": 0.005, "100": 1, "10 %": 0.1} {
		f := allocationFlags{maxOverhead: text, duration: time.Second, sample: heap.InuseSpace}
		if _, got, err := f.check(console.FormatText, []string{"1"}); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// TestTraceLimited checks that a trace without one of its probes is no success.
func TestTraceLimited(t *testing.T) {
	t.Parallel()
	f := traceFlags{duration: 10 * time.Second}
	if err := f.limited(&functrace.Result{Took: time.Second, Notes: []string{"note"}}); err != nil {
		t.Errorf("a trace with all probes: %v", err)
	}
	err := f.limited(&functrace.Result{Took: 1500 * time.Millisecond, Removed: []string{"the probe of f was removed"}})
	if !errors.Is(err, console.ErrLimited) || !strings.Contains(err.Error(), "the probe of f was removed, after 1.5 s of 10s") {
		t.Errorf("a trace without a probe: %v", err)
	}
}

// TestSelectSessions: an ended process whose id another process has now is of no known user.
func TestSelectSessions(t *testing.T) {
	t.Parallel()
	f := waitsFilter{users: []string{"a"}}
	events := []waits.Event{{ID: 1, Calls: 1}}
	all := &waits.Snapshot{Ended: events, Processes: []waits.Process{
		{PID: 1, Events: events}, {PID: 2, Ended: true, Events: events}, {PID: 2, Events: events}, {PID: 3, Ended: true, Events: events},
		{PID: 4, Events: events}, {PID: 5, Events: events},
	}}
	some, unknown := f.selectSessions(all, nil, func(pid int) (state.SessionNames, bool) {
		names := map[int]string{1: "a", 2: "a", 3: "a", 4: "b"}
		return state.SessionNames{User: names[pid], UserOID: 10}, names[pid] != ""
	})
	var pids []int
	for _, p := range some.Processes {
		pids = append(pids, p.PID)
	}
	if !slices.Equal(pids, []int{1, 2, 3}) || some.Processes[1].Ended || unknown != 2 || some.Ended != nil || len(all.Processes) != 6 {
		t.Errorf("%v, %d unknown", pids, unknown)
	}
}

// TestStackRate: more stacks in a second than allowed are noticed, and as many in a longer time are not.
func TestStackRate(t *testing.T) {
	start := time.Now()
	var steady, burst stackRate
	for i := range 100 {
		if steady.add(maxStackRate/20, start.Add(time.Duration(i)*60*time.Millisecond)) {
			t.Fatalf("too many after %d steps", i)
		}
	}
	soon, later := start.Add(time.Millisecond), start.Add(time.Hour)
	if burst.add(maxStackRate, start) || !burst.add(1, soon) || !burst.add(0, later) {
		t.Error("a burst was not noticed, or was forgotten")
	}
}
