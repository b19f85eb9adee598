package probe

// Numbers of words: registerWords of the registers of a hit (struct pt_regs), statusWords of NT_PRSTATUS (struct
// user_regs_struct). user_regs_struct begins with the words of pt_regs. The next word is fs_base, the thread pointer.
const (
	registerWords = 21
	statusWords   = 27
	threadPointer = 21
)
