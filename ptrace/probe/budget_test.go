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
		if got := b.judge(c.figures, map[int]time.Duration{pid: time.Hour + c.ran}); got != c.want {
			t.Errorf("%s: %+v, not %+v", c.name, got, c.want)
		}
	}
}
