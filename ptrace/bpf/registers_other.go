//go:build !amd64

package bpf

const stackPointer = 0

// savedRegisters is nil: there is no program for this architecture.
//
//nolint:gochecknoglobals // a table
var savedRegisters []int
