package bpf

// returnsAreCalls is set where the kernel makes a probed return a system call.
const returnsAreCalls = true
