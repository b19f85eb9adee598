package plan

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// multi are the kinds of nodes that return all their rows at once. Each kind has its own exported function MultiExec*.
//
//nolint:gochecknoglobals // a table
var multi = []string{"Hash", "BitmapIndexScan", "BitmapAnd", "BitmapOr"}

// mark follows the frames of each level from the outermost inwards, and marks the nodes that these frames run.
//
// Each return address after a call of ExecProcNode, and each frame of a function MultiExec*, is one step down the tree.
// The called node must be certain: by its function, by a register, or because no other node can be called. If it is not
// certain, the walk ends, and the last certain node is marked with Below.
func (r *reader) mark(levels []*Level) {
	for i, l := range levels {
		if l.Top == nil {
			continue
		}
		if l.finishes {
			l.Reason = "the statement ends: it runs AFTER triggers, or the rest of its data-modifying WITH"
			continue
		}
		if !r.stack.X86 && !r.stack.A64 {
			l.Reason = "the running node is not known: calls are recognised on x86_64 and aarch64 only"
			continue
		}
		inner := -1
		if i+1 < len(levels) {
			inner = levels[i+1].frame
		}
		r.follow(l, inner)
	}
}

// follow marks the nodes of one level. The level's frames are those from its ExecutorRun inwards to the frame inner,
// where the next level begins; -1: there is no next level.
func (r *reader) follow(l *Level, inner int) {
	var current *Node
	// below is set if a node below the current one may run. seen is set once a frame of the current node's function was
	// passed: a function of the server's instrumentation can be between this frame and its caller.
	below, seen, k := false, false, l.frame
	functions := map[uint64]bool{}
	for _, n := range l.nodes {
		functions[n.function] = true
	}
	for ; k > inner && k >= 0 && !below; k-- {
		if r.in(k, evalPlanQual) || r.in(k, evalPlanQualNext) {
			below = true
			break
		}
		seen = seen || current != nil && r.start(l, k) == current.function
		next, known, step := r.step(l, current, k)
		switch {
		case !step:
			below = r.mayCall(l, current, k, seen, functions)
		case !known:
			below = true
		default:
			current, seen = next, false
			current.Active = true
		}
	}
	switch {
	case current != nil:
		if below {
			current = r.above(l, current, inner)
		}
		current.Running, current.Below = true, below
	case below:
		l.Reason = "the running node is not known: the stack has no proof of it"
	default:
		l.Reason = "the running node is not known: the stack has no call of a node"
	}
}

// above returns the lowest node whose tree has all nodes that may run below the current node. A CTE and an initial plan
// are elsewhere in the tree than the nodes that run them.
func (r *reader) above(l *Level, current *Node, inner int) *Node {
	possible := map[*Node]bool{}
	var add func(nodes []*Node)
	add = func(nodes []*Node) {
		for _, n := range nodes {
			if !possible[n] {
				possible[n] = true
				add(slices.Concat(n.others, n.members, n.subPlans))
				if n.Kind == "CteScan" {
					add(r.callees(l, n, l.frame))
				}
			}
		}
	}
	add([]*Node{current})
	for k := l.frame; k > max(inner, 0); k-- {
		if r.in(k, setParamPlan) {
			add(l.initPlans)
		}
	}
	var lowest func(n *Node) (*Node, int)
	lowest = func(n *Node) (*Node, int) { // the lowest node with all possible nodes, or the number of them in the tree of n
		count := 0
		if possible[n] {
			count++
		}
		for _, child := range n.Children {
			found, below := lowest(child)
			if found != nil {
				return found, below
			}
			count += below
		}
		if count == len(possible) {
			return n, count
		}
		return nil, count
	}
	if n, _ := lowest(l.Top); n != nil {
		return n
	}
	return l.Top
}

// mayCall reports whether frame k may run a node below the current one, although no call of ExecProcNode is proven.
func (r *reader) mayCall(l *Level, current *Node, k int, seen bool, functions map[uint64]bool) bool {
	if k == 0 {
		return false
	}
	start := r.start(l, k-1)
	if current == nil {
		return functions[start] || start == 0 && r.calledMay(k, functions)
	}
	nodes := r.callees(l, current, k)
	if len(nodes) == 0 || !seen && start == current.function {
		return false
	}
	if r.start(l, k) == 0 {
		return true // the code of frame k is not known
	}
	return functions[start] || r.calledMay(k, functions) || r.mayBeBody(nodes, k) ||
		slices.ContainsFunc(r.speculatedCalls(k), func(s speculated) bool { return s.isCall(r.stack.Frames[k].PC) })
}

