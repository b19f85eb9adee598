package capture

import (
	"slices"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

const ret, top = 0x1005, 0x8000 // main's call returns to ret, with the stack pointer at top

// callEvent is a call, or another step, and the expected state afterwards.
type callEvent struct {
	call codePlace // if there is one: where it returns to
	step step
	left bool
	open []uint64
}

//nolint:gochecknoglobals // a table
var callTests = []struct {
	name   string
	arch   *arch.Arch
	events []callEvent
}{
	{"call and return", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{now: codePlace{0x2001, top - 16}}, open: []uint64{ret}},
		{step: step{now: codePlace{0x2002, top - 8}}, open: []uint64{ret}},
		{step: step{now: codePlace{ret, top}}},
	}},
	{"a return beyond the arguments, as by ret $16", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{now: codePlace{ret, top + 16}}},
	}},
	{"a function that calls itself", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{call: codePlace{ret, top - 64}, open: []uint64{ret, ret}},
		{step: step{now: codePlace{ret, top - 64}}, open: []uint64{ret}},
		{step: step{now: codePlace{ret, top}}},
	}},
	{"longjmp out of two functions", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{call: codePlace{0x2005, top - 64}, open: []uint64{ret, 0x2005}},
		{call: codePlace{0x3005, top - 128}, open: []uint64{ret, 0x2005, 0x3005}},
		{step: step{now: codePlace{0x4000, top - 32}}, left: true, open: []uint64{ret}},
		{step: step{kind: leaps, at: 0x4000, now: codePlace{0x1105, top - 32}}, open: []uint64{ret}},
	}},
	{"another function at the end", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{kind: leaps, now: codePlace{0x3000, top - 8}}, open: []uint64{ret}},
		{step: step{now: codePlace{ret, top}}},
	}},
	{"vfork, which has its return address in a register meanwhile", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{kind: pops, at: 0x2000, now: codePlace{0x2001, top}}, open: []uint64{ret}},
		{step: step{at: 0x2001, now: codePlace{0x2003, top}}, open: []uint64{ret}},
		{step: step{at: 0x2003, now: codePlace{0x2004, top - 8}}, open: []uint64{ret}},
		{step: step{at: 0x2004, now: codePlace{ret, top}}},
	}},
	{"an exception that the caller handles", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{kind: pops, at: 0x2000, now: codePlace{0x2001, top}}, open: []uint64{ret}},
		{step: step{kind: leaps, at: 0x2001, now: codePlace{0x1105, top}}, left: true},
	}},
	{"a function that never puts its return address back, but leaves its caller, too", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{kind: pops, at: 0x2000, now: codePlace{0x2001, top}}, open: []uint64{ret}},
		{step: step{at: 0x2001, now: codePlace{0x1105, top + 64}}, left: true},
	}},
	{"call to the next instruction, for its address", arch.AMD64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{kind: pops, at: ret, now: codePlace{0x1006, top}}, left: true},
	}},
	{"no word is pushed", arch.ARM64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{step: step{now: codePlace{0x2004, top}, link: ret}, open: []uint64{ret}},
		{step: step{now: codePlace{0x2008, top - 32}, link: 0x2008}, open: []uint64{ret}},
		{step: step{now: codePlace{0x200c, top}, link: ret}, open: []uint64{ret}},
		{step: step{kind: leaps, now: codePlace{0x3000, top}, link: ret}, open: []uint64{ret}},
		{step: step{kind: leaps, now: codePlace{ret, top}, link: ret}},
	}},
	{"longjmp and exceptions, where no word is pushed", arch.ARM64, []callEvent{
		{call: codePlace{ret, top}, open: []uint64{ret}},
		{call: codePlace{0x2104, top - 32}, open: []uint64{ret, 0x2104}},
		{call: codePlace{0x3004, top - 64}, open: []uint64{ret, 0x2104, 0x3004}},
		{step: step{now: codePlace{0x4004, top - 32}, link: 0x2004}, left: true, open: []uint64{ret, 0x2104}},
		{step: step{kind: leaps, now: codePlace{0x2004, top - 32}, link: 0x2004}, left: true, open: []uint64{ret}},
	}},
}

// TestCalls runs a process step by step, and checks the open calls after each step.
func TestCalls(t *testing.T) {
	for _, c := range callTests {
		t.Run(c.name, func(t *testing.T) {
			calls := newCalls(c.arch)
			for i, e := range c.events {
				left := false
				if e.call != (codePlace{}) {
					calls.begin(e.call)
				} else {
					left = calls.settle(&e.step)
				}
				var open []uint64
				for _, one := range calls.open {
					open = append(open, one.back.pc)
				}
				if !slices.Equal(open, e.open) || left != e.left {
					t.Fatalf("after event %d: %#x, left %v; want %#x, %v", i+1, open, left, e.open, e.left)
				}
			}
		})
	}
}
