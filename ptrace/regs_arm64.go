package ptrace

// stackPointers: struct user_pt_regs of arch/arm64/include/uapi/asm/ptrace.h, and the 32-bit struct pt_regs.
var stackPointers = [...]stackPointer{
	{length: 34 * 8, offset: 31 * 8, size: 8}, // sp
	{length: 18 * 4, offset: 13 * 4, size: 4}, // r13
}

// floatingSize is 0, because no ABI function saves general registers in floating point registers.
const floatingSize = 0
