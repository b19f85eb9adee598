package codeflow

import (
	"fmt"

	"pg_stat_backtrace/unwind/disasm"
)

// depthFollower is the state of following one function.
type depthFollower struct {
	f      *Function
	insts  []depthInst // ascending
	index  []int32     // by offset in the code: number of the instruction that starts there, plus 1; 0: none
	todo   []int       // instructions to continue from
	tables depthSet    // the distances at jumps through tables
}

// depthInst is the relevant part of an instruction.
type depthInst struct {
	offset int // in the code
	length uint8
	effect depthEffect
	// operand is an amount, or the offset of a jump's target.
	operand int64
	anchor  Anchor
	depth   depthSet
}

// depthEffect is the effect of an instruction on the stack pointer, or on the control flow.
type depthEffect uint8

const (
	nothing     depthEffect = iota
	depthCalls              // and comes back with the same stack pointer, or not at all
	grows                   // the distance grows by the operand
	byFrame                 // the stack pointer becomes frame pointer + operand
	depthLost               // the stack pointer becomes unknown
	depthJump               // to operand, always
	depthBranch             // to operand, or on
	anywhere                // through a register or a table
	depthEnds               // return, trap
)

// At returns the possible distances CFA - SP right before the instruction that contains addr, in ascending order.
// They come from all paths through the code that its bytes allow. If At returns several distances, some path never
// runs. An example is a path that continues after a call that never returns.
//
// At assumes that instructions reached only through a jump table have the distances of the function's indirect jumps.
func (f *Function) At(addr uint64) ([]int64, error) {
	w, err := f.follow()
	if err != nil {
		return nil, err
	}
	for i := range w.insts {
		at := &w.insts[i]
		if offset := addr - f.Start - uint64(at.offset); offset < uint64(at.length) {
			d := at.anchored()
			switch {
			case d.unknown:
				return nil, ErrUnknown
			case d.n == 0:
				return nil, ErrUnreached
			}
			return d.list(), nil
		}
	}
	return nil, ErrUnreached
}

// Still reports whether code, run from its first instruction to its last, does not change the stack pointer and makes
// no call. It is false also if the code cannot be decoded, or does not end at the end of an instruction.
func Still(code []byte) bool {
	for at := 0; at < len(code); {
		i, err := decodeForDepth(code, at)
		if err != nil {
			return false
		}
		switch i.effect {
		case depthCalls, grows, byFrame, depthLost:
			return false
		default: // the path continues here or elsewhere
		}
		at += int(i.length)
	}
	return true
}

// Leaves reports whether the function may continue as another function without a call: it jumps outside its code, or
// through a register. The caller's call instruction may then name another function than the running one.
func (f *Function) Leaves() (bool, error) {
	w := &depthFollower{f: f}
	if err := w.decode(); err != nil {
		return false, err
	}
	for n := range w.insts {
		switch i := &w.insts[n]; i.effect {
		case anywhere:
			return true, nil
		case depthJump, depthBranch:
			if i.operand < 0 || i.operand >= int64(len(f.Code)) {
				return true, nil
			}
		default: // the path continues
		}
	}
	// Code that ends without a jump continues elsewhere, too.
	last := w.insts[len(w.insts)-1].effect
	return last != depthEnds && last != depthJump, nil
}

func (f *Function) follow() (*depthFollower, error) {
	w := &depthFollower{f: f}
	if err := w.decode(); err != nil {
		return nil, err
	}
	for i := range w.insts {
		w.insts[i].anchor = f.Anchor(f.Start + uint64(w.insts[i].offset))
	}
	entry := w.insts[0].anchor
	if entry.Base != StackPointer {
		return nil, fmt.Errorf("%w: 0x%x is not where calls enter", ErrUnreached, f.Start)
	}
	w.reach(0, justDepth(entry.Offset))
	w.run()
	for before := (depthSet{}); w.tables != before; {
		before = w.tables
		w.enterTables()
	}
	return w, nil
}

