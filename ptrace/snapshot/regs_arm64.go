package snapshot

// stackPointers has the place of the stack pointer in struct user_pt_regs (arch/arm64/include/uapi/asm/ptrace.h), and
// in struct pt_regs of 32-bit programs.
var stackPointers = [...]stackPointer{
	{length: PRStatusSize, offset: 31 * 8, size: 8}, // sp
	{length: 18 * 4, offset: 13 * 4, size: 4},       // r13
}

// FloatingSize is 0: on this architecture, functions do not save general registers in floating point registers.
const FloatingSize = 0

// PRStatusSize is the size in bytes of the general registers (NT_PRSTATUS) of a 64-bit program.
const PRStatusSize = 34 * 8
