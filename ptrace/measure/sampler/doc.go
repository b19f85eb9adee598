// Package sampler takes samples of many processes at a steady rate, by a program in the kernel. It stops no process.
// CopiedProcess makes snapshots of stacks that other programs in the kernel have copied.
//
// The kernel has the registers with which a thread will continue in user mode, but no system call returns them for a
// thread that is not traced. A program in the kernel can read them (bpf(2)): sampler.bpf.c says how. A timer of each
// processor samples the thread that it interrupts. For a thread that has not run since, it counts the last sample again.
// For the others it wakes a thread of this program.
//
// It needs x86_64, Linux 6.10, CAP_BPF and CAP_PERFMON, and the host's PID namespace: the kernel's function that finds a
// thread takes only PIDs of that.
//
// The package must not know what the registers mean, or which processes a caller may look at.
package sampler
