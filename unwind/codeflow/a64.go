package codeflow

import (
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

// ofA64 is the machine for aarch64: a call stores the return address in X30.
//
//nolint:gochecknoglobals // a table
var ofA64 = machine{
	pc: arch.ARM64.PC, sp: disasm.A64SP, link: disasm.A64LR,
	// AAPCS64, 6.1.1: calls preserve X19 to X29 and SP. At the function's entry X30 contains the return address.
	// Afterwards the function may use X30 freely.
	scratch:   []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, disasm.A64LR},
	decode:    plainly(disasm.DecodeA64),
	change:    changePlain,
	returnsTo: linkedAddress,
}
