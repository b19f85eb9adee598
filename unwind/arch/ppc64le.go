package arch

import (
	"debug/elf"
	"encoding/binary"
)

// Register numbers of ppc64le that the psABI numbers beyond 63 or not at all.
const (
	ppc64LR    = 32 // DWARF 65
	ppc64CTR   = 33 // DWARF 66
	ppc64PC    = 34 // NIP, no DWARF number
	ppc64Count = 35
)

// PPC64LE is 64-bit PowerPC, little endian, ELFv2 ABI: r0 to r31, LR, CTR.
// Floating point, condition and vector registers are not kept.
var PPC64LE = &Arch{
	Name:          "ppc64le",
	Machine:       elf.EM_PPC64,
	Order:         binary.LittleEndian,
	AddrSize:      8,
	PC:            ppc64PC,
	SP:            1,
	FP:            31,
	ReturnColumn:  65,
	NumRegisters:  ppc64Count,
	RedZone:       512,
	RegisterNames: append(numbered("r", 32), "lr", "ctr", "pc"),
	columns:       mapColumns(columnRange{0, 32, 0}, columnRange{65, 2, ppc64LR}),
	// struct pt_regs: r0 to r31, nip, msr, orig_gpr3, ctr, link, and seven words more.
	prstatus: append(run(0, 32), ppc64PC, none, none, ppc64CTR, ppc64LR),
}
