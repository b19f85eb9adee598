package selfnames

import (
	"debug/elf"

	"pg_stat_backtrace/unwind/cfi"
)

// machine contains the differences between architectures.
type machine struct {
	// decode decodes the instruction at pc into e, and returns false if it cannot. If writes is false, e need not have
	// the registers that the instruction writes.
	decode func(p []byte, pc uint64, e *effect, writes bool) bool
	// stub returns the address of the slot from which the stub at addr jumps, 0 if the code is not a stub.
	stub func(p []byte, addr uint64) uint64
	// args are the registers of the first four arguments. clobber has the registers that a call may change, bit n for
	// register n.
	args    [4]uint8
	clobber uint32
	// relative is the type of relocations that write the sum of load address and addend.
	relative uint64
	// At a function's entry, the CFA is frameRegister plus frameOffset, and the row has at most frameRules rules.
	frameRegister, frameRules int
	frameOffset               int64
	// verified is set if the rules that give names were verified with builds that have symbols.
	verified bool
}

// machines are the supported architectures.
var machines = map[elf.Machine]*machine{
	elf.EM_X86_64: {
		decode: effectX86, stub: stubX86, args: [4]uint8{7, 6, 2, 1}, clobber: 0xfc7, // rdi, rsi, rdx, rcx
		relative: uint64(elf.R_X86_64_RELATIVE), frameRegister: 7, frameOffset: 8, frameRules: 1, verified: true,
	},
	elf.EM_AARCH64: {
		decode: decodeAArch64, stub: stubAArch64, args: [4]uint8{0, 1, 2, 3}, clobber: 0x4007ffff,
		relative: uint64(elf.R_AARCH64_RELATIVE), frameRegister: 31, verified: true,
	},
}

// isEntry reports whether a row describes the frame at a function's entry.
func (m *machine) isEntry(row *cfi.Row) bool {
	return row.CFA.Kind == cfi.RuleRegister && int(row.CFA.Register) == m.frameRegister &&
		row.CFA.Offset == m.frameOffset && len(row.Rules()) <= m.frameRules
}
