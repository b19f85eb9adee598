package capture

import (
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming"
)

// bareModules hides the call frame information of the images with a given name.
type bareModules struct {
	*naming.Space

	name string
}

func (m bareModules) Find(addr uint64) (unwind.Module, bool) {
	module, ok := m.Space.Find(addr)
	if _, f, found := m.Lookup(addr); found && f.Module != nil && strings.HasPrefix(f.Module.Name, m.name) {
		module.CFI = nil
	}
	return module, ok
}

// TestInstructionsAreNeverWrong stops busy backends at random times and unwinds each stack twice. The second time,
// the C library's call frame information is ignored, as if it were Alpine's. The frames found by instructions may be
// fewer but must not differ.
func TestInstructionsAreNeverWrong(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		if testing.Short() {
			t.Skip("takes long: not with -short")
		}
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		c, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		var sum, blocked bareTally
		for _, sql := range busy {
			whileBusy(t, server, sql, func(s *snapshot.Snapshot) {
				space := c.processes.Open(s.PID, 1, s.Maps)
				sum.compare(t, c.arch, s, space, bareModules{space, "libc.so"}, false)
				blocked.compare(t, c.arch, s, space, bareModules{space, "libc.so"}, true)
			})
		}
		for what, sum := range map[string]bareTally{"": sum, ", by two registers alone": blocked} {
			figure.Printf(t, "%d stacks without call frame information of the C library%s: %d followed to where nothing "+
				"returns any more, %d with a guess; %d frames by instructions", sum.all, what, sum.whole, sum.guessed, sum.frames)
			if sum.frames == 0 || sum.whole*2 < sum.all {
				t.Errorf("%d of %d stacks whole%s, %d frames by instructions", sum.whole, sum.all, what, sum.frames)
			}
		}
	})
}

// bareTally counts stacks, and frames by instructions.
type bareTally struct{ all, whole, guessed, frames int }

func (n *bareTally) compare(t *testing.T, a *arch.Arch, s *snapshot.Snapshot, space *naming.Space,
	bare unwind.Modules, few bool,
) {
	t.Helper()
	th := &s.Threads[0]
	regs, err := a.DecodePRStatus(th.Registers)
	if err != nil {
		t.Fatal(err)
	}
	u := unwind.Unwinder{Arch: a}
	mem := newMemory(th, nil, a)
	want, stop := u.Unwind(nil, regs, mem, space)
	if !stop.Whole() {
		return
	}
	if few { // as of a process that is seen asleep
		known := regs
		regs = arch.Registers{}
		for _, reg := range []int{a.PC, a.SP} {
			v, _ := known.Get(reg)
			regs.Set(reg, v)
		}
	}
	got, stop := u.Unwind(nil, regs, mem, bare)
	n.all++
	for i, f := range got {
		switch f.Method {
		case unwind.ByInstructions:
			n.frames++
		case unwind.ByRegisters, unwind.ByCFI, unwind.BySignalFrame, unwind.ByRecovery:
		default:
			n.guessed++
			return // it is marked
		}
		if i >= len(want) || f.PC != want[i].PC {
			t.Errorf("frame %d of %d differs: %#x\n%+v\n%+v (%v)", i, len(got), f.PC, want, got, stop)
			return
		}
	}
	if stop.Reason == unwind.NeverReturns {
		n.whole++
	}
}
