// Package functrace traces calls of functions of running processes. It finds functions by name, probes them with package
// ptrace/measure/probe, and makes a report of the stacks at their calls. A hit is a call that has reached a probe.
//
// ChoosePoint chooses the instruction of a function at which its calls are probed (point.go). Every call passes this instruction
// exactly once. If possible it is an instruction that the kernel emulates, because single-stepping takes some ten times as long.
//
// The package must not know the command line, SQL or privileges.
package functrace
