package capture

import (
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/symbol"
)

// TestPrefetch checks that symbols and lines for the innermost frame are read as soon as the stack is unwound, and
// once.
func TestPrefetch(t *testing.T) {
	c, snap, sp := snapshotOf(t, "5")
	u := unwind.Unwinder{Arch: c.arch}
	frames, _ := c.unwindThread(nil, &u, &snap.Threads[0], nil, sp)
	_, where, _ := sp.Lookup(frames[0].Lookup())
	m := where.Module
	begun := true
	symbols, _ := m.Symbols.Get(nil, m.Warn, func() *symbol.Table { begun = false; return nil })
	if !begun || symbols.Len() == 0 {
		t.Errorf("the symbols of %s were not read while the stack was unwound: %d", m.Name, symbols.Len())
	}
	addr := frames[0].Lookup() - where.Bias
	// Without debugging information it stays a wish.
	if !m.LinesRequested(addr) {
		t.Errorf("nor is the line of %#x looked up", addr)
	}
	if !sp.FirstInImage {
		t.Error("the images of the other frames are not expected to be new")
	}
	if _, _ = sp.Name(frames, unwind.DefaultMaxFrames, nil); sp.FirstInImage {
		t.Error("nor when the stack has been named")
	}
	if _, _ = c.unwindThread(nil, &u, &snap.Threads[0], nil, sp); sp.FirstInImage {
		t.Errorf("%s is new a second time", m.Name)
	}
	c, snap, sp = snapshotOf(t, "5")
	regs, err := c.arch.DecodePRStatus(snap.Threads[0].Registers)
	if err != nil {
		t.Fatal(err)
	}
	pc, _ := regs.Get(c.arch.PC)
	_, where, _ = sp.Lookup(pc)
	sp.Name([]unwind.Frame{{PC: pc, Exact: true}}, unwind.DefaultMaxFrames, nil)
	if !where.Module.Prefetched.Load() {
		t.Error("what names a frame that was not unwound from is not read ahead")
	}
}
