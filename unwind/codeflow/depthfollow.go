package codeflow

import (
	"fmt"

	"pg_stat_backtrace/unwind/disasm"
)

// depthFollower is the state of following one function.
type depthFollower struct {
	f      *Function
	insts  []depthInst // ascending
	index  []int32     // number plus 1 of the instruction that starts at an offset of the code; 0: none starts there
	todo   []int       // instructions whose distances have changed since run last followed them
	tables depthSet    // the distances at jumps through registers and tables
}

// depthInst is an instruction, as far as it concerns the stack pointer.
type depthInst struct {
	offset int // in the code
	length uint8
	effect depthEffect
	// operand is an amount in bytes, or the offset in the code of a jump's target.
	operand int64
	anchor  Anchor
	depth   depthSet
}

// depthEffect is the effect of an instruction on the stack pointer, or on the control flow.
type depthEffect uint8

const (
	nothing     depthEffect = iota
	depthCalls              // a call: it returns with the same stack pointer, or never
	grows                   // the distance grows by the operand
	byFrame                 // the stack pointer becomes frame pointer + operand
	depthLost               // the stack pointer becomes unknown
	depthJump               // jump to the offset operand
	depthBranch             // jump to the offset operand, or no jump
	anywhere                // jump through a register or a table
	depthEnds               // return or trap
)

// At returns the possible distances CFA - SP right before the instruction that contains addr, in bytes and in ascending
// order. It follows all paths through the code that the instructions allow. If At returns several distances, some of
// these paths never run in a real program, for example a path after a call that never returns. The error is ErrUnknown,
// ErrUnreached or ErrCode.
//
// At assumes that the instructions that only a jump table reaches have the same distances as the function's indirect
// jumps.
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
// no call. It is also false if the code cannot be decoded, or does not end at the end of an instruction.
func Still(code []byte) bool {
	for at := 0; at < len(code); {
		i, err := decodeForDepth(code, at)
		if err != nil {
			return false
		}
		switch i.effect {
		case depthCalls, grows, byFrame, depthLost:
			return false
		default: // such instructions do not change the stack pointer
		}
		at += int(i.length)
	}
	return true
}

// Leaves reports whether the function may continue as another function without a call: it jumps outside its code, or
// through a register. The caller's call instruction may then name another function than the function that runs. The
// error is ErrCode.
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
		default: // this instruction does not jump out of the function
		}
	}
	// Unless the last instruction is a jump or a return, the processor continues in the next function.
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

// enterTables continues at the possible targets of jumps through tables. These are the instructions that no other path
// reaches, and the instructions after calls: the call may never return, so perhaps only a jump reaches them.
// enterTables runs after all other paths were followed. The code that it reaches may contain further jumps through
// tables.
func (w *depthFollower) enterTables() {
	if !w.tables.reached() {
		return
	}
	behindCall := false
	for i := range w.insts {
		at := &w.insts[i]
		// Call frame information may exclude all distances of an instruction. Such an instruction is reached by no
		// path, for example padding after a return.
		if d := at.anchored(); behindCall || !d.reached() {
			w.reach(at.offset, w.tables)
			w.run()
		}
		behindCall = at.effect == depthCalls
	}
}

// decode decodes all instructions, one after another from the start. The error is ErrCode.
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

// reach adds distances to the possible distances of the instruction at an offset. If no instruction starts there, it
// does nothing.
func (w *depthFollower) reach(at int, d depthSet) {
	if at < 0 || at >= len(w.index) || w.index[at] == 0 {
		return // out of the function, or into the middle of an instruction
	}
	i := int(w.index[at]) - 1
	if w.insts[i].depth.add(d) {
		w.todo = append(w.todo, i)
	}
}

// run follows all paths from the instructions in todo, until no instruction gets new distances. This ends, because the
// set of an instruction grows at most maxValues+1 times.
func (w *depthFollower) run() {
	for len(w.todo) > 0 {
		i := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.step(&w.insts[i])
	}
}

// anchored returns the possible distances at an instruction, restricted by call frame information. If the CFA is
// defined by the stack pointer, only one distance is possible. If it is defined by the frame pointer, the stack pointer
// is not above the address in the frame pointer. Smaller distances belong to paths that never run, for example after
// calls that do not return.
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

// decodeForDepth decodes the instruction at an offset of the code.
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
