//go:build !amd64

package offcpu

const stackPointer = 0

// savedRegisters is nil: there is no program for this architecture.
//
//nolint:gochecknoglobals // a table
var savedRegisters []int
