package snapshot

// stackPointers has the place of the stack pointer in struct user_regs_struct (arch/riscv/include/uapi/asm/ptrace.h),
// which begins with pc, ra and sp.
var stackPointers = [...]stackPointer{
	{length: PRStatusSize, offset: 2 * 8, size: 8}, // sp
}

// FloatingSize is 0: on this architecture, functions do not save general registers in floating point registers.
const FloatingSize = 0

// PRStatusSize is the size in bytes of the general registers (NT_PRSTATUS) of a 64-bit program.
const PRStatusSize = 32 * 8
