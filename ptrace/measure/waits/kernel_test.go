package waits

import (
	"testing"
)

// figures is a slot of a process with a number of waits for event 1.
func figures(pid, life uint32, calls uint32) *slot {
	s := &slot{Pid: pid, Life: life, Index: 0}
	s.Events[0].Key, s.Events[0].Hist[0] = 1, calls
	return s
}

func emptyKernel() *kernel {
	return &kernel{
		tallies: make(map[int]*tally), parted: make(map[life]*tally), ended: make(table), resets: make(map[int]uint64),
		last: make(map[int]uint32),
	}
}

func (k *kernel) calls() (n uint64) {
	n += k.ended.at(1).Calls
	for _, t := range k.tallies {
		n += t.events.at(1).Calls
	}
	return n
}

// TestSlotTakenOver: the last figures of a process come after its slot has been read with the next process. Each wait
// counts once.
func TestSlotTakenOver(t *testing.T) {
	k := emptyKernel()
	k.take(figures(71, 1, 5))
	k.take(figures(72, 3, 2))
	k.end(figures(71, 1, 7))
	k.take(figures(72, 3, 4))
	if got := k.calls(); got != 11 {
		t.Errorf("%d waits, not 7 of process 71 and 4 of process 72", got)
	}
	if len(k.parted) != 0 {
		t.Errorf("%d processes are left", len(k.parted))
	}
	k.end(figures(73, 2, 1)) // it was never read
	k.end(figures(72, 3, 6))
	if got := k.calls(); got != 14 || len(k.tallies) != 0 {
		t.Errorf("%d waits, not 14; %d tallies", got, len(k.tallies))
	}
}

// TestSlotHandedOver: between the moment at which the last figures of a process come and the one at which its slot is empty,
// the process counts once.
func TestSlotHandedOver(t *testing.T) {
	k := emptyKernel()
	k.readSlot = func(_ int, into *slot) bool {
		*into = *figures(71, 1, 5)
		return true
	}
	if !k.read(0) {
		t.Fatal("the slot of a process that runs was not read")
	}
	k.take(&k.buffer)
	k.end(figures(71, 1, 5))
	if k.read(0) {
		t.Error("the slot counts beside the last figures of its process")
	}
	if got := k.calls(); got != 5 {
		t.Errorf("%d waits, not 5", got)
	}
	k.readSlot = func(_ int, into *slot) bool {
		*into = *figures(72, 2, 1)
		return true
	}
	if !k.read(0) {
		t.Error("the slot's next process does not count")
	}
}

// TestShrunkSlotIgnored: figures that are less than before in the same life are not counted.
func TestShrunkSlotIgnored(t *testing.T) {
	for name, tear := range map[string]func(*slot){
		"calls": func(s *slot) { s.Events[0].Hist[0] = 4 },
		"total": func(s *slot) { s.Events[0].Total = 99 },
		"event": func(s *slot) { s.Events[0].Key = 0 },
	} {
		k := emptyKernel()
		first, torn, next := figures(71, 1, 5), figures(71, 1, 6), figures(71, 1, 8)
		first.Events[0].Total, torn.Events[0].Total, next.Events[0].Total = 100, 110, 130
		tear(torn)
		for _, s := range []*slot{first, torn, next} {
			k.take(s)
			if e := k.tallies[0].events.at(1); e.Calls > 8 || e.Total > 130 {
				t.Errorf("%s: %d waits, %v", name, e.Calls, e.Total)
			}
		}
		if e := k.tallies[0].events.at(1); e.Calls != 8 || e.Total != 130 {
			t.Errorf("%s: %d waits with %v, not 8 with 130ns", name, e.Calls, e.Total)
		}
	}
}

// TestCountersWrap: the kernel's counters of calls have 32 bits.
func TestCountersWrap(t *testing.T) {
	k := emptyKernel()
	k.take(figures(71, 1, 1<<31-1))
	k.take(figures(71, 1, 1<<32-2))
	k.take(figures(71, 1, 3))
	if got := k.calls(); got != 1<<32+3 {
		t.Errorf("%d waits, not %d", got, uint64(1<<32+3))
	}
}

// TestSlotReset: after a reset, the figures of the same process begin again.
func TestSlotReset(t *testing.T) {
	k := emptyKernel()
	k.take(figures(71, 1, 5))
	k.take(figures(71, 2, 1))
	if got := k.calls(); got != 1 || len(k.parted) != 0 {
		t.Errorf("%d waits, %d processes that have ended", got, len(k.parted))
	}
}

// TestSlotUnreadable: while a program writes to a slot, the figures are those of the reading before.
func TestSlotUnreadable(t *testing.T) {
	k := emptyKernel()
	readable := true
	k.readSlot = func(_ int, into *slot) bool {
		if readable {
			*into = *figures(71, 1, 5)
			into.Since, into.Waiting = 1, 2
		}
		return readable
	}
	for _, readable = range []bool{true, false} {
		if !k.read(0) {
			t.Fatalf("readable %v: nothing", readable)
		}
		p := k.process(&k.buffer)
		if p.PID != 71 || p.Events[0].Calls != 5 {
			t.Errorf("readable %v: %+v", readable, p)
		}
		if inProgress := len(p.Events) > 1; inProgress != readable {
			t.Errorf("readable %v: %+v", readable, p)
		}
	}
	if delete(k.tallies, 0); k.read(0) {
		t.Error("a slot that was never read")
	}
}
