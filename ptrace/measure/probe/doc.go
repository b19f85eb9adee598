// Package probe attaches probes to instructions of running processes, counts every hit, and hands on copies of
// registers and stacks. It keeps the cost to the processes within a limit. First it takes fewer stacks, then it
// removes the probe that costs most.
//
// It must not know functions, names or how stacks are walked. Its callers choose the instructions.
package probe
