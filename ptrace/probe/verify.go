package probe

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"

	"pg_stat_backtrace/ptrace"
)

// ErrNotInPlace means that an instruction of a process is not the breakpoint that the kernel should have put there.
var ErrNotInPlace = errors.New("the kernel has put no breakpoint into the process")

// Verify reads an instruction of a process and returns ErrNotInPlace if it is not a breakpoint. If the process has
// ended, or its memory cannot be read, there is no error.
func Verify(pid int, address uint64) error {
	var word [4]byte
	length := 1
	if runtime.GOARCH == "arm64" {
		length = 4
	}
	n, err := ptrace.ReadMemory(pid, address, word[:length])
	if err != nil || n < length {
		return nil //nolint:nilerr // there is nothing to verify
	}
	if !isBreakpoint(word[:length]) {
		return fmt.Errorf("process %d, address %#x: %w", pid, address, ErrNotInPlace)
	}
	return nil
}

// isBreakpoint knows the instructions that the kernel uses: int3 on x86-64, brk #5 on aarch64
// (BRK64_OPCODE_UPROBES).
func isBreakpoint(code []byte) bool {
	switch runtime.GOARCH {
	case "amd64":
		return bytes.HasPrefix(code, []byte{0xcc})
	case "arm64":
		return bytes.HasPrefix(code, []byte{0xa0, 0, 0x20, 0xd4})
	}
	return false
}
