package snapshot

// stackPointers has the place of the stack pointer in struct pt_regs (arch/powerpc/include/uapi/asm/ptrace.h), padded
// to ELF_NGREG words or not.
var stackPointers = [...]stackPointer{
	{length: PRStatusSize, offset: 1 * 8, size: 8}, // r1
	{length: 44 * 8, offset: 1 * 8, size: 8},       // r1, without the padding
}

// FloatingSize is 0: on this architecture, functions do not save general registers in floating point registers.
const FloatingSize = 0

// PRStatusSize is the size in bytes of the general registers (NT_PRSTATUS) of a 64-bit program.
const PRStatusSize = 48 * 8
