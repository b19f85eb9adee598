package levels

import (
	"encoding/binary"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// The reasons why levels of a sampled process are missing.
const (
	// Moved is the reason if a word at ExtraReads.Head, Variables or Counters changed during the sample.
	Moved    = "the process changed them meanwhile"
	entering = "the process was entering or leaving a function"
	nested   = "a DO block runs inside another function"
	cut      = "the copy of the stack ends before the first function"
)

// sampled reads the PL/pgSQL levels of a process that ran on after its stack was copied.
//
// The head of the list was not read at the moment at which the stack was copied, even if it was the same before and after.
// Three checks make up for that. First, the process may have pushed nodes onto the list in between. One of these nodes on the
// stack points to the head: then sampled returns no level (see deeper). Second, a function may not yet have pushed its node,
// and its frame may have an old node of another function. So the function must have got beyond its first call, which prepares
// the node (see begun). Third, the functions and statements to which the nodes point must still exist. They exist for the
// whole session, except those of a DO block. These exist as long as the statement, if the block is the outermost function.
// The statement is the same if Counter was the same before and after.
//
// If in doubt, sampled returns no level at all. It reads no other kinds of levels, because their texts change or move.
func (r *reader) sampled() (out []Placed, missing string) {
	if !r.inPLpgSQL() {
		return nil, ""
	}
	node, ok := r.word(r.bias + r.server.list)
	if !ok {
		return nil, Moved
	}
	if r.deeper(node) {
		return nil, entering
	}
	inline := false
	for range maxLevels {
		if node == 0 {
			return out, ""
		}
		frame, found := r.frameOf(node)
		if !found {
			return nil, cut
		}
		callback, ok1 := r.word(node + uint64(r.layout.callback))
		arg, ok2 := r.word(node + uint64(r.layout.argument))
		next, ok3 := r.word(node + uint64(r.layout.previous))
		if !ok1 || !ok2 || !ok3 || next != 0 && next <= node {
			return nil, entering
		}
		code := r.in.Code(callback)
		c := r.identify(callback, &code)
		switch {
		case c != nil && inline && (c.name == execCallback || c.name == "sql_exec_error_callback"):
			return nil, nested
		case c != nil && c.name == execCallback:
			if at, ok := r.frameOf(arg); !ok || at != frame || frame.Module != plpgsqlModule || !r.begun(frame) {
				return nil, entering
			}
			level, ok := r.plpgsql(arg)
			if !ok {
				return nil, entering
			}
			inline = inline || level.Function == inlineBlock
			out = append(out, Placed{Frame: frame.Index, Level: level})
			r.note(callback, backtrace.PLpgSQL)
		}
		node = next
	}
	return nil, cut
}

// inPLpgSQL reports whether the process executes code of PL/pgSQL.
func (r *reader) inPLpgSQL() bool {
	for i := range r.in.Frames {
		if r.in.Frames[i].Module == plpgsqlModule {
			return true
		}
	}
	return false
}

// begun reports whether the function of a frame has pushed its node, and filled the structure to which the node's argument
// points. The function does both during or just after its first call, of plpgsql_estate_setup (pl_exec.c). Before, the
// memory may have the structure of an earlier function.
func (r *reader) begun(frame *Frame) bool {
	i := 0
	for ; i < len(r.in.Frames) && &r.in.Frames[i] != frame; i++ { // finds the index of frame
	}
	if i == 0 {
		return false
	}
	callee := &r.in.Frames[i-1]
	switch {
	case strings.HasPrefix(callee.Function, "plpgsql_estate_setup"), callee.Function == "hash_create":
		return false
	case callee.Function != "", callee.Module != plpgsqlModule:
		return true
	}
	return i > 1
}

// deeper reports whether the stack may have nodes that precede head in the list. The last of these nodes points to head,
// and its callback is the address of a function. If too many words of the stack look like such a node, deeper returns
// true.
func (r *reader) deeper(head uint64) bool {
	const (
		most = 1024 // look-ups of functions
		word = 8
	)
	low, high := r.in.Frames[0].Start, r.in.Frames[len(r.in.Frames)-1].End
	if head != 0 {
		high = min(high, head)
	}
	if high <= low || low%word != 0 {
		return false
	}
	stack := make([]byte, high-low+uint64(r.layout.callback))
	stack = stack[:r.in.Frozen(low, stack)]
	left := most
	for ; len(stack) >= r.layout.callback+word; stack = stack[word:] {
		if binary.NativeEndian.Uint64(stack) != head {
			continue
		}
		callback := binary.NativeEndian.Uint64(stack[r.layout.callback:])
		if callback < 1<<16 {
			continue
		}
		if left--; left < 0 {
			return true
		}
		if code := r.in.Code(callback); code.Function != "" || code.Size > 0 {
			return true
		}
	}
	return false
}
