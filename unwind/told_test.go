package unwind

import (
	"errors"
	"slices"
	"testing"
)

// TestTold: what is remembered is what was found, errors too, of a bounded number of addresses.
func TestTold(t *testing.T) {
	var none *Told
	none.keep(1, distances{})
	if _, known := none.find(1); known {
		t.Error("nothing remembers something")
	}
	var d Told
	failed := errors.New("failed")
	d.keep(1, distances{possible: []int64{8, 24}})
	d.keep(2, distances{err: failed})
	one, ok1 := d.find(1)
	two, ok2 := d.find(2)
	_, ok3 := d.find(3)
	if !ok1 || !ok2 || ok3 || !slices.Equal(one.possible, []int64{8, 24}) || !errors.Is(two.err, failed) {
		t.Errorf("%v %v, %v %v, %v", one, ok1, two, ok2, ok3)
	}
	for addr := range uint64(10 * maxTold) {
		d.keep(addr, distances{})
		if len(d.byAddr) > maxTold {
			t.Fatalf("%d addresses are remembered", len(d.byAddr))
		}
	}
}
