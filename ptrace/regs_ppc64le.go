package ptrace

// stackPointers: struct pt_regs of arch/powerpc/include/uapi/asm/ptrace.h, padded to ELF_NGREG words.
var stackPointers = [...]stackPointer{
	{length: 48 * 8, offset: 1 * 8, size: 8}, // r1
	{length: 44 * 8, offset: 1 * 8, size: 8}, // r1, without the padding
}

// floatingSize: no ABI keeps general registers in floating point ones.
const floatingSize = 0
