package epilogue

import "pg_stat_backtrace/unwind/arch"

// maxStart bounds the instructions before a program's first call.
const maxStart = 64

// Straight reports whether the code at pc belongs to what begins at start: that goes on to pc in a straight line, on
// which there is no call but one that returns to pc, if any.
func Straight(a *arch.Arch, code Code, start, pc uint64) bool {
	m := machineOf(a)
	if m == nil {
		return false
	}
	var x instruction
	for range maxStart {
		switch {
		case start == pc:
			return true
		case start > pc || m.decode(code.Bytes(start), start, &x) != nil:
			return false
		case x.flow != on && (x.flow != calls || x.next != pc):
			return false
		}
		start = x.next
	}
	return false
}
