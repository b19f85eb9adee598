package probe

// Words of the registers of a hit (struct pt_regs), and of NT_PRSTATUS (struct user_regs_struct), which begins with
// them. fs_base follows.
const (
	registerWords = 21
	statusWords   = 27
	threadPointer = 21
)
