package probe

import (
	"testing"
	"time"
)

// TestJudge: within the limit nothing happens, beyond it fewer hits get a stack, and if counting alone is too dear the
// group that costs most is removed.
func TestJudge(t *testing.T) {
	t.Parallel()
	const pid = 7
	process := Process{PID: pid, Started: 1}
	s := &Session{options: Options{
		MaxOverhead: 0.1, Points: []Point{{Emulated: true}, {Emulated: true, Group: 1}, {Group: 2}},
	}}
	for _, c := range []struct {
		name    string
		every   int
		figures map[Key]Figures
		ran     time.Duration
		want    Notice
	}{
		{"no hits", 8, nil, time.Second, Notice{Every: 4}},
		{
			"cheap", 1, map[Key]Figures{{0, process}: {Hits: 1000}}, time.Second,
			Notice{Every: 1, Overhead: 0.001, PID: pid},
		},
		{
			"near the limit", 4, map[Key]Figures{{0, process}: {Hits: 50_000}}, time.Second,
			Notice{Every: 4, Overhead: 0.05, PID: pid},
		},
		{
			"stacks are too dear", 1, map[Key]Figures{{0, process}: {Hits: 50_000, Timed: 150_000_000}}, time.Second,
			Notice{Every: 2, Overhead: 0.2, PID: pid},
		},
		{
			"counting is too dear", 16, map[Key]Figures{
				{0, process}: {Hits: 10_000}, {1, process}: {Hits: 200_000, Failed: 100_000},
			}, time.Second, Notice{Every: 16, Removed: true, Group: 1, Overhead: 0.31, PID: pid},
		},
		{
			"single steps are dearer", 1, map[Key]Figures{{1, process}: {Hits: 15_000}, {2, process}: {Hits: 10_000}},
			time.Second, Notice{Every: 1, Removed: true, Group: 2, Overhead: 0.115, PID: pid},
		},
		{
			"a process that hardly runs", 1, map[Key]Figures{{0, process}: {Hits: 10_000}}, 10 * time.Millisecond,
			Notice{Every: 1},
		},
		{
			"an estimate beyond the whole time", 1, map[Key]Figures{{0, process}: {Hits: 9_000_000}}, time.Second,
			Notice{Every: 1, Removed: true, Overhead: 1, PID: pid},
		},
	} {
		b := budget{
			session: s, cost: Cost{}.withDefaults(), every: c.every, times: map[int]time.Duration{pid: time.Hour},
		}
		if got := b.judge(c.figures, nil, map[int]time.Duration{pid: time.Hour + c.ran}, window); got != c.want {
			t.Errorf("%s: %+v, not %+v", c.name, got, c.want)
		}
	}
}

// TestJudgeOthers: processes of other servers are judged as those of the traced one, but for the window of their first
// hit.
func TestJudgeOthers(t *testing.T) {
	t.Parallel()
	const pid = 7
	key := tableKey{Probe: 1, Process: Process{PID: pid, Started: 1}}
	s := &Session{options: Options{MaxOverhead: 0.1, Points: []Point{{Emulated: true}, {Emulated: true, Group: 1}}}}
	for _, c := range []struct {
		name        string
		before, now map[int]time.Duration
		hits        uint64
		want        Notice
	}{
		{
			"too many", map[int]time.Duration{pid: time.Hour}, map[int]time.Duration{pid: time.Hour + time.Second}, 150_000,
			Notice{Every: 1, Removed: true, Group: 1, Overhead: 0.15, PID: pid, Other: true},
		},
		{
			"few", map[int]time.Duration{pid: time.Hour}, map[int]time.Duration{pid: time.Hour + time.Second}, 20_000,
			Notice{Every: 1, Overhead: 0.02, PID: pid, Other: true},
		},
		{"first hits", nil, map[int]time.Duration{pid: time.Second}, 500_000, Notice{Every: 1}},
		{
			"ended at once", nil, nil, 150_000,
			Notice{Every: 1, Removed: true, Group: 1, Overhead: 0.15},
		},
	} {
		b := budget{
			session: s, cost: Cost{}.withDefaults(), every: 1, times: c.before, others: map[tableKey]uint64{key: 1000},
		}
		got := b.judge(nil, map[tableKey]uint64{key: 1000 + c.hits}, c.now, time.Second)
		if got != c.want {
			t.Errorf("%s: %+v, not %+v", c.name, got, c.want)
		}
	}
}

// TestJudgeTogether: the hits of processes that have ended, that are new and have hardly run, and that found no room
// are judged together, by the time of one processor. A new process that has run is judged by itself.
func TestJudgeTogether(t *testing.T) {
	t.Parallel()
	s := &Session{options: Options{MaxOverhead: 0.1, Points: []Point{{Emulated: true}, {Emulated: true, Group: 1}}}}
	ended, lasting, other := Process{PID: 7, Started: 1}, Process{PID: 8, Started: 2}, Process{PID: 9, Started: 3}
	for _, c := range []struct {
		name    string
		figures map[Key]Figures
		times   map[int]time.Duration
		want    Notice
	}{
		{"little in an ended process", map[Key]Figures{{0, ended}: {Hits: 90_000}}, nil, Notice{Every: 2, Overhead: 0.09}},
		{
			"counting in an ended process", map[Key]Figures{{0, ended}: {Hits: 10_000}, {1, ended}: {Hits: 150_000}}, nil,
			Notice{Every: 2, Removed: true, Group: 1, Overhead: 0.16},
		},
		{
			"stacks of many processes", map[Key]Figures{
				{0, ended}: {Hits: 30_000, Timed: 40_000_000}, {0, other}: {Hits: 30_000, Timed: 40_000_000},
				{0, Process{}}: {Hits: 10_000},
			}, map[int]time.Duration{other.PID: least / 2}, Notice{Every: 4, Overhead: 0.15},
		},
		{
			"no room", map[Key]Figures{{1, Process{}}: {Hits: 150_000}}, nil,
			Notice{Every: 2, Removed: true, Group: 1, Overhead: 0.15},
		},
		{
			"a new process that has run", map[Key]Figures{{0, other}: {Hits: 120_000}},
			map[int]time.Duration{other.PID: 2 * time.Second}, Notice{Every: 2, Overhead: 0.06, PID: other.PID},
		},
		{
			"a new process with an old PID", map[Key]Figures{{1, lasting}: {Hits: 50_000}},
			map[int]time.Duration{lasting.PID: 100 * time.Millisecond},
			Notice{Every: 2, Removed: true, Group: 1, Overhead: 0.5, PID: lasting.PID},
		},
		{
			"an old process that hardly runs", map[Key]Figures{{0, lasting}: {Hits: 150_000}},
			map[int]time.Duration{lasting.PID: time.Hour + least/2}, Notice{Every: 1},
		},
	} {
		b := budget{
			session: s, cost: Cost{}.withDefaults(), every: 2,
			times: map[int]time.Duration{ended.PID: time.Hour, lasting.PID: time.Hour},
		}
		if got := b.judge(c.figures, nil, c.times, time.Second); got != c.want {
			t.Errorf("%s: %+v, not %+v", c.name, got, c.want)
		}
	}
}
