package capture

import (
	"reflect"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming"
)

// TestAnticipate checks that anticipate reads the symbols and lines of the code in which a process sleeps, although
// none of its images is known. For a process that has ended, anticipate reads nothing.
func TestAnticipate(t *testing.T) {
	_, snap, _ := snapshotOf(t, "5")
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	stat, err := process.ReadStat(snap.PID)
	if err != nil {
		t.Fatal(err)
	}
	if !c.images.Empty() {
		t.Fatal("images are known before the first capture")
	}
	c.anticipate(naming.ProcessKey{PID: 1<<31 - 1, StartTime: 1})
	if !c.images.Empty() {
		t.Error("an image of a process that is not there")
	}
	pgtest.Wait(t, "to sleep again after the stop", func() bool {
		call, err := process.ReadSyscall(snap.PID, snap.PID)
		return err == nil && !call.Running
	})
	c.anticipate(naming.ProcessKey{PID: snap.PID, StartTime: stat.StartTime})
	sp := c.processes.Open(snap.PID, stat.StartTime, snap.Maps)
	regs, err := c.arch.DecodePRStatus(snap.Threads[0].Registers)
	if err != nil {
		t.Fatal(err)
	}
	pc, _ := regs.Get(c.arch.PC)
	_, where, _ := sp.Lookup(pc)
	m := where.Module
	if c.images.Empty() || m == nil {
		t.Fatal("no image is known")
	}
	if m.Prefetched.Load() {
		t.Errorf("%s is taken for one in which a frame was", m.Name)
	}
	begun := true
	symbols, _ := m.Symbols.Get(nil, m.Warn, func() *symbol.Table { begun = false; return nil })
	if !begun || symbols == nil {
		t.Fatalf("the symbols of %s are not read", m.Name)
	}
	if addr := pc - where.Bias; !m.LinesRequested(addr) {
		t.Errorf("nor is the line of %#x looked up", addr)
	}
}

// TestAnticipated checks that the first capture of a process, which anticipates, has the same frames as the second.
func TestAnticipated(t *testing.T) {
	_, snap, _ := snapshotOf(t, "5")
	target := process.Target{PID: snap.PID, UID: -1}
	for range 5 {
		c, err := New(Config{LinesWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		first, err := c.Capture(t.Context(), target, Options{})
		if err != nil {
			t.Fatal(err)
		}
		second, err := c.Capture(t.Context(), target, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(first.Threads[0].Frames, second.Threads[0].Frames) {
			t.Fatalf("%v first, then %v", first.Threads[0].Frames, second.Threads[0].Frames)
		}
	}
}
