package ptrace

// stackPointers: struct user_regs_struct of arch/riscv/include/uapi/asm/ptrace.h: pc, ra, sp, …
var stackPointers = [...]stackPointer{
	{length: 32 * 8, offset: 2 * 8, size: 8}, // sp
}

// floatingSize is 0, because no ABI function saves general registers in floating point registers.
const floatingSize = 0