// calledMay reports whether frame k calls one of the functions directly, or calls the address in a register that was loaded
// from PlanState.ExecProcNode just before. On aarch64 it checks only direct calls, because callsNode recognises all others.
func (r *reader) calledMay(k int, functions map[uint64]bool) bool {
	const direct, before, moveLength = 5, 64, 4
	f := r.stack.Frames[k]
	var c [before]byte
	if target, is := r.directA64(f); is {
		return functions[target]
	}
	if f.Exact || !r.stack.X86 || !within(r.stack.Code, f.PC) || !r.read(f.PC-before, c[:]) {
		return false
	}
	if c[before-direct] == 0xe8 {
		distance := int64(int32(binary.LittleEndian.Uint32(c[before-4:]))) // a signed distance
		if functions[f.PC+uint64(distance)] {                              // a negative distance wraps
			return true
		}
	}
	if c[before-2] != 0xff || c[before-1]&0xf8 != 0xd0 { // call *%reg
		return false
	}
	register := c[before-1] & 7
	field := byte(r.PlanState.ExecProcNode.Int()) // a byte in the instruction
	for i := range before - moveLength {
		// mov field(%any),%reg: REX.W, 8b, and a ModRM byte with an 8-bit displacement.
		if c[i]&0xf8 == 0x48 && c[i+1] == 0x8b && c[i+2]&0xc0 == 0x40 && c[i+2]>>3&7 == register && c[i+3] == field {
			return true
		}
	}
	return false
}

// step returns the node that frame k runs or calls. step is false if the frame runs and calls no node, and known is
// false if the node is not certain. If frame k calls the node, frame k-1 belongs to the node.
func (r *reader) step(l *Level, current *Node, k int) (next *Node, known, step bool) {
	for _, kind := range multi {
		if r.in(k, multiExec+kind) {
			if current == nil {
				return nil, false, true
			}
			var nodes []*Node
			for _, n := range current.Children {
				if n.Kind == kind {
					nodes = append(nodes, n)
				}
			}
			next = r.choose(nodes, k, k+1)
			return next, next != nil, true
		}
	}
	if k == 0 {
		return nil, false, false
	}
	nodes := r.callees(l, current, k)
	switch {
	case r.callsNode(k):
		if r.mayBeBody(nodes, k) {
			return nil, false, true
		}
	case len(nodes) == 0:
		return nil, false, false
	default:
		expected, split := r.splitCall(l, k)
		if !split {
			return nil, false, false
		}
		if expected != 0 {
			nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n.function != expected })
		}
	}
	nodes = r.ofFunction(l, nodes, k-1)
	next = r.choose(nodes, k-1, k)
	if next == nil && current != nil && (current.Kind == "Append" || current.Kind == "MergeAppend") {
		// These nodes load the address of an input just before they call it, so their registers have no other input.
		if n, one := among(nodes, r.stack.Frames[k].Saved, nil); one {
			next = n
		}
	}
	return next, next != nil, true
}

// splitCall reports whether frame k waits for a call through ExecProcNode that the compiler has split; see speculated.
// expected is the called function if frame k calls it directly, and 0 if frame k calls by the register. A split call is
// accepted only if a node of the tree has its expected function: this proves that the code compares the field
// ExecProcNode.
func (r *reader) splitCall(l *Level, k int) (expected uint64, is bool) {
	for _, s := range r.speculatedCalls(k) {
		if !s.own || !s.isCall(r.stack.Frames[k].PC) {
			continue
		}
		for _, n := range l.nodes {
			if n.function != s.function {
				continue
			}
			if r.stack.Frames[k].PC == s.direct {
				return s.function, true
			}
			return 0, true
		}
	}
	return 0, false
}

// mayBeBody reports whether the code of frame k may contain the body of one of the nodes' functions.
func (r *reader) mayBeBody(nodes []*Node, k int) bool {
	for _, s := range r.speculatedCalls(k) {
		if s.body && (s.function == 0 || slices.ContainsFunc(nodes, func(n *Node) bool { return n.function == s.function })) {
			return true
		}
	}
	return false
}

// callees returns the nodes that the current node may run from frame k.
func (r *reader) callees(l *Level, current *Node, k int) []*Node {
	switch {
	case r.in(k, setParamPlan):
		return l.initPlans
	case current == nil:
		return []*Node{l.Top}
	case current.Kind == "CteScan":
		if n := l.nodes[r.pointer(current.addr, r.CteScanState.Cteplanstate)]; n != nil {
			return append([]*Node{n}, current.subPlans...)
		}
		return nil
	case current.Kind == "Hash":
		return current.others
	}
	var out []*Node
	for _, n := range slices.Concat(current.others, current.members, current.subPlans) {
		if !slices.Contains(multi, n.Kind) { // a node of these kinds runs only by its function MultiExec*
			out = append(out, n)
		}
	}
	return out
}

