// Package bpf has what the packages with BPF programs share: the C headers, the loader, the checks of the running
// kernel (features.go), and the errors of a kernel that refuses a program. These packages are in ptrace/measure. Each
// has its program in C (*.bpf.c), compiled by `make generate` and committed as an object that the loader adapts to the
// running kernel (CO-RE).
//
// The package must not know what the programs do.
package bpf
