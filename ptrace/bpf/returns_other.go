//go:build !amd64

package bpf

// returnsAreCalls reports whether, on this architecture, a process makes a system call at a probed return of a function.
const returnsAreCalls = false
