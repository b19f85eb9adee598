package snapshot

// stackPointers: struct user_regs_struct of arch/riscv/include/uapi/asm/ptrace.h: pc, ra, sp, …
var stackPointers = [...]stackPointer{
	{length: PRStatusSize, offset: 2 * 8, size: 8}, // sp
}

// FloatingSize is 0: on this architecture, functions do not save general registers in floating point registers.
const FloatingSize = 0

// PRStatusSize is the size in bytes of the general registers (NT_PRSTATUS) of a 64-bit program.
const PRStatusSize = 32 * 8
