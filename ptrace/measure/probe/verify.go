package probe

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"

	"pg_stat_backtrace/ptrace/process"
)

// ErrNotInPlace means that an instruction of a process is not the breakpoint that the kernel should have put there.
var ErrNotInPlace = errors.New("the kernel has put no breakpoint into the process")

// breakpoints are the instructions that the kernel uses, by GOARCH: int3 on x86-64, brk #5 on aarch64
// (BRK64_OPCODE_UPROBES).
//
//nolint:gochecknoglobals // a table
var breakpoints = map[string][]byte{"amd64": {0xcc}, "arm64": {0xa0, 0, 0x20, 0xd4}}

// Verify reads an instruction of a process and returns ErrNotInPlace if it is not a breakpoint. It returns nil if the
// process has ended, or if its memory cannot be read.
func Verify(pid int, address uint64) error {
	breakpoint := breakpoints[runtime.GOARCH]
	code := make([]byte, len(breakpoint))
	n, err := process.ReadMemoryWithTimeout(pid, address, code)
	if err != nil || n < len(code) {
		return nil //nolint:nilerr // there is nothing to verify
	}
	if len(code) == 0 || !bytes.Equal(code, breakpoint) {
		return fmt.Errorf("process %d, address %#x: %w", pid, address, ErrNotInPlace)
	}
	return nil
}
