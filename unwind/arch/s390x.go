package arch

import (
	"debug/elf"
	"encoding/binary"
)

// Register numbers of s390x: 16 to 31 are floating point registers, in which leaf functions save general registers.
const (
	s390xPC    = 32 // PSW address, DWARF 65
	s390xCount = 33
)

// s390xFPOrder returns the DWARF columns of %f0, %f1, … (zSeries ELF ABI, table 1.2).
func s390xFPOrder() []int8 {
	return []int8{16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31}
}

// S390X is z/Architecture, 64 bit, big endian. The CFA is 160 bytes (the size of the register save area) above the
// caller's SP.
var S390X = &Arch{
	Name:         "s390x",
	Machine:      elf.EM_S390,
	Order:        binary.BigEndian,
	AddrSize:     8,
	PC:           s390xPC,
	SP:           15,
	FP:           11,
	ReturnColumn: 14,
	Go:           Go{Injected: 8},
	NumRegisters: s390xCount,
	CFAToSP:      -160,
	// zSeries ELF ABI: the back chain, if a program keeps one (-mbackchain), and r14's slot in the register save area.
	Chain:        Chain{Base: 15, Saved: 0, Return: 112, InCaller: true, ZeroEnds: true},
	CodeAlign:    2,
	Instructions: ZArch,
	SPWrites: []Pattern{
		{[]byte{0xff, 0xf0}, []byte{0xe3, 0xf0}}, {[]byte{0xff, 0xff}, []byte{0xa7, 0xfb}}, // lay, lg; aghi
		{[]byte{0xff, 0xf0}, []byte{0x41, 0xf0}}, {[]byte{0xff, 0xf0}, []byte{0xc2, 0xf0}}, // la; agfi, slgfi
		{[]byte{0xff, 0x0f, 0, 0, 0, 0xff}, []byte{0xeb, 0x0f, 0, 0, 0, 0x04}}, // lmg
		{[]byte{0xff, 0xff, 0, 0xf0}, []byte{0xb9, 0x04, 0, 0xf0}},             // lgr
	},
	Trampolines: []Trampoline{
		{
			// svc 119, for handlers without siginfo: 160 bytes of save area, struct sigcontext, _sigregs: PSW, general,
			// access and floating point registers.
			Code:        []byte{0x0a, 0x77},
			Registers:   160 + 16,
			FPRegisters: 160 + 16 + 16 + 128 + 64,
		},
		{
			// svc 173: save area, the instruction (8 with padding), siginfo (128), 40 of ucontext, _sigregs.
			Code:        []byte{0x0a, 0xad},
			Registers:   160 + 8 + 128 + 40,
			FPRegisters: 160 + 8 + 128 + 40 + 16 + 128 + 64,
		},
	},
	RegisterNames: append(numbered("r", 16), "f0", "f2", "f4", "f6", "f1", "f3", "f5", "f7",
		"f8", "f10", "f12", "f14", "f9", "f11", "f13", "f15", "pc"),
	columns: mapColumns(columnRange{0, 32, 0}, columnRange{65, 1, s390xPC}),
	// s390_regs: PSW mask, PSW address, r0 to r15, and access registers.
	prstatus: append([]int8{none, s390xPC}, run(0, 16)...),
	// s390_fp_regs: control word, f0 to f15.
	fpregs: append([]int8{none}, s390xFPOrder()...),
}
