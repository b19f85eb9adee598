package bpf

// stackPointer is which word of struct pt_regs it is (asm/ptrace.h).
const stackPointer = 19

// savedRegisters are the words of struct pt_regs that are read: the general registers, orig_ax, ip and sp. The rest
// shares its words with other things on some kernels.
//
//nolint:gochecknoglobals // a table
var savedRegisters = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, stackPointer}
