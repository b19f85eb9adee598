package snapshot

// stackPointers has the place of the stack pointer in struct user_regs_struct of arch/x86/include/asm/user_64.h and,
// for 32-bit programs, of user_32.h.
var stackPointers = [...]stackPointer{
	{length: PRStatusSize, offset: 19 * 8, size: 8}, // rsp
	{length: 17 * 4, offset: 15 * 4, size: 4},       // esp
}

// FloatingSize is 0: on this architecture, functions do not save general registers in floating point registers.
const FloatingSize = 0

// PRStatusSize is the size in bytes of the general registers (NT_PRSTATUS) of a 64-bit program.
const PRStatusSize = 27 * 8
