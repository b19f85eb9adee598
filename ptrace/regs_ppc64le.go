package ptrace

// stackPointers: struct pt_regs of arch/powerpc/include/uapi/asm/ptrace.h, padded to ELF_NGREG words.
var stackPointers = [...]stackPointer{
	{length: prStatusSize, offset: 1 * 8, size: 8}, // r1
	{length: 44 * 8, offset: 1 * 8, size: 8},       // r1, without the padding
}

// floatingSize is 0, because no ABI function saves general registers in floating point registers.
const floatingSize = 0

// prStatusSize is the length of the general registers (NT_PRSTATUS) of a 64-bit program.
const prStatusSize = 48 * 8
