//go:build !amd64 && !arm64

package observe

// perfRegisters is empty for this architecture: a running thread is not sampled.
//
//nolint:gochecknoglobals // a table
var perfRegisters []perfRegister
