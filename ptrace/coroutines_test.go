package ptrace

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"pg_stat_backtrace/ptrace/snapshot"
)

// coroutinesOf starts testdata/coroutines.c. It returns the request for its coroutines, and the limits of their
// stack.
func coroutinesOf(t *testing.T, what string) (c *child, wanted *snapshot.Coroutines, low, high uint64) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the thread pointer is among the general registers on x86-64 only")
	}
	if targetProgram == "" {
		t.Skip("no gcc to compile testdata/coroutines.c with")
	}
	exe := filepath.Join(t.TempDir(), "coroutines")
	if out, err := exec.Command("gcc", "-O1", "-o", exe, "testdata/coroutines.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c = startChild(t, exec.Command(exe, what))
	root := snapshot.Root{Register: 21 * 8} // fs_base
	if _, err := fmt.Sscanf(c.first, "ready %d 0x%x 0x%x", &root.Offset, &low, &high); err != nil {
		t.Fatalf("%q: %v", c.first, err)
	}
	return c, &snapshot.Coroutines{
		Roots: []snapshot.Root{
			{Register: -8}, {Register: 21*8 + 4}, {Register: 20 * 8, Offset: 8}, {Register: 21 * 8, Offset: 1 << 40}, root,
		},
		Low: 0, High: 8, Owner: 48, Saved: 56, Size: 64, OwnerSize: 256,
	}, low, high
}

// at returns the copied data from an address on.
func at(pieces []snapshot.Stack, addr uint64) []byte {
	for _, p := range pieces {
		if addr >= p.Start && addr < p.Start+uint64(len(p.Data)) {
			return p.Data[addr-p.Start:]
		}
	}
	return nil
}

// TestCoroutines checks that the inactive stack is copied from its used part on. No stack is copied beyond its end,
// except the thread's own.
func TestCoroutines(t *testing.T) {
	t.Parallel()
	const left = 4096 // bytes in use of the coroutine's stack
	text := []byte("where it was left\x00")
	for _, what := range []string{"own", "lower"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, wanted, _, high := coroutinesOf(t, what)
			untilState(t, c.pid, 'S')
			s := mustCapture(t, c.pid, snapshot.Options{Coroutines: wanted})
			used := uint64(left)
			if what == "lower" {
				used *= 2
			}
			th := &s.Threads[0]
			if got := at(th.Others, high-used); uint64(len(got)) != used || !bytes.HasPrefix(got[used-left:], text) {
				t.Errorf("%d bytes from 0x%x on", len(got), high-used)
			}
			if plain := mustCapture(t, c.pid, snapshot.Options{}); len(plain.Threads[0].Stack.Data) != len(th.Stack.Data) ||
				plain.Threads[0].Others != nil {
				t.Error("the thread's own stack does not go to the end of its mapping")
			}
		})
	}
	t.Run("other", func(t *testing.T) {
		t.Parallel()
		c, wanted, low, high := coroutinesOf(t, "other")
		untilState(t, c.pid, 'S')
		s, err := Capture(t.Context(), anyTarget(c.pid), snapshot.Options{Coroutines: wanted, Deadline: patience})
		if err != nil {
			t.Fatal(err)
		}
		checkUnharmed(t, c.pid)
		th := &s.Threads[0]
		if th.Stack.Start < low || th.Stack.Start+uint64(len(th.Stack.Data)) != high || th.Stack.Cut {
			t.Errorf("a stack of %d bytes from 0x%x on, not one that ends at 0x%x", len(th.Stack.Data), th.Stack.Start, high)
		}
		last := th.Others[len(th.Others)-1]
		for i := range s.Maps {
			m, end := &s.Maps[i], last.Start+uint64(len(last.Data))
			if last.Start >= m.Start && last.Start < m.End && (end != m.End || m.Start <= low && low < m.End) {
				t.Errorf("the thread's own stack ends at 0x%x, not at 0x%x", end, m.End)
			}
		}
	})
}

// TestCoroutinesAtInvalidAddresses: from structures that do not belong together nothing is copied.
func TestCoroutinesAtInvalidAddresses(t *testing.T) {
	t.Parallel()
	for what, most := range map[string]int{"stranger": 0, "empty": 1, "nowhere": 0, "odd": 0, "none": 0} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, wanted, _, _ := coroutinesOf(t, what)
			untilState(t, c.pid, 'S')
			s := mustCapture(t, c.pid, snapshot.Options{Coroutines: wanted})
			if n := len(s.Threads[0].Others); n > most {
				t.Errorf("%d pieces", n)
			}
			if len(s.Threads[0].Stack.Data) == 0 {
				t.Error("no stack")
			}
		})
	}
	c, wanted, _, _ := coroutinesOf(t, "own")
	for _, change := range []func(*snapshot.Coroutines){
		func(c *snapshot.Coroutines) { c.Size = maxStructure + 8 }, func(c *snapshot.Coroutines) { c.OwnerSize = 1 << 20 },
		func(c *snapshot.Coroutines) { c.OwnerSize = 0 }, func(c *snapshot.Coroutines) { c.High = 60 },
		func(c *snapshot.Coroutines) { c.Saved = -8 },
		func(c *snapshot.Coroutines) { c.Roots = nil },
	} {
		wrong := *wanted
		change(&wrong)
		if s := mustCapture(t, c.pid, snapshot.Options{Coroutines: &wrong}); s.Threads[0].Others != nil {
			t.Errorf("%+v: %d pieces", wrong, len(s.Threads[0].Others))
		}
	}
}

// TestCoroutinesOfHostileProcess captures a process whose structures constantly point to arbitrary addresses. The
// copies must stay within the limits, and the process must stay unharmed.
func TestCoroutinesOfHostileProcess(t *testing.T) {
	t.Parallel()
	c, wanted, _, _ := coroutinesOf(t, "churn")
	const most = 256 << 10
	found := 0
	for range 300 {
		s, err := Capture(t.Context(), anyTarget(c.pid), snapshot.Options{Coroutines: wanted, MaxStack: most, Deadline: patience})
		if err != nil {
			t.Fatal(err)
		}
		checkUnharmed(t, c.pid)
		others, size := s.Threads[0].Others, 0
		for _, o := range others {
			size += len(o.Data)
		}
		if len(others) > maxParts || size > 2*most {
			t.Fatalf("%d pieces of %d bytes", len(others), size)
		}
		found += len(others)
	}
	if found == 0 {
		t.Error("nothing was ever found")
	}
}
