package unwind

// Code is implemented by Modules that can read code by address in memory. If Modules does not implement Code, a walk
// recognises no signal trampoline by its instructions, and cannot use the link register.
type Code interface {
	// Code fills p with the code at addr; false if not all of it can be read.
	Code(addr uint64, p []byte) bool
	// Function returns the limits of the function that contains addr; false if they are not known.
	Function(addr uint64) (start, end uint64, ok bool)
	// Stub reports whether addr lies in a stub of the procedure linkage table. A stub jumps to a function of another
	// image. It does not change the stack or a callee-saved register.
	Stub(addr uint64) bool
}
