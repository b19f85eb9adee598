package ptrace

// stackPointers: struct user_regs_struct of arch/riscv/include/uapi/asm/ptrace.h: pc, ra, sp, …
var stackPointers = [...]stackPointer{
	{length: prStatusSize, offset: 2 * 8, size: 8}, // sp
}

// floatingSize is 0, because no ABI function saves general registers in floating point registers.
const floatingSize = 0

// prStatusSize is the length of the general registers (NT_PRSTATUS) of a 64-bit program.
const prStatusSize = 32 * 8
