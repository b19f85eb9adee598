package snapshot

// stackPointers has the place of the stack pointer in s390_regs (arch/s390/include/uapi/asm/ptrace.h): after the PSW of
// 16 bytes come the general registers.
var stackPointers = [...]stackPointer{
	{length: PRStatusSize, offset: 16 + 15*8, size: 8}, // r15
}

// FloatingSize is the size in bytes of s390_fp_regs: a control word and f0 to f15. Leaf functions save general
// registers in f0 to f15.
const FloatingSize = 17 * 8

// PRStatusSize is the size in bytes of the general registers (NT_PRSTATUS) of a 64-bit program.
const PRStatusSize = 27 * 8
