package probe

// Words of the registers of a hit (struct pt_regs), and of NT_PRSTATUS (struct user_regs_struct). The latter begins
// with the former, and fs_base, the thread pointer, follows.
const (
	registerWords = 21
	statusWords   = 27
	threadPointer = 21
)
