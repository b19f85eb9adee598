// Package clusterbpf samples all processes of a PostgreSQL server in the kernel, and follows their context switches.
// cluster.bpf.c explains how. The package loads the programs, attaches them, and decodes what they report.
//
// The package knows the kernel and nothing about PostgreSQL except the addresses and offsets that its caller gives. It
// must not know how stacks are unwound.
package clusterbpf
