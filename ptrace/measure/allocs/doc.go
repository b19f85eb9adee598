// Package allocs accounts for the allocations of one process by call path: how many and how large they were, and which
// of them were not freed. Programs in the kernel do the work: allocs.bpf.c says how. The process is not stopped, but each
// call of its allocator costs it some microseconds. A trace whose estimated cost exceeds its budget ends by itself.
//
// It needs x86_64, Linux 6.6, CAP_BPF and CAP_PERFMON.
//
// The package learns from its caller where the allocator's functions are, and hands on copies of stacks. It must not
// know names, or what a stack means.
package allocs
