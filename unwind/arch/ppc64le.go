package arch

import (
	"debug/elf"
	"encoding/binary"
)

// Register numbers of ppc64le for registers whose DWARF number is above 63, or that have none.
const (
	ppc64LR    = 32 // DWARF 65
	ppc64CTR   = 33 // DWARF 66
	ppc64PC    = 34 // NIP, no DWARF number
	ppc64Count = 35
)

// ppc64SPWrites are the SPWrites of 64-bit PowerPC.
var ppc64SPWrites = []Pattern{
	pattern32(0xffff0003, 0xf8210001), pattern32(0xffff07ff, 0x7c21016a), // stdu, stdux
	pattern32(0xffff0000, 0x38210000), pattern32(0xffe00000, 0x38200000), // addi
	pattern32(0xffe00003, 0xe8200000), // ld
	pattern32(0xfc1f07ff, 0x7c010378), // mr
}

// PPC64LE is 64-bit PowerPC, little endian, ELFv2 ABI: r0 to r31, LR, CTR.
// Floating point, condition and vector registers are not kept.
var PPC64LE = &Arch{
	Name:         "ppc64le",
	Machine:      elf.EM_PPC64,
	Order:        binary.LittleEndian,
	AddrSize:     8,
	PC:           ppc64PC,
	SP:           1,
	FP:           31,
	ReturnColumn: 65,
	Go:           Go{Injected: 32},
	NumRegisters: ppc64Count,
	RedZone:      512,
	// ELFv2 ABI, 2.2.2.1: the back chain is mandatory, and a function saves LR in its caller's frame.
	Chain:     Chain{Base: 1, Saved: 0, Return: 16, InCaller: true, ZeroEnds: true, Mandatory: true},
	CodeAlign: 4,
	SPWrites:  ppc64SPWrites,
	Restored:  ppc64Restored,
	// ELFv2 ABI, "Procedure Linkage Table": std r2, 24(r1); addis r12, r2, n; ld r12, n(r12); mtctr r12; bctr. A stub
	// for a near target has no addis.
	CallStubs: [][]Pattern{
		{
			pattern32(0xffffffff, 0xf8410018), pattern32(0xffff0000, 0x3d820000), pattern32(0xffff0003, 0xe98c0000),
			pattern32(0xffffffff, 0x7d8903a6), pattern32(0xffffffff, 0x4e800420),
		},
		{
			pattern32(0xffffffff, 0xf8410018), pattern32(0xffff0003, 0xe9820000),
			pattern32(0xffffffff, 0x7d8903a6), pattern32(0xffffffff, 0x4e800420),
		},
	},
	Trampolines: []Trampoline{
		{
			// The trampoline of the vDSO: addi r1, 128; li r0, 172; sc. The frame begins with 128 bytes for the
			// handler's caller. A ucontext follows: 168 bytes up to struct sigcontext, with the registers 64 bytes
			// after its start.
			Code:      []byte{0x80, 0x00, 0x21, 0x38, 0xac, 0x00, 0x00, 0x38, 0x02, 0x00, 0x00, 0x44},
			Registers: 128 + 168 + 64,
		},
		{
			// The return from a signal handler in qemu's user mode: li r0, 172; sc. Its frame has 16 bytes more before
			// the ucontext.
			Code:      []byte{0xac, 0x00, 0x00, 0x38, 0x02, 0x00, 0x00, 0x44},
			Registers: 144 + 168 + 64,
		},
	},
	RegisterNames: append(numbered("r", 32), "lr", "ctr", "pc"),
	columns:       mapColumns(columnRange{0, 32, 0}, columnRange{65, 2, ppc64LR}),
	// struct pt_regs: r0 to r31, nip, msr, orig_gpr3, ctr, link, and seven words more.
	prstatus: append(run(0, 32), ppc64PC, none, none, ppc64CTR, ppc64LR),
}

// ppc64Restored is Arch.Restored for 64-bit PowerPC. A frame is removed by an addi of the size that stdu subtracted, or
// by an ld of the back chain. After a jump or a return, the code is reached from elsewhere, so SP is unknown.
func ppc64Restored(code []byte) bool {
	const stdu, addi, ldBack, b, blr, bctr = 0xf8210001, 0x38200000, 0xe8210000, 0x48000000, 0x4e800020, 0x4e800420
	size, restored := int64(0), false
	for ; len(code) >= 4; code = code[4:] {
		switch insn := binary.LittleEndian.Uint32(code); {
		case insn&0xffff0003 == stdu:
			size, restored = -int64(int16(insn&0xfffc)), false
		case insn&0xffe00000 == addi:
			restored = size > 0 && int64(int16(insn&0xffff)) == size
		case insn == ldBack:
			restored = true
		case insn&0xfc000001 == b || insn == blr || insn == bctr || movesSP(ppc64SPWrites, code):
			restored = false
		}
	}
	return restored
}
