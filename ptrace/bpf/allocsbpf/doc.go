// Package allocsbpf accounts for the allocations of one process by call path, by programs in the kernel: allocs.bpf.c
// says how. It loads them, attaches them to the functions that its caller names, and reads their tables for package
// allocs.
//
// It needs x86_64, Linux 6.6, CAP_BPF and CAP_PERFMON.
//
// The package must not know what the functions belong to, or what a stack means.
package allocsbpf
