package arch

import (
	"debug/elf"
	"encoding/binary"
)

// ARM64 is aarch64, little endian ("DWARF for the Arm 64-bit Architecture"):
// x0 to x30, SP 31, PC 32; 34 is RA_SIGN_STATE, which the CFI rows carry.
var ARM64 = &Arch{
	Name:         "aarch64",
	Machine:      elf.EM_AARCH64,
	Order:        binary.LittleEndian,
	AddrSize:     8,
	PC:           32,
	SP:           31,
	FP:           29,
	ReturnColumn: 30,
	NumRegisters: 33,
	// Processes have 48-bit addresses unless they ask for more; bit 55 tells user space from the kernel.
	CodeMask:      0xff7f_0000_0000_0000,
	RegisterNames: append(numbered("x", 31), "sp", "pc"),
	columns:       mapColumns(columnRange{0, 33, 0}),
	// struct user_pt_regs: x0 to x30, sp, pc, pstate.
	prstatus: append(run(0, 33), none),
}
