package unwind

import "encoding/binary"

// The walk does not follow the instructions of riscv64 and s390x. It only recognises calls in this code, so that it can
// verify return addresses. Every call stores its return address in the register that the ABI names.

// rv64Longest and zarchLongest are the maximum lengths of a call in bytes.
const (
	rv64Longest  = 4
	zarchLongest = 6
)

// rv64Call is like x86Call, but for riscv64 (RISC-V Instruction Set Manual, volume I: JAL, JALR, C.JALR). The return
// address is in x1.
func rv64Call(p []byte, ra uint64) (called, direct bool, target uint64) {
	const jal, jalr, link = 0b1101111, 0b1100111, 1
	switch w := binary.LittleEndian.Uint32(p); {
	case w&0xfff == link<<7|jal:
		distance := uint64(w>>12&0xff)<<12 | uint64(w>>20&1)<<11 | uint64(w>>21&0x3ff)<<1
		if w>>31 != 0 {
			distance -= 1 << 20
		}
		return true, true, ra - rv64Longest + distance
	case w&0x7fff == link<<7|jalr:
		return true, false, 0
	}
	half := binary.LittleEndian.Uint16(p[2:])
	return half&0xf07f == 0x9002 && half != 0x9002, false, 0 // 0x9002 is C.EBREAK
}

// zarchCall is like x86Call, but for s390x (z/Architecture Principles of Operation: BRASL, BRAS, BAS, BASR). The return
// address is in r14.
func zarchCall(p []byte, ra uint64) (called, direct bool, target uint64) {
	const brasl, bras, bas, basr = 0xc0e5, 0xa7e5, 0x4de0, 0x0de0
	word := func(at int) uint16 { return binary.BigEndian.Uint16(p[at:]) }
	switch {
	case word(0) == brasl:
		return true, true, ra - zarchLongest + 2*uint64(int64(int32(binary.BigEndian.Uint32(p[2:]))))
	case word(2) == bras:
		return true, true, ra - 4 + 2*uint64(int64(int16(word(4))))
	case word(2)&0xfff0 == bas:
		return true, false, 0
	}
	return word(4)&0xfff0 == basr && word(4) != basr, false, 0 // with r0 as its target, BASR does not branch
}
