package codeflow

import "pg_stat_backtrace/unwind/arch"

// maxStart limits the number of instructions that Straight decodes.
const maxStart = 64

// Straight reports whether the processor reaches pc from start without a jump. If returning is set, Straight assumes
// that the calls on the way return. Otherwise the only allowed call is a call that returns to pc.
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
