package arch

import (
	"debug/elf"
	"encoding/binary"
)

// ARM64 is aarch64, little endian ("DWARF for the Arm 64-bit Architecture"). The registers are x0 to x30, SP 31 and PC
// 32. Column 34, RA_SIGN_STATE, is not a register here: see cfi.Row.RASigned.
var ARM64 = &Arch{
	Name:         "aarch64",
	Machine:      elf.EM_AARCH64,
	Order:        binary.LittleEndian,
	AddrSize:     8,
	PC:           32,
	SP:           31,
	FP:           29,
	ReturnColumn: 30,
	Go:           Go{SavedFP: 8, Injected: 16},
	NumRegisters: 33,
	Preserved:    []int{19, 20, 21, 22, 23, 24, 25, 26, 27, 28},
	// By default, processes have 48-bit addresses. Bit 55 distinguishes user space from the kernel, so the
	// authentication code does not use this bit.
	CodeMask: 0xff7f_0000_0000_0000,
	// A frame record may lie anywhere in its frame (AAPCS64, 6.4.6).
	Chain: Chain{Base: 29, Saved: 0, Return: 8, SP: 16, Loose: true, ZeroEnds: true},
	Trampolines: []Trampoline{{
		// mov x8, #139; svc #0. siginfo (128), ucontext: 176 up to struct sigcontext, fault address, struct user_pt_regs.
		Code:      []byte{0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4},
		Registers: 128 + 176 + 8,
		// The size of struct rt_sigframe, including 4096 bytes of other registers.
		BelowRecord: 4688,
	}},
	CodeAlign:    4,
	Instructions: A64,
	SPWrites: []Pattern{
		pattern32(0xff00001f, 0x9100001f), pattern32(0xff00001f, 0xd100001f), // add, sub of an immediate; mov
		pattern32(0xffe0001f, 0xcb20001f), pattern32(0xffe0001f, 0x8b20001f), // sub, add of a register
		pattern32(0x3a8003e0, 0x288003e0), // stp, ldp with write-back
		pattern32(0x3b2007e0, 0x380007e0), // str, ldr with write-back
	},
	RegisterNames: append(numbered("x", 31), "sp", "pc"),
	columns:       mapColumns(columnRange{0, 33, 0}),
	// struct user_pt_regs: x0 to x30, sp, pc, pstate.
	prstatus: append(run(0, 33), none),
}
