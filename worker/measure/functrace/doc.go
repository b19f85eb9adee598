// Package functrace traces calls of functions of running processes. It finds functions by name, probes them by package
// ptrace/measure/probe, and turns the stacks at their calls into a report.
//
// It must not know the command line, SQL or privileges.
package functrace
