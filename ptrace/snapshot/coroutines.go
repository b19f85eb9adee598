package snapshot

// Coroutines describes how to find the other stacks of a thread whose program runs coroutines on separate stacks. The
// search leads from the structure of the current coroutine to the thread's structure, and from there to all
// coroutines of the thread. Structures that do not match are ignored: a coroutine must point at its thread, and the
// thread at it.
type Coroutines struct {
	// Roots are up to eight places in memory that may have a pointer to the structure of the coroutine that a thread runs.
	// The first root that leads to such a structure is used.
	Roots []Root
	// Low, High, Saved and Owner are offsets in a coroutine's structure: of the limits of its stack, of its saved
	// stack pointer, and of the pointer to its thread's structure.
	Low, High, Saved, Owner int
	// Size is how many bytes of a coroutine's structure to copy, OwnerSize how many of a thread's, each at most 256.
	// Any word of a thread's structure may point to a coroutine. The first word points to the coroutine of the
	// thread's own stack. This stack continues beyond High, except if it was allocated beside the structure.
	Size, OwnerSize int
}

// Root is a word in memory, Offset bytes after the address in a register. Register is the byte offset of this register
// in Thread.Registers.
type Root struct {
	Register int
	Offset   int64
}