// enterTables continues at the possible targets of jumps through tables. These are the instructions that no other
// path reaches. Instructions behind calls count too, because the path from such a call is an illusion if the call
// does not return. enterTables runs last, when the other paths are complete. It may reach further jumps through
// tables.
func (w *depthFollower) enterTables() {
	if !w.tables.reached() {
		return
	}
	behindCall := false
	for i := range w.insts {
		at := &w.insts[i]
		// Distances that call frame information excludes reach nothing: those of padding behind a return, for example.
		if d := at.anchored(); behindCall || !d.reached() {
			w.reach(at.offset, w.tables)
			w.run()
		}
		behindCall = at.effect == depthCalls
	}
}

// decodeForDepth finds the instructions, one after another from the start.
func (w *depthFollower) decode() error {
	code := w.f.Code
	if len(code) == 0 || len(code) > MaxCode {
		return fmt.Errorf("%w: a function of %d bytes", ErrCode, len(code))
	}
	const typical = 4 // bytes of an instruction
	w.insts = make([]depthInst, 0, len(code)/typical+1)
	w.index = make([]int32, len(code))
	for at := 0; at < len(code); {
		i, err := decodeForDepth(code, at)
		if err != nil {
			return fmt.Errorf("at 0x%x: %w", w.f.Start+uint64(at), err)
		}
		w.insts = append(w.insts, i)
		w.index[at] = int32(len(w.insts))
		at += int(i.length)
	}
	return nil
}

// reach makes distances possible at an offset.
func (w *depthFollower) reach(at int, d depthSet) {
	if at < 0 || at >= len(w.index) || w.index[at] == 0 {
		return // out of the function, or into the middle of an instruction
	}
	i := int(w.index[at]) - 1
	if w.insts[i].depth.add(d) {
		w.todo = append(w.todo, i)
	}
}

// run follows until nothing new is reached. It ends: a set grows at most
// maxValues+1 times.
func (w *depthFollower) run() {
	for len(w.todo) > 0 {
		i := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.step(&w.insts[i])
	}
}

// anchored returns the set of distances of an instruction, or the one distance from call frame information. If the
// CFA is defined by the frame pointer, the stack reaches at least to the frame pointer's target. Smaller distances
// belong to paths that never run, for example behind calls that do not return.
func (i *depthInst) anchored() depthSet {
	switch {
	case i.anchor.Base == StackPointer:
		return justDepth(i.anchor.Offset)
	case i.anchor.Base == FramePointer && !i.depth.unknown:
		return i.depth.atLeast(i.anchor.Offset)
	}
	return i.depth
}

func (w *depthFollower) step(i *depthInst) {
	d := i.anchored()
	next := i.offset + int(i.length)
	switch i.effect {
	case nothing, depthCalls:
		w.reach(next, d)
	case grows:
		w.reach(next, d.shifted(i.operand))
	case byFrame:
		after := depthSet{unknown: true}
		if i.anchor.Base == FramePointer {
			after = justDepth(i.anchor.Offset - i.operand)
		}
		w.reach(next, after)
	case depthLost:
		w.reach(next, depthSet{unknown: true})
	case depthJump:
		w.reach(int(i.operand), d)
	case depthBranch:
		w.reach(int(i.operand), d)
		w.reach(next, d)
	case anywhere:
		w.tables.add(d)
	case depthEnds:
	}
}

// decodeForDepth reads the instruction at an offset.
func decodeForDepth(code []byte, at int) (depthInst, error) {
	x, err := disasm.DecodeX86(code[at:])
	if err != nil {
		return depthInst{}, err
	}
	i := depthInst{offset: at, length: uint8(x.Len)}
	i.effect, i.operand = effectOf(&x)
	if i.effect == depthJump || i.effect == depthBranch {
		i.operand += int64(at + x.Len)
	}
	return i, nil
}
