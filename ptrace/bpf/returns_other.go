//go:build !amd64

package bpf

// returnsAreCalls is true if a process makes a system call at a probed return, on this architecture.
const returnsAreCalls = false
