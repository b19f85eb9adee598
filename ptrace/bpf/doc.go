// Package bpf reads a thread that is off the processor, without stopping it and without being noticed: the registers
// with which the kernel will let it go on, and its stack. A thread that sleeps is off the processor, and so is one that
// could run while somebody else does: to a reader that runs on the processor where a thread belongs, every thread that
// belongs there is.
//
// What the kernel has saved of a thread no system call tells while it is not traced. So the reader is a program of some
// hundred instructions in the kernel (bpf(2), BPF_PROG_TYPE_SYSCALL), made here for the kernel that runs, by its own
// description of its structures (/sys/kernel/btf/vmlinux), and called like a system call. It looks whether the thread
// is off the processor, and how often it has left one; reads its registers and its stack; and looks again. A thread
// that is off the processor at both looks, and has left none in between, has not run, and what only it writes is of one
// moment.
//
// It takes Linux 6.10, CAP_BPF and CAP_PERFMON, and the host's PID namespace, since the kernel's function that finds a
// thread knows no other; x86_64 only. The kernel lets programs call that function whose license is one of a list that
// the PostgreSQL License is not on; these instructions may be used under the MIT License, which is, and which
// it reads like.
//
// The package must not know what the registers mean, nor whom somebody may look at: that is the caller's to decide.
package bpf
