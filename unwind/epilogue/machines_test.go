package epilogue_test

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/a64"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/x86"
)

var amd64 = machine{
	arch: arch.AMD64, preserved: []int{rbx, rbp, r12, 13, 14, 15}, pushed: 8, most: x86.Longest, scan: scanX86,
}

func scanX86(start uint64, code []byte) []described {
	preservedBy := map[x86asm.Arg]int{
		x86asm.RBX: rbx, x86asm.RBP: rbp, x86asm.R12: r12, x86asm.R13: 13, x86asm.R14: 14, x86asm.R15: 15,
	}
	var all []described
	for at := uint64(0); at < uint64(len(code)); {
		x, err := x86.Decode(code[at:])
		if err != nil {
			return all
		}
		_, relative := x.Args[0].(x86asm.Rel)
		leaves := x.Op == x86asm.RET || x.Op == x86asm.JMP || x.Op == x86asm.UD2
		d := described{
			at: start + at, next: start + at + uint64(x.Len),
			nop:    x.Op == x86asm.NOP || x.Op == x86asm.XCHG && x.Args[0] == x.Args[1],
			leaves: leaves, call: x.Op == x86asm.CALL, breaks: relative || leaves,
		}
		if m, ok := x.Args[1].(x86asm.Mem); ok && x.Op == x86asm.MOV && (m.Base == x86asm.RBP || m.Base == x86asm.RSP) {
			if reg, ok := preservedBy[x.Args[0]]; ok {
				d.restores = []int{reg}
			}
		}
		all = append(all, d)
		at += uint64(x.Len)
	}
	return all
}

var arm64 = machine{
	arch: arch.ARM64, preserved: []int{19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}, most: a64.Length, scan: scanA64,
}

func scanA64(start uint64, code []byte) []described {
	var all []described
	for at := uint64(0); at+a64.Length <= uint64(len(code)); at += a64.Length {
		d := described{at: start + at, next: start + at + a64.Length}
		x, err := a64.Decode(code[at:])
		if err == nil { // vectors of a scalable length are passed over
			d.nop = string(code[at:at+a64.Length]) == "\x1f\x20\x03\xd5"
			d.call = x.Flow == a64.Call
			d.leaves = x.Flow != a64.Next && x.Flow != a64.Branch && !d.call
			d.breaks = x.Flow != a64.Next && !d.call
			if x.Access.Load && (x.Access.Base == a64.SP || x.Access.Base == a64.FP) {
				d.restores = x.Access.Whole[:x.Access.Count]
			}
		}
		all = append(all, d)
	}
	return all
}
