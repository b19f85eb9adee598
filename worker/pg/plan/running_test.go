package plan

import (
	"encoding/binary"
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

// TestMayRunOther has instructions of x86-64 before a return address, and the function of the frame inside of it. A call that
// may be one of the node below must not leave the mark at the node without a reservation.
func TestMayRunOther(t *testing.T) {
	t.Parallel()
	const start = 1 << 20
	const own, child, other, pc = start + 0x100, start + 0x200, start + 0x300, start + 0x180
	l, _ := layout.Of(newestMajor)
	field := byte(l.PlanState.ExecProcNode.Int())
	load := []byte{0x48, 0x8b, 0x47, field}                 // mov field(%rdi),%rax
	compare := []byte{0x48, 0x39, 0xd0, 0x75, 0x08}         // cmp %rdx,%rax; jne
	call, callRCX := []byte{0xff, 0xd0}, []byte{0xff, 0xd1} // call *%rax; call *%rcx
	direct := binary.LittleEndian.AppendUint32([]byte{0xe8}, uint32(child-pc))
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for name, one := range map[string]struct {
		code   []byte
		callee uint64
		leaf   bool
		want   bool
	}{
		"a compared pointer":       {code: join(load, compare, call), callee: other, want: true},
		"a direct call":            {code: direct, callee: other, want: true},
		"the function of the node": {code: join(compare, callRCX), callee: child, want: true},
		"another register":         {code: join(load, compare, callRCX), callee: other},
		"another field":            {code: join([]byte{0x48, 0x8b, 0x47, field + 8}, compare, call), callee: other},
		"nothing below":            {code: join(load, compare, call), callee: other, leaf: true},
	} {
		g := &garbage{start: start, data: make([]byte, pageSize)}
		copy(g.data[pc-start-uint64(len(one.code)):], one.code)
		below := &Node{function: child}
		current := &Node{function: own, others: []*Node{below}}
		if one.leaf {
			current.others = nil
		}
		level := &Level{Top: current, nodes: map[uint64]*Node{1: current, 2: below}}
		for instrumented, frames := range map[bool][]Frame{
			false: {{Start: one.callee, Exact: true}, {PC: pc, Start: own}},
			true:  {{Start: one.callee, Exact: true}, {PC: pc, Start: own}, {PC: start + 0x80, Start: other}},
		} {
			s := &Stack{X86: true, Code: []Range{{start, start + pageSize}}, Frames: frames}
			r := &reader{pages: newPages(g), structures: &structures{Layout: l}, stack: s}
			if got := r.mayRunOther(level, current, len(frames)-1, -1); got != one.want {
				t.Errorf("%s, instrumented %t: %t", name, instrumented, got)
			}
		}
	}
}
