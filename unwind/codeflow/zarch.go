package codeflow

import (
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

// ofZArch is s390x: a call leaves the return address in r14.
//
//nolint:gochecknoglobals // a table
var ofZArch = machine{
	pc: arch.S390X.PC, sp: disasm.ZArchSP, link: disasm.ZArchRA,
	// zSeries ELF ABI, "Registers": calls preserve r6 to r13, r15 and f8 to f15, which package arch numbers from 24
	// on. r14 holds the return address at the function's entry. Afterwards the function may use r14 freely.
	scratch:   []int{0, 1, 2, 3, 4, 5, disasm.ZArchRA, 16, 17, 18, 19, 20, 21, 22, 23},
	decode:    plainly(disasm.DecodeZArch),
	change:    changePlain,
	returnsTo: linkedAddress,
}
