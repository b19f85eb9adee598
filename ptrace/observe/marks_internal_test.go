package observe

import (
	"os"
	"testing"
	"time"
	"unsafe"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestMarks checks which changes of a process between two looks are noticed.
func TestMarks(t *testing.T) {
	t.Parallel()
	type record struct{ count, other uint32 }
	data := struct {
		head, variable uint64
		counter        *record
	}{7, 8, &record{2, 0}}
	address := func(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }
	w := &observer{target: process.Target{PID: os.Getpid()}, options: snapshot.Options{ExtraReads: &snapshot.ExtraReads{
		Head:      address(unsafe.Pointer(&data.head)),
		Variables: []snapshot.Variable{{Address: address(unsafe.Pointer(&data.variable)), Follow: 1}},
		Counters:  []snapshot.Counter{{Address: address(unsafe.Pointer(&data.counter))}},
	}}}
	same := func(change func()) bool {
		before := w.mark()
		before.work = 0
		change()
		after := w.mark()
		after.work = mostWork
		return before.same(after)
	}
	if !same(func() {}) {
		t.Error("nothing has changed")
	}
	for name, change := range map[string]func(){
		"head": func() { data.head++ }, "variable": func() { data.variable++ }, "counter": func() { data.counter.count += 2 },
		"record": func() { data.counter = &record{data.counter.count + 2, 0} },
	} {
		if same(change) {
			t.Errorf("a change of the %s is not noticed", name)
		}
	}
	if data.counter.count++; same(func() {}) {
		t.Error("an odd counter is not noticed")
	}
	data.counter.count++
	before := w.mark()
	if after := w.mark(); !before.ok || after.work < before.work || after.work == 0 {
		t.Errorf("work %v, then %v", before.work, after.work)
	}
	after := before
	if after.work += mostWork + time.Nanosecond; before.same(after) {
		t.Error("work beyond the bound is not noticed")
	}
	data.counter = nil
	if w.mark().ok {
		t.Error("an unreadable counter is not noticed")
	}
}
