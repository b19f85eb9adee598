package snapshot

// ExtraReads is memory to copy in the same stop as the stacks, so that it matches the stacks. It consists of a few
// variables, the memory to which they point, the memory to which the nodes of a list on the main thread's stack point,
// and ranges. Unreadable memory is left out. The zero value requests nothing.
type ExtraReads struct {
	// Variables are up to eight addresses of pointers.
	Variables []Variable
	// Head is the address of a pointer to the first node of a list, 0 for no list. A node is a pointer to the next
	// node, a word that may identify its kind, and a pointer, its argument. The list is followed as long as its nodes
	// lie on the copied stack of the main thread, each beyond the previous one.
	Head uint64
	// OnStack says what to copy for a node of none of the Kinds, if its argument points into the copied stack.
	OnStack []Deref
	// Kinds are up to four known kinds of nodes.
	Kinds []Kind
	// Counters are up to four counters, for a process that is not stopped. If a counter has changed between two reads,
	// the memory may be from another moment than the stack.
	Counters []Counter
	// Elsewhere is how many bytes to copy from where a node's argument points, if this is not on the copied stack.
	Elsewhere int
	// Ranges are up to 256 pieces of memory at known addresses, 512 KiB in all. They are copied last.
	Ranges []Range
}

// Range is Length bytes of the target's memory at an address.
type Range struct {
	Address uint64
	Length  int
}

// Variable is a pointer in the target at a known address.
type Variable struct {
	Address uint64
	Follow  int // bytes to copy from the memory to which the pointer points; 0: none
	// Expected is the value that an earlier capture found; 0 means unknown. If the pointer still has this value, the
	// data to which it points is read together with the stack, without a further system call.
	Expected uint64
}

// Kind says what to copy for nodes with this word, if their argument points into the copied stack.
type Kind struct {
	Word    uint64
	OnStack []Deref
}

// Counter is a 32-bit number, Offset bytes after the target of the pointer at Address. It is odd while the process
// writes the data that belongs to the counter.
type Counter struct {
	Address uint64
	Offset  int
}

// Deref names a pointer that lies Offset bytes after the address in a node's argument. Length bytes are copied from
// where that pointer points.
type Deref struct {
	Offset, Length int
}

// Bounds of ExtraReads.
const (
	MaxVariables = 8
	MaxDerefs    = 8
	MaxKinds     = 4
	MaxCounters  = 4
	MaxNodes     = 128
	MaxBlocks    = 768  // less than IOV_MAX, so that one system call can read them
	MaxFollow    = 4096 // bytes from one pointer
)
