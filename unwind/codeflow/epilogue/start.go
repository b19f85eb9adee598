package epilogue

import "pg_stat_backtrace/unwind/arch"

// maxStart bounds the instructions that are looked at.
const maxStart = 64

// Straight reports whether the code at pc belongs to what begins at start: that goes on to pc in a straight line. What
// it calls returns as far as it is said to; else there is no call on the way but one that returns to pc, if any.
func Straight(a *arch.Arch, code Code, start, pc uint64, returning bool) bool {
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
		case x.flow == calls && (returning || x.next == pc):
		case x.flow != on:
			return false
		}
		start = x.next
	}
	return false
}
