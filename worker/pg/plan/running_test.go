package plan

import (
	"encoding/binary"
	"slices"
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

// TestMark has instructions of x86-64 before a return address, and the function of the frame inside of it. The mark is at
// the node below if its call is proven. A call that may be one of the node below must not leave the mark at the node without
// a reservation.
func TestMark(t *testing.T) {
	t.Parallel()
	const start = 1 << 20
	const entry, own, pc, child, other = start + 0x80, start + 0x100, start + 0x280, start + 0x800, start + 0x900
	l, _ := layout.Of(newestMajor)
	field := byte(l.PlanState.ExecProcNode.Int())
	load := []byte{0x48, 0x8b, 0x47, field}                 // mov field(%rdi),%rax
	compare := []byte{0x48, 0x39, 0xd0, 0x75, 0x08}         // cmp %rdx,%rax; jne
	call, callRCX := []byte{0xff, 0xd0}, []byte{0xff, 0xd1} // call *%rax; call *%rcx
	near := func(code []byte, at, to int) []byte {
		return binary.LittleEndian.AppendUint32(code, uint32(to-at-len(code)-4)) // wraps
	}
	direct := near([]byte{0xe8}, pc-5, child)
	// split is a call that gcc 16 has split, at an address: it expects function own, and calls the register at rest. equal is
	// the code after an equal comparison.
	split := func(at, rest int, argument byte, equal []byte) []byte {
		code := []byte{0x49, 0x8b, 0x46, field, 0x48, 0x8d, 0x15} // mov field(%r14),%rax; lea own(%rip),%rdx
		code = near(code, at, own)
		code = append(code, 0x4c, 0x89, argument, 0x48, 0x39, 0xd0, 0x0f, 0x85) // mov %r14,argument; cmp %rdx,%rax; jne rest
		code = near(code, at, rest)
		return append(code, equal...)
	}
	const site, splitLength, rdi, rsi = 0x180, 23, 0xf7, 0xf6
	callOwn := func(at int) []byte { return near([]byte{0xe8}, at, own) }
	body := []byte{0x85, 0xc9, 0x75, 0x02, 0x90} // test %ecx,%ecx; jne; nop
	jumps := slices.Concat([]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xfe}, near([]byte{0xe9}, own+7, other))
	for name, one := range map[string]struct {
		code   []byte // before the return address
		far    []byte // at site
		first  []byte // of function own
		callee uint64
		leaf   bool
		below  uint64 // the function of the node below
		mark   string
	}{
		"a compared pointer":       {code: slices.Concat(load, compare, call), callee: other, mark: "top or below"},
		"a direct call":            {code: direct, callee: other, mark: "top or below"},
		"the function of the node": {code: slices.Concat(compare, callRCX), callee: child, mark: "top or below"},
		"another register":         {code: slices.Concat(load, compare, callRCX), callee: other, mark: "top"},
		"another field":            {code: slices.Concat([]byte{0x48, 0x8b, 0x47, field + 8}, compare, call), callee: other, mark: "top"},
		"nothing below":            {code: slices.Concat(load, compare, call), callee: other, leaf: true, mark: "top"},

		"the register of a split call": {
			code: call, far: split(start+site, pc-2, rdi, callOwn(start+site+splitLength)), callee: child, mark: "below",
		},
		"the register of a split call, and the function jumped": {
			code: call, far: split(start+site, pc-2, rdi, callOwn(start+site+splitLength)), callee: other, mark: "below",
		},
		"a split call of another node's function": {
			code: split(pc-splitLength-5, start+site, rdi, callOwn(pc-5)), far: call, callee: own, mark: "top or below",
		},
		"the expected function of a split call": {
			code: split(pc-splitLength-5, start+site, rdi, callOwn(pc-5)), far: call, callee: own, below: own, mark: "below",
		},
		"a split call in place of which a jump of the function is": {
			first: jumps, code: split(pc-splitLength-5, start+site, rdi, near([]byte{0xe8}, pc-5, other)), far: call, callee: other,
			below: own, mark: "below",
		},
		"a split call in place of which a jump of another node's function is": {
			first: jumps, code: split(pc-splitLength-5, start+site, rdi, near([]byte{0xe8}, pc-5, other)), far: call, callee: other,
			mark: "top or below",
		},
		"a split call with another argument": {
			code: call, far: split(start+site, pc-2, rsi, callOwn(start+site+splitLength)), callee: other, mark: "top or below",
		},
		"a call in a function with the body of the node below": {
			code: callRCX, far: split(start+site, pc-0x20, rdi, body), callee: other, below: own, mark: "top or below",
		},
		"a call of a node in a function with the body of the node below": {
			code: []byte{0xff, 0x50, field}, far: split(start+site, pc-0x20, rdi, body), callee: own, below: own, mark: "top or below",
		},
	} {
		g := &garbage{start: start, data: make([]byte, pageSize)}
		place := func(at int, code []byte) { copy(g.data[at-start:], code) }
		place(own, one.first)
		place(start+site, one.far)
		place(pc-0x20, call) // the register of the calls with a body
		place(pc-len(one.code), one.code)
		place(entry-3, []byte{0xff, 0x50, field}) // call *field(%rax)
		if one.below == 0 {
			one.below = child
		}
		for _, instrumented := range []bool{false, true} {
			below := &Node{Kind: "SeqScan", function: one.below}
			current := &Node{Kind: "Limit", function: own, others: []*Node{below}, Children: []*Node{below}}
			if one.leaf {
				current.others = nil
			}
			level := &Level{Top: current, nodes: map[uint64]*Node{1: current, 2: below}}
			frames := []Frame{{Start: one.callee, Exact: true}, {PC: pc, Start: own, End: pc + 0x40}}
			if instrumented {
				frames = append(frames, Frame{PC: start + 0x50, Start: start + 0x40})
			}
			frames = append(frames, Frame{PC: entry, Start: start + 0x60})
			s := &Stack{X86: true, Code: []Range{{start, start + pageSize}}, Frames: frames}
			level.frame = len(frames) - 1
			r := &reader{pages: newPages(g), structures: &structures{Layout: l}, stack: s}
			r.follow(level, -1)
			got := map[[2]bool]string{{true, false}: "top", {true, true}: "top or below", {false, false}: "below"}
			if mark := got[[2]bool{current.Running, current.Below}]; mark != one.mark || below.Running != (mark == "below") {
				t.Errorf("%s, instrumented %t: the mark is at %q, want %q", name, instrumented, mark, one.mark)
			}
		}
	}
}

