// Package golang reads two things that only Go programs have: the table for stack traces, and the goroutines.
//
// Go's linker adds the table, gopclntab, to every program. For a code address it gives the function, its source line,
// the inlined calls, and the distance from the stack pointer to the caller's stack pointer. Stripped programs contain
// the table too. The package supports the formats of Go 1.16, 1.18 and 1.20, with either byte order and address size.
// The format of 1.20 is the current one. Package runtime (symtab.go, symtabinl.go) and cmd/link (ld/pcln.go) of those
// versions describe the formats. Only the header is read at first. A look-up reads a few pieces of some hundred bytes.
//
// Go's run time keeps all goroutines in one list, runtime.allgs (runtime/proc.go). For each goroutine the package gives
// its status, the reason for which it waits, and the registers for walking its stack. The structures in this list differ
// between versions of Go (runtime/runtime2.go). The package has the structures of Go 1.16 to 1.26 for 64-bit Linux. It
// supports other versions only if the program's debugging information describes the structures.
//
// Files and memory may be damaged or hostile: reading is bounded, damaged tables give fewer answers, and goroutines
// that look invalid are ignored. The package must not know of processes, load addresses, where files are found, how
// memory is read or how stacks are walked. All addresses of the table are link-time addresses.
package golang
