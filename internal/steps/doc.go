// Package steps runs a process one instruction at a time (PTRACE_SINGLESTEP), and knows its call stack by what it has
// done: a call puts a return address on the stack, and it counts until the stack pointer has passed it. That takes no
// call frame information, no frame pointer and no guess, and holds between any two instructions: what an unwinder says
// there is compared with it.
//
// It is for processes with one thread, on x86_64. It must not know how stacks are unwound.
package steps
