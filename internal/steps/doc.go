// Package steps runs a process one instruction at a time (PTRACE_SINGLESTEP), and knows its call stack by what it has
// done: a call counts until the process is back where it returns to, or the stack pointer is beyond where it was then.
// That takes no call frame information, no frame pointer and no guess, and holds between any two instructions: what an
// unwinder says there is compared with it.
//
// It is for processes with one thread, on x86_64 and aarch64: the kernel does not step on riscv64, on ppc64le an atomic
// sequence never ends so, and on s390x, as qemu emulates it, a process that is stepped loses registers that it has
// saved, and goes astray. It must not know how stacks are unwound.
package steps
