// Package naming finds out which code is at an address of a process: its mappings, the image of each mapping, code that
// the process has compiled at run time, and goroutines. Package symbolize finds the names in an image.
//
// Cache keeps what captures find out about processes. The key is the process id with the start time. A Space is the
// executable part of one process's memory at the time of a snapshot, as package unwind walks it. A Check compares the
// cache with the live process.
//
// JITProcess finds call frame information and names for code that a process has compiled at run time. It uses GDB's JIT
// interface, a search near the code, and perf's map files.
//
// GoProcess captures the goroutines of Go programs, and follows the switches between the stacks of C and Go. It plans
// which memory a stop copies, and walks the copies.
package naming
