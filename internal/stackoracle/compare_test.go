package stackoracle

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
)

// subject is a stopped process.
type subject struct {
	name  string // the key into the table of differences
	pid   int
	chain []string // functions that follow one another in some thread's stack, innermost first; may be empty
	noGDB bool     // leave gdb out
}

// compare takes the stacks of subjects with all tools and fails the test for each difference that is not explained.
// One capture takes the stacks of all subjects, so that it reads the symbols of a common program once.
func compare(t *testing.T, subjects ...subject) {
	t.Helper()
	before := map[int]string{}
	for _, s := range subjects {
		before[s.pid] = notRunning(t, s)
	}
	all := takeOurs(t, subjects)
	for _, s := range subjects {
		ours := all[s.pid]
		inChain := false
		for tid, one := range ours {
			inChain = inChain || one.has(s.chain)
			if len(one.pcs) == 0 {
				t.Errorf("%s: thread %d has no frame: %s", s.name, tid, one.end)
			}
		}
		if !inChain {
			t.Errorf("%s: no thread's stack has the calls %s\n%s", s.name, strings.Join(s.chain, " <- "), dump(ours))
		}
		callsFit(t, s, ours)
	}
	for _, reference := range []struct {
		name string
		take func(*testing.T, int) stacks
	}{{euStack, takeEuStack}, {gdb, takeGDB}} {
		if _, err := exec.LookPath(reference.name); err != nil {
			t.Logf("%s is not installed: not compared", reference.name)
			continue
		}
		for _, s := range subjects {
			if reference.name != gdb || !s.noGDB {
				notRunning(t, s)
				against(t, s.name, reference.name, all[s.pid], reference.take(t, s.pid))
			}
		}
	}
	unharmed(t, subjects, before, all)
}

// notRunning waits until no thread runs, and returns the threads' states. After each look from outside, threads run for an instant:
// they call the interrupted system call again, and a tool that stops them before the call shows them one instruction earlier.
func notRunning(t *testing.T, s subject) (now string) {
	t.Helper()
	wait(t, s.name+" not running", func() bool {
		now = states(s.pid)
		return !strings.ContainsAny(now, "RtD") // D: it waits for a page of a file
	})
	return now
}

// against compares the stacks of all threads with one reference's.
func against(t *testing.T, name, reference string, ours, other stacks) {
	t.Helper()
	differs := false
	for tid, one := range ours {
		theirs := other[tid]
		if theirs == nil {
			t.Errorf("%s: %s says nothing of thread %d", name, reference, tid)
			continue
		}
		n := tally.of(reference)
		n.stacks++
		n.frames += len(one.pcs)
		level := differ(one, theirs)
		if level < 0 {
			continue
		}
		differs = true
		shown := fmt.Sprintf("%s: thread %d differs from %s at frame %d\n%s", name, tid, reference, level,
			beside(one, theirs, reference, level))
		if d, known := explained(name, reference, one, theirs, level); known {
			n.differing++
			t.Logf("%s right is %s: %s", shown, d.right, d.reason)
		} else {
			t.Error(shown)
		}
	}
	if !differs && expected(name, reference) {
		t.Logf("%s: the table says that %s differs, but here it does not", name, reference)
	}
}

// unharmed checks that the processes are unchanged, and that a second capture gives the same results.
func unharmed(t *testing.T, subjects []subject, before map[int]string, all map[int]stacks) {
	t.Helper()
	for _, s := range subjects {
		wait(t, fmt.Sprintf("%s in state %s again", s.name, before[s.pid]), func() bool {
			return states(s.pid) == before[s.pid]
		})
		if by := tracer(s.pid); by != "0" {
			t.Errorf("%s is traced by process %s", s.name, by)
		}
	}
	const tries = 3 // a thread may wake up for a moment
	for left := tries; left > 0; left-- {
		again := takeOurs(t, subjects)
		moved := slices.DeleteFunc(slices.Clone(subjects), func(s subject) bool {
			_, equal := sameStacks(all[s.pid], again[s.pid])
			return equal
		})
		if len(moved) == 0 {
			return
		}
		if left > 1 {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for _, s := range moved {
			tid, _ := sameStacks(all[s.pid], again[s.pid])
			t.Errorf("%s: a second capture of thread %d says something else; has it moved?\n%s%s", s.name, tid,
				dump(all[s.pid]), dump(again[s.pid]))
		}
	}
}

// sameStacks returns a thread whose stacks differ, or true if there is none.
func sameStacks(ours, again stacks) (tid int, equal bool) {
	for tid, one := range ours {
		if other := again[tid]; other == nil || differ(one, other) >= 0 {
			return tid, false
		}
	}
	return 0, true
}

// tally counts the comparisons of a test. A test without this count may have compared nothing.
var tally = counts{}

// counts are stacks and frames by reference.
type counts map[string]*count

type count struct{ stacks, frames, differing int }

func (c counts) of(reference string) *count {
	if c[reference] == nil {
		c[reference] = new(count)
	}
	return c[reference]
}

// tellTally resets the counts, and prints them when the test ends.
func tellTally(t *testing.T) {
	t.Helper()
	clear(tally)
	t.Cleanup(func() {
		for _, reference := range sortedKeys(tally) {
			n := tally[reference]
			figure.Printf(t, "compared with %s: %d stacks, %d frames of ours; %d stacks differ, as the table explains",
				reference, n.stacks, n.frames, n.differing)
		}
	})
}

// dump shows stacks in full, up to a bound.
func dump(all stacks) string {
	const most = 40
	var text strings.Builder
	for tid, s := range all {
		fmt.Fprintf(&text, "thread %d\n", tid)
		for i := range min(most, len(s.pcs)) {
			fmt.Fprintf(&text, "#%-4d%#x %s\n", i, s.pcs[i], s.names[i])
		}
		fmt.Fprintf(&text, "%d frames, end: %s\n", len(s.pcs), s.end)
	}
	return text.String()
}
