// Package steps runs a process one instruction at a time (PTRACE_SINGLESTEP), and derives its call stack from the
// executed instructions. A call is open until the process is back at the return address, or the stack pointer is
// beyond its value at the call. This method needs no call frame information, no frame pointer and no guess. It is
// correct between any two instructions, so the tests of unwinders compare their results with it.
//
// It is for processes with one thread, on x86_64 and aarch64. The kernel cannot single-step on riscv64. On ppc64le an
// atomic sequence never ends while it is stepped. On s390x, as qemu emulates it, a stepped process loses saved
// registers and then fails. The package must not know how stacks are unwound.
package steps
