package arch

import (
	"debug/elf"
	"encoding/binary"
)

// Register numbers of riscv64 beyond x0 to x31.
const (
	riscv64PC    = 32 // no DWARF number
	riscv64AltRA = 33 // DWARF 64, the alternate frame return column of signal frames
	riscv64Count = 34
)

// RISCV64 is RV64, little endian (RISC-V DWARF specification): x0 to x31.
// Floating point registers are not kept.
var RISCV64 = &Arch{
	Name:         "riscv64",
	Machine:      elf.EM_RISCV,
	Order:        binary.LittleEndian,
	AddrSize:     8,
	PC:           riscv64PC,
	SP:           2,
	FP:           8,
	ReturnColumn: 1,
	Go:           Go{Injected: 8},
	NumRegisters: riscv64Count,
	// psABI, "Frame Pointer Convention": the frame pointer is the CFA. A leaf function saves only the caller's frame
	// pointer.
	Chain:        Chain{Base: 8, Saved: -16, Return: -8, LeafSaved: -8},
	CodeAlign:    2,
	Instructions: RV64,
	SPWrites: []Pattern{
		pattern16(0xef83, 0x6101), pattern16(0xef83, 0x0101), pattern16(0xef83, 0x8102), // c.addi16sp, c.addi, c.mv
		pattern32(0x00000fff, 0x00000113), pattern32(0x00000fff, 0x00000133), // addi, add
		pattern32(0x00000fff, 0x00000103), pattern16(0xef83, 0x6102), // ld and other loads, c.ldsp
	},
	Trampolines: []Trampoline{{
		// li a7, 139; ecall. siginfo (128), ucontext: 176 up to struct sigcontext, which begins with the registers.
		Code:      []byte{0x93, 0x08, 0xb0, 0x08, 0x73, 0x00, 0x00, 0x00},
		Registers: 128 + 176,
	}},
	RegisterNames: append([]string{
		"zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1",
		"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7",
		"s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
	}, "pc", "altra"),
	columns: mapColumns(columnRange{0, 32, 0}, columnRange{64, 1, riscv64AltRA}),
	// struct user_regs_struct: pc, x1 to x31.
	prstatus: append([]int8{riscv64PC}, run(1, 31)...),
}
