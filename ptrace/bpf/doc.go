// Package bpf has the parts that the packages with BPF programs share: the C headers, the loader, the checks of the running
// kernel (features.go), and the errors for a kernel that refuses a program. The packages with BPF programs are in
// ptrace/measure. Each has its program in C (*.bpf.c), compiled by `make generate` and committed as an object. The loader
// adapts the object to the running kernel (CO-RE).
//
// The package must not know what the programs do.
package bpf
