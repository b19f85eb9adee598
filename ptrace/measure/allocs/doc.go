// Package allocs accounts for the allocations of one process by call path: how many and how large they were, and which
// of them were not freed. BPF programs do the work: allocs.bpf.c says how. The process is not stopped, but each call of
// its allocator costs it some microseconds. A trace whose estimated cost exceeds its budget ends by itself.
//
// The package needs x86_64, Linux 6.6, CAP_BPF and CAP_PERFMON.
//
// The caller says where the allocator's functions are. The package returns copies of stacks. It must not know names of
// functions, or how stacks are unwound.
package allocs
