package levels

import (
	"encoding/binary"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// The reasons why levels of a sampled process are missing.
const (
	// Moved is the reason if the words before and after the sample differ.
	Moved    = "the process changed them meanwhile"
	entering = "the process was entering or leaving a function"
	nested   = "a DO block runs inside another function"
	cut      = "the copy of the stack ends before the first function"
)

// sampled reads the PL/pgSQL levels of a process that ran on after its stack was copied.
//
// The head of the list is not of the moment of the stack, even if it was the same before and after. Three checks make up
// for that. If the process had pushed nodes onto the list, the last of them points to the head: then no level is given.
// If it had not yet pushed a node, an old node can lie in the frame of the function. So the frame must have called more than
// the function that prepares the node. The functions and statements to which the nodes lead exist for the whole session,
// except for those of a DO block: these exist as long as the statement, if the block is the outermost function. The same
// counter before and after means that the statement is the same.
//
// If in doubt, sampled gives no level at all. It reads no other kinds of levels, because their texts change or move.
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
		next, ok3 := r.word(node)
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

// begun reports whether a function has begun: it has pushed its node, and filled the structure behind it. It does so in its
// first call, of plpgsql_estate_setup (pl_exec.c), or just behind it. Before, that structure may be of an earlier function.
func (r *reader) begun(frame *Frame) bool {
	i := 0
	for ; i < len(r.in.Frames) && &r.in.Frames[i] != frame; i++ { // finds the place
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

// deeper reports whether the stack may have nodes before the given head of the list. The last of such nodes points to the
// head, and its callback is a function. If too many words look so, deeper returns true.
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
