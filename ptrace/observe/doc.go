// Package observe copies a process without stopping it. It reads a sleeping thread through /proc and
// process_vm_readv(2), and proves by the thread's counts of context switches that it slept all the time. For a thread
// on the CPU, the kernel takes a sample (perf_event_open(2)). The package does not interpret registers and stacks.
package observe
