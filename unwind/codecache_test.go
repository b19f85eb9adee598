package unwind

import (
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind/codeflow"
)

// TestCodeCache checks that the cache returns the stored results, including errors, and that its size is bounded.
func TestCodeCache(t *testing.T) {
	one, two := codeflow.Place{Addr: 1}, codeflow.Place{Addr: 2}
	var none *CodeCache
	none.keep(1, distances{})
	if _, known := none.find(1); known {
		t.Error("nothing remembers something")
	}
	if row, known := none.row(one); known || row != nil {
		t.Error("nothing remembers a row")
	}
	if _, known := none.called(1); known || none.keepCalled(1, true) != proven || none.keepCalled(1, false) != refuted {
		t.Error("nothing remembers a call")
	}
	var d CodeCache
	failed := errors.New("failed")
	d.keep(1, distances{possible: []int64{8, 24}})
	d.keep(2, distances{err: failed})
	first, ok1 := d.find(1)
	second, ok2 := d.find(2)
	_, ok3 := d.find(3)
	if !ok1 || !ok2 || ok3 || !slices.Equal(first.possible, []int64{8, 24}) || !errors.Is(second.err, failed) {
		t.Errorf("%v %v, %v %v, %v", first, ok1, second, ok2, ok3)
	}
	for _, want := range []bool{false, true, true} {
		if none.again(one) || d.again(one) != want {
			t.Errorf("whether it has been followed before: not %t", want)
		}
	}
	d.keepRow(one, new(codeflow.Row))
	d.keepRow(two, nil)
	d.keepCalled(1, true)
	d.keepCalled(2, false)
	for addr, want := range []struct {
		row, known bool
		called     trialResult
	}{1: {true, true, proven}, 2: {false, true, refuted}, 3: {}} {
		row, known := d.row(codeflow.Place{Addr: uint64(addr)})
		called, also := d.called(uint64(addr))
		if (row != nil) != want.row || known != want.known || also != want.known || called != want.called {
			t.Errorf("%d: %v %t, %v %t", addr, row, known, called, also)
		}
	}
	if _, known := d.row(codeflow.Place{Addr: 1, Exact: true}); known {
		t.Error("what is known of where a call returns is taken for what the processor does there")
	}
	for addr := range uint64(10 * maxTold) {
		d.keep(addr, distances{})
		if len(d.byAddr) > maxTold {
			t.Fatalf("%d addresses are remembered", len(d.byAddr))
		}
	}
}
