package codeflow_test

import (
	"slices"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

var amd64 = machine{
	arch: arch.AMD64, preserved: []int{rbx, rbp, r12, 13, 14, 15}, pushed: 8, most: disasm.LongestX86, scan: scanX86,
}

func scanX86(start uint64, code []byte) []described {
	preservedBy := map[x86asm.Arg]int{
		x86asm.RBX: rbx, x86asm.RBP: rbp, x86asm.R12: r12, x86asm.R13: 13, x86asm.R14: 14, x86asm.R15: 15,
	}
	var all []described
	for at := uint64(0); at < uint64(len(code)); {
		x, err := disasm.DecodeX86(code[at:])
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
	arch: arch.ARM64, preserved: []int{19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}, most: disasm.LengthA64,
	scan: scanPlain(arch.ARM64, disasm.DecodeA64, "\x1f\x20\x03\xd5"),
}

// scanPlain scans code that package disasm decodes. nop is the instruction that aligns functions. It skips
// instructions that disasm does not decode, for example vectors of a scalable length.
func scanPlain(
	a *arch.Arch, decode func([]byte) (disasm.Instruction, error), nop string,
) func(start uint64, code []byte) []described {
	return func(start uint64, code []byte) []described {
		var all []described
		for at := uint64(0); at < uint64(len(code)); {
			d := described{at: start + at}
			x, err := decode(code[at:])
			if err != nil {
				x.Length = uint64(max(a.CodeAlign, 2))
			} else {
				d.nop = strings.HasPrefix(string(code[at:]), nop)
				d.call = x.Flow == disasm.Call
				d.leaves = x.Flow != disasm.Next && x.Flow != disasm.Branch && !d.call
				d.breaks = d.leaves
				if x.Direct && !d.call {
					d.to = start + at + uint64(x.Target)
				}
				if x.Access.Load && (x.Access.Base == a.SP || x.Access.Base == a.FP) {
					d.restores = slices.Clone(x.Access.Whole[:x.Access.Count])
				}
			}
			at += x.Length
			d.next = start + at
			all = append(all, d)
		}
		return all
	}
}