// ofFunction returns those of the nodes whose function runs in frame k. If there are none, a node's function may have
// ended with a jump to the function in frame k. Then ofFunction returns all nodes, but nil if another node of the tree
// has that function, or if it is not known which function runs.
func (r *reader) ofFunction(l *Level, nodes []*Node, k int) []*Node {
	start := r.start(l, k)
	if start == 0 {
		return nil
	}
	var out []*Node
	for _, n := range nodes {
		if n.function == start {
			out = append(out, n)
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, n := range l.nodes {
		if n.function == start {
			return nil
		}
	}
	return nodes
}

// start returns the address of the function that runs in frame k, 0 if it is not known. On aarch64 without call frame
// information, it finds only functions of the level's nodes, and only if their code proves that they contain the frame's PC.
func (r *reader) start(l *Level, k int) uint64 {
	f := &r.stack.Frames[k]
	if f.Start != 0 || f.Exact || !r.stack.A64 {
		return f.Start
	}
	nearest := uint64(0)
	for _, n := range l.nodes {
		if n.function < f.PC && n.function > nearest {
			nearest = n.function
		}
	}
	if nearest != 0 && r.holdsA64(nearest, f.PC) {
		return nearest
	}
	return 0
}

// choose returns the only node. If there are several nodes, it returns the node whose address a register of frame k
// has, and the same register of its caller, frame outer, has not. If this is not exactly one node, the result is nil.
// The function of frame k has saved its argument in this register, and the next frames may have kept it. Words of the
// stack are no proof, because they may be those of an earlier call.
func (r *reader) choose(nodes []*Node, k, outer int) *Node {
	if len(nodes) == 1 {
		return nodes[0]
	}
	const next = 2
	if k < 0 || outer >= len(r.stack.Frames) {
		return nil
	}
	before := r.stack.Frames[outer].Saved
	var found *Node
	for j := k; j >= max(0, k-next) && found == nil; j-- {
		var one bool
		if found, one = among(nodes, r.stack.Frames[j].Saved, before); !one {
			return nil
		}
	}
	return found
}

// among returns the node whose address is in one of the registers, but not in the same register of the caller (before).
// one is false if there are several such nodes.
func among(nodes []*Node, registers, before []uint64) (found *Node, one bool) {
	for i, v := range registers {
		if v == 0 || i < len(before) && before[i] == v {
			continue
		}
		for _, n := range nodes {
			if n.addr == v && n != found {
				if found != nil {
					return nil, false
				}
				found = n
			}
		}
	}
	return found, true
}

// callsNode reports whether frame k waits for a call through PlanState.ExecProcNode, or for the function ExecProcNode
// where the compiler has kept it.
func (r *reader) callsNode(k int) bool {
	const longest = 8
	f := r.stack.Frames[k]
	var c [longest]byte
	if !f.Exact && r.stack.A64 && within(r.stack.Code, f.PC) {
		return r.callsNodeA64(f.PC)
	}
	if f.Exact || !within(r.stack.Code, f.PC) || !r.read(f.PC-longest, c[:]) {
		return false
	}
	field := byte(r.PlanState.ExecProcNode.Int()) // a byte in the instruction
	// call *field(%reg): ff, and a ModRM byte with /2 and an 8-bit displacement; %rsp and %r12 need a SIB byte.
	if c[5] == 0xff && c[6]&0xf8 == 0x50 && c[6] != 0x54 && c[7] == field ||
		c[4] == 0xff && c[5] == 0x54 && c[6] == 0x24 && c[7] == field && c[3] == 0x41 {
		return true
	}
	const callLength = 5
	if c[longest-callLength] != 0xe8 {
		return false
	}
	distance := int64(int32(binary.LittleEndian.Uint32(c[longest-4:]))) // a signed distance
	return r.isExecProcNode(f.PC+uint64(distance), field)               // a negative distance wraps
}

// isExecProcNode reports whether the function at addr is ExecProcNode, which jumps to the address in the given field of
// its argument.
func (r *reader) isExecProcNode(addr uint64, field byte) bool {
	var c [48]byte
	if !within(r.stack.Code, addr) || !r.read(addr, c[:]) {
		return false
	}
	if bytes.Contains(c[:], []byte{0xff, 0x67, field}) { // jmp *field(%rdi)
		return true
	}
	load := bytes.Index(c[:], []byte{0x48, 0x8b, 0x43, field}) // mov field(%rbx),%rax ... jmp *%rax
	return load >= 0 && bytes.Contains(c[load:min(load+16, len(c))], []byte{0xff, 0xe0})
}
