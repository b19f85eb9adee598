// Package bpf is the parent of the packages that run programs in the kernel, one folder for each. The programs are
// written in C (*.bpf.c), compiled by `make generate`, and committed as objects that the loader adapts to the running
// kernel (CO-RE). This package words the errors of a kernel that refuses one.
//
// It must not know what the programs do.
package bpf