// TestMarkOfCTE: the nodes of a CTE are elsewhere in the tree than its scan. If one of them may run, the mark is at a node
// above both.
func TestMarkOfCTE(t *testing.T) {
	t.Parallel()
	const start, agg, cteScan, modify, state = 1 << 20, 1<<20 + 0x100, 1<<20 + 0x200, 1<<20 + 0x300, 1<<20 + 0x800
	l, _ := layout.Of(newestMajor)
	g := &garbage{start: start, data: make([]byte, pageSize)}
	binary.NativeEndian.PutUint64(g.data[state-start+l.CteScanState.Cteplanstate.Uint64():], state+8)
	call := []byte{0xff, 0x50, byte(l.PlanState.ExecProcNode.Int())} // call *field(%rax)
	copy(g.data[0x80-len(call):], call)
	copy(g.data[agg-start+0x80-len(call):], call)
	insert := &Node{Kind: "ModifyTable", function: modify}
	scan := &Node{Kind: "CteScan", addr: state, function: cteScan}
	top := &Node{Kind: "Agg", function: agg, init: []*Node{insert}, others: []*Node{scan}, Children: []*Node{insert, scan}}
	level := &Level{Top: top, nodes: map[uint64]*Node{1: top, state: scan, state + 8: insert}, frame: 3}
	r := &reader{pages: newPages(g), structures: &structures{Layout: l}, stack: &Stack{
		X86: true, Code: []Range{{start, start + pageSize}}, Frames: []Frame{
			{Start: modify, Exact: true}, {PC: cteScan + 0x80, Start: cteScan}, {PC: agg + 0x80, Start: agg}, {PC: start + 0x80, Start: start + 0x60},
		},
	}}
	r.follow(level, -1)
	if !top.Running || !top.Below || !scan.Active || scan.Running {
		t.Errorf("top: %+v; scan: %+v", top, scan)
	}
}

// TestSplitCallA64 has a split call in instructions of aarch64.
func TestSplitCallA64(t *testing.T) {
	t.Parallel()
	c := code{base: 1 << 20}
	for _, w := range []uint32{
		0xf9400c01, 0xeb02003f, 0x54000081, // ldr x1, [x0, 24]; cmp x1, x2; b.ne to blr
		0x94000010, 0xd503201f, 0xd503201f, 0xd63f0020, 0xd503201f, // bl; nop; nop; blr x1; nop
	} {
		c.bytes = binary.LittleEndian.AppendUint32(c.bytes, w)
	}
	want := speculated{direct: c.base + 16, register: c.base + 28}
	if got, ok := c.a64(c.base, 24); !ok || got != want || !got.isCall(c.base+28) || got.isCall(c.base+20) {
		t.Errorf("%t, %+v", ok, got)
	}
	if _, ok := c.a64(c.base, 32); ok {
		t.Error("another field")
	}
}
