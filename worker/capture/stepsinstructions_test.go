package capture

import (
	"encoding/binary"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

// kind is the effect of an instruction on the stack of calls; for a call, its length in bytes.
type kind int8

const (
	plainKind kind = 0
	system    kind = -1 // a call of the kernel
	pops      kind = -2 // the instruction takes a word off the stack, which may be the return address
	leaps     kind = -3 // a jump to an address in a register or in memory, or a return by a register
)

// longestInstruction is how many bytes an instruction has at most.
const longestInstruction = 15

// classifiers have, for each instruction set, the function that returns the kind of an instruction; nil: processes are
// not stepped. An instruction that cannot be decoded is newer than the decoder, and is not a call.
var classifiers = [...]func(code []byte) kind{
	arch.Unfollowed: nil,
	arch.X86:        classifyX86,
	arch.A64:        classifyA64,
	arch.ZArch:      nil,
	arch.RV64:       nil,
}

func classifyX86(code []byte) kind {
	x, _ := x86asm.Decode(code, 64)
	switch x.Op {
	case x86asm.CALL:
		return kind(x.Len)
	case x86asm.SYSCALL:
		return system
	case x86asm.POP:
		return pops
	case x86asm.JMP:
		if _, relative := x.Args[0].(x86asm.Rel); relative {
			return plainKind
		}
		return leaps
	default:
		return plainKind
	}
}

func classifyA64(code []byte) kind {
	const svc, immediate = 0xd4000001, 0xffff << 5 // Arm ARM, C6.2: SVC
	if len(code) >= disasm.LengthA64 && binary.LittleEndian.Uint32(code)&^immediate == svc {
		return system
	}
	x, err := disasm.DecodeA64(code)
	switch {
	case err == nil && x.Flow == disasm.Call:
		return disasm.LengthA64
	case err == nil && (x.Flow == disasm.Unknown || x.Flow == disasm.Return):
		return leaps
	default:
		return plainKind
	}
}
