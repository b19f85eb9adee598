package arch

import (
	"debug/elf"
	"encoding/binary"
)

// Register numbers of s390x: 16 to 31 are floating point registers, in which
// leaf functions keep general ones.
const (
	s390xPC    = 32 // PSW address, DWARF 65
	s390xCount = 33
)

// s390xFPOrder gives the DWARF column of %f0, %f1, … (zSeries ELF ABI, table 1.2).
func s390xFPOrder() []int8 {
	return []int8{16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31}
}

// S390X is z/Architecture, 64 bit, big endian. The CFA lies 160 bytes (the
// register save area) above the caller's SP.
var S390X = &Arch{
	Name:         "s390x",
	Machine:      elf.EM_S390,
	Order:        binary.BigEndian,
	AddrSize:     8,
	PC:           s390xPC,
	SP:           15,
	FP:           11,
	ReturnColumn: 14,
	NumRegisters: s390xCount,
	CFAToSP:      -160,
	RegisterNames: append(numbered("r", 16), "f0", "f2", "f4", "f6", "f1", "f3", "f5", "f7",
		"f8", "f10", "f12", "f14", "f9", "f11", "f13", "f15", "pc"),
	columns: mapColumns(columnRange{0, 32, 0}, columnRange{65, 1, s390xPC}),
	// s390_regs: PSW mask, PSW address, r0 to r15, and access registers.
	prstatus: append([]int8{none, s390xPC}, run(0, 16)...),
	// s390_fp_regs: control word, f0 to f15.
	fpregs: append([]int8{none}, s390xFPOrder()...),
}
