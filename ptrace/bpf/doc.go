// Package bpf reads a thread that cannot go on at the moment, without stopping it and without being noticed: the
// registers with which the kernel will let it go on, and its stack. One that sleeps cannot; nor can one that could
// run, while somebody else does; nor one that has been interrupted on its processor.
//
// What the kernel has saved of a thread no system call tells while it is not traced. So there are two programs of
// some hundreds of instructions in the kernel (bpf(2), BPF_PROG_TYPE_SYSCALL), made here for the kernel that runs, by
// its own description of its structures (/sys/kernel/btf/vmlinux).
//
// That of a Clock is called by a timer of a processor's (bpf_timer), after the timer's interrupt and before whoever
// was interrupted goes on. It reads that thread, and the others that belong to the processor. Their stacks are memory
// of processes that it is not in: it finds it as the processor would, by their page tables (walk.go). One that has left
// no processor since it was read has not run, and is what it was: that is counted.
//
// What it cannot read so, such as memory that has to be fetched, it says is wanted. That the program of a Reader
// reads, which is called like a system call, on that processor, so that none of the threads has it.
//
// Of a thread that is off the processor both look whether it is, and how often it has left one; read its registers and
// its stack; and look again. A thread that is off the processor at both looks, and has left none in between, has not
// run, and what only it writes is of one moment.
//
// It takes Linux 6.10, CAP_BPF and CAP_PERFMON, and the host's PID namespace, since the kernel's function that finds a
// thread knows no other; x86_64 only. The kernel lets programs call that function whose license is one of a list that
// the PostgreSQL License is not on; these instructions may be used under the MIT License, which is, and which
// it reads like.
//
// The package must not know what the registers mean, nor whom somebody may look at: that is the caller's to decide.
package bpf
