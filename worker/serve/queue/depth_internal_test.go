package queue

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// TestDepths: the length counts the queues of all databases, or is not known.
func TestDepths(t *testing.T) {
	d := &Depths{}
	state := func(want string) {
		t.Helper()
		waiting, claimed, oldest, ok := d.Sum()
		got := fmt.Sprintf("%d %d %s %t, lost: %t", waiting, claimed, oldest.Round(time.Minute), ok, d.Lost() > 0)
		if got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
	const unknown, lost = "0 0 0s false, lost: false", "0 0 0s false, lost: true"
	state(unknown)
	d.lose("a")
	state(unknown) // it may have no queue
	d.expect("a")
	d.expect("b")
	state(unknown)
	d.open("a")
	if !d.due("a") {
		t.Error("a new session does not measure")
	}
	d.set("a", depth{queued: 3, claimed: 1, oldest: time.Now().Add(-time.Hour)})
	state(unknown) // b has not been visited
	d.forget("b")
	state("2 1 1h0m0s true, lost: false")
	d.expect("a")
	d.lose("b")
	state("2 1 1h0m0s true, lost: false")
	d.open("b")
	d.set("b", depth{queued: 1})
	state("3 1 1h0m0s true, lost: false")
	d.lose("b")
	state(lost)
	d.expect("b")
	state(lost)
	d.open("b")
	state(unknown)
	if !d.due("b") {
		t.Error("a new session does not measure")
	}
	d.skip("b")
	state(unknown)
	if d.due("b") {
		t.Error("a measurement that is impossible is repeated at once")
	}
	d.set("b", depth{})
	state("2 1 1h0m0s true, lost: false")
	served := map[string]bool{"a": true}
	d.retain(map[string]bool{"a": true, "b": true}, func(name string) bool { return served[name] })
	state(lost) // the role may no longer connect to b
	d.retain(map[string]bool{"a": true}, func(name string) bool { return served[name] })
	state("2 1 1h0m0s true, lost: false") // b was dropped
	d.databases["a"].measured = time.Now().Add(-2 * validFor)
	state(lost) // no session has had time for it
	d.set("a", depth{})
	d.end()
	state(lost)
	d.retain(nil, nil) // a standby
	state(unknown)
	var none *Depths
	none.open("a")
	none.lose("a")
	if _, _, _, ok := none.Sum(); ok || none.Lost() != 0 {
		t.Error("nil")
	}
}

// TestDepthsOfManyDatabases: while databases take turns, their lengths stay valid for longer than a turn.
func TestDepthsOfManyDatabases(t *testing.T) {
	d := &Depths{}
	for i := range 60 {
		d.set(strconv.Itoa(i), depth{queued: 1})
	}
	d.databases["1"].measured = time.Now().Add(-2 * validFor)
	if waiting, _, _, ok := d.Sum(); !ok || waiting != 60 || d.Lost() != 0 {
		t.Errorf("%d, %t, lost for %s", waiting, ok, d.Lost())
	}
}
