package codeflow

import (
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

// ofRV64 is riscv64: a call leaves the return address in ra.
//
//nolint:gochecknoglobals // a table
var ofRV64 = machine{
	pc: arch.RISCV64.PC, sp: disasm.RV64SP, link: disasm.RV64RA,
	// RISC-V psABI, "Integer Register Convention": calls preserve sp and s0 to s11, and functions do not change gp
	// and tp. ra holds the return address at the function's entry. Afterwards the function may use ra freely.
	scratch:   []int{disasm.RV64RA, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30, 31},
	decode:    plainly(disasm.DecodeRV64),
	change:    changePlain,
	returnsTo: linkedAddress,
}
