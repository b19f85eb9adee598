package codeflow

import (
	"math/bits"
	"slices"

	"pg_stat_backtrace/unwind/arch"
)

// state contains the values of registers and memory that are known before an instruction.
type state struct {
	regs   arch.Registers
	stores []store // writes on the path to the instruction
	// lost is the address below which memory is unknown, because a call may have written there.
	lost uint64
	// behindCall is set if every path to the instruction passes a call, which may never return.
	behindCall bool
	// missed is set after a read of unknown memory.
	missed bool
}

// store is a write to memory at a known address.
type store struct {
	addr, size, value uint64
	known             bool
}

func (s store) overlaps(addr, size uint64) bool { return s.addr-addr < size || addr-s.addr < s.size }

// word returns eight bytes of memory. The result is false if they are unknown.
func (s *state) word(mem Memory, addr uint64) (uint64, bool) {
	const size = 8
	for _, w := range s.stores {
		if w.addr == addr && w.size == size {
			return w.value, w.known
		}
		if w.overlaps(addr, size) {
			return 0, false
		}
	}
	if addr < s.lost {
		return 0, false
	}
	v, ok := mem.Word(addr)
	s.missed = s.missed || !ok
	return v, ok
}

// write records a write. The result is false if the state has more than maxStores.
func (s *state) write(w store) bool {
	// The new slice is needed because other states share the old slice.
	kept := make([]store, 0, len(s.stores)+1)
	for _, old := range s.stores {
		switch {
		case old.addr >= w.addr && old.addr+old.size <= w.addr+w.size: // the new store covers the old one completely
		case old.overlaps(w.addr, w.size):
			old.known = false
			w.known = false // values of partly overlapping writes are not tracked
			kept = append(kept, old)
		default:
			kept = append(kept, old)
		}
	}
	kept = append(kept, w)
	s.stores = kept
	return len(s.stores) <= maxStores
}

// called removes the values that a call may have changed.
func (s *state) called(m *machine) {
	for _, reg := range m.scratch {
		s.regs.Clear(reg)
	}
	s.behindCall = true
	sp, _ := s.regs.Get(m.sp)
	s.lost = max(s.lost, sp)
	s.stores = slices.DeleteFunc(slices.Clone(s.stores), func(w store) bool { return w.addr < sp })
}

// join removes the values from s that differ in o, the state of another path to the same instruction. The result less
// is true if s has changed. The caller must then follow the instruction again, with fewer known values.
func (s *state) join(mem Memory, o *state) (less bool) {
	less = keepEqual(&s.regs, &o.regs)
	if s.behindCall && !o.behindCall {
		s.behindCall, less = false, true
	}
	if o.lost > s.lost {
		s.lost, less = o.lost, true
	}
	for _, list := range [...][]store{s.stores, o.stores} {
		for _, w := range list {
			a, known := s.word(mem, w.addr)
			b, same := o.word(mem, w.addr)
			if known && (!same || a != b || w.size != 8) {
				s.write(store{addr: w.addr, size: w.size})
				less = true
			}
		}
	}
	return less
}

// keepEqual removes the registers of r whose values differ in o. The result less is true if r has changed.
func keepEqual(r, o *arch.Registers) (less bool) {
	for left := r.Known(); left != 0; left &= left - 1 {
		reg := bits.TrailingZeros64(left)
		a, _ := r.Get(reg)
		if b, also := o.Get(reg); !also || a != b {
			r.Clear(reg)
			less = true
		}
	}
	return less
}
