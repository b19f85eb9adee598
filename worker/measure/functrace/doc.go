// Package functrace traces calls of functions of running processes. It finds functions by name, probes them by package
// ptrace/measure/probe, and turns the stacks at their calls into a report.
//
// ChoosePoint chooses the instruction of a function at which to probe its calls (point.go). Every call passes it exactly
// once. If possible the kernel emulates it, because to single-step an instruction takes some ten times as long.
//
// It must not know the command line, SQL or privileges.
package functrace
