// Package probe attaches probes to instructions of running processes, counts every hit, and returns copies of registers
// and stacks. It keeps the cost for the processes within a limit. If they cost too much, it first copies fewer stacks, and
// then removes the probes that cost most.
//
// The package must not know functions, names or how stacks are walked. Its callers choose the instructions.
package probe
