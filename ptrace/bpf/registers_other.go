//go:build !amd64

package bpf

const (
	systemCall   = 0
	stackPointer = 0
	signalReturn = 0
)

// savedRegisters is nil: there is no program for this architecture.
//
//nolint:gochecknoglobals // a table
var savedRegisters []int
