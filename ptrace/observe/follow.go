package observe

import (
	"encoding/binary"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// follow copies the memory of Options.ExtraReads through a thread that is not stopped. stack is a copy of its stack. It copies
// the same memory as session.copyExtraReads does during a stop, but block by block, because there is no hurry. The data is
// from the same moment as the stack only if the thread slept all the time, and no other thread wrote to the data.
func (w *observer) follow(tid int, stack *snapshot.Stack) []snapshot.Stack {
	t := w.options.ExtraReads
	if t == nil {
		return nil
	}
	f := &follower{tid: tid, stack: stack}
	for _, v := range t.Variables[:min(len(t.Variables), snapshot.MaxVariables)] {
		if p := f.pointer(v.Address); p != 0 {
			f.take(p, v.Follow)
		}
	}
	if t.Head != 0 {
		f.list(t, f.pointer(t.Head))
	}
	const maxRanges = 256
	for _, piece := range t.Ranges[:min(len(t.Ranges), maxRanges)] {
		f.take(piece.Address, piece.Length)
	}
	return f.found
}

// follower copies the extra reads of one thread. blocks is the number of blocks so far, and the field found has their copies.
type follower struct {
	tid    int
	stack  *snapshot.Stack
	blocks int
	found  []snapshot.Stack
}

// pointer copies the word at an address into the field found, and returns it; 0 if it is not readable.
func (f *follower) pointer(address uint64) uint64 {
	data := f.take(address, 8)
	if len(data) < 8 {
		return 0
	}
	return binary.NativeEndian.Uint64(data)
}

// list copies the memory to which the nodes of a list point; see ExtraReads.Head. node is the address of the first
// node.
func (f *follower) list(t *snapshot.ExtraReads, node uint64) {
	const word, argument = 8, 16
	for range snapshot.MaxNodes {
		arg, ok := f.onStack(node + argument)
		if !ok {
			return
		}
		if _, ok := f.onStack(arg); ok {
			told, _ := f.onStack(node + word)
			derefs := derefsOf(t, told)
			for _, d := range derefs[:min(len(derefs), snapshot.MaxDerefs)] {
				if p, ok := f.onStack(arg + uint64(d.Offset)); ok && p != 0 {
					f.take(p, d.Length)
				}
			}
		} else if arg != 0 {
			f.take(arg, t.Elsewhere)
		}
		next, ok := f.onStack(node)
		if !ok || next <= node {
			return
		}
		node = next
	}
}

// derefsOf returns the Derefs of nodes that contain the given word.
func derefsOf(t *snapshot.ExtraReads, word uint64) []snapshot.Deref {
	for _, k := range t.Kinds[:min(len(t.Kinds), snapshot.MaxKinds)] {
		if k.Word == word {
			return k.OnStack
		}
	}
	return t.OnStack
}

// onStack returns the word at an address of the copied stack; false: the address is outside or not aligned.
func (f *follower) onStack(address uint64) (uint64, bool) {
	off := address - f.stack.Start
	if size := uint64(len(f.stack.Data)); address < f.stack.Start || address%8 != 0 || size < 8 || off > size-8 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(f.stack.Data[off:]), true
}

// take copies memory up to the first unreadable byte, within the limits, adds it to the field found, and returns it.
func (f *follower) take(address uint64, length int) []byte {
	length = min(max(length, 0), snapshot.MaxFollow)
	if f.blocks++; f.blocks > snapshot.MaxBlocks || length == 0 {
		return nil
	}
	data := make([]byte, length)
	n, _ := process.ReadMemory(f.tid, address, data) // unreadable memory is left out
	if data = data[:n]; n > 0 {
		f.found = append(f.found, snapshot.Stack{Start: address, Data: data})
	}
	return data
}
