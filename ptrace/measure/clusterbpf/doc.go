// Package clusterbpf samples all processes of a PostgreSQL server with BPF programs, and follows their context
// switches. cluster.bpf.c explains how. The package loads and attaches the programs, and decodes their records.
//
// The package knows the kernel and nothing about PostgreSQL except the addresses and offsets that its caller gives. It
// must not know how stacks are unwound.
package clusterbpf
