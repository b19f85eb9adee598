package bpf

// Which words of struct pt_regs these are (asm/ptrace.h). The number of the system call that a thread is in is -1 if
// it is in none, and no longer when all other registers are those of before the signal.
const (
	systemCall   = 15
	stackPointer = 19
)

const signalReturn = 15 // rt_sigreturn(2)

// savedRegisters are the words of struct pt_regs that are read: the general registers, orig_ax, ip and sp. The rest
// shares its words with other things on some kernels.
//
//nolint:gochecknoglobals // a table
var savedRegisters = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, stackPointer}
