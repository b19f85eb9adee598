package probe

// Numbers of words of the registers of a hit and of NT_PRSTATUS. Both are struct user_pt_regs, which has no thread pointer.
const (
	registerWords = 34
	statusWords   = 34
	threadPointer = -1
)
