// Package functrace traces calls of functions of running processes: it finds functions by name, has package ptrace/probe
// probe them, and turns the stacks at their calls into a report.
//
// It must not know the command line, SQL or who may trace what.
package functrace
