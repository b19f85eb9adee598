package symbolize

import (
	"io"

	"pg_stat_backtrace/ptrace/process"
)

// MemoryReader copies memory of the process from addr into p
// and returns the number of bytes that it copied.
type MemoryReader func(addr uint64, p []byte) (int, error)

// Exactly fills p and reports whether all of it could be read.
func (r MemoryReader) Exactly(addr uint64, p []byte) bool {
	n, err := r(addr, p)
	return err == nil && n == len(p)
}

// LiveMemory reads a live process's memory without stopping the process. Each read has a timeout: see process.Memory.
func LiveMemory(pid int) func(uint64, []byte) (int, error) {
	memory := process.NewMemory(pid)
	return func(addr uint64, p []byte) (int, error) {
		n, err := memory.Read(addr, p)
		if err == nil && n < len(p) {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
}

// ProcessMemory reads a live process's memory without stopping the process. Use it only for file content, which does
// not change while the process runs. A read may never return. So call it only in a goroutine whose caller stops waiting
// after a while, as Lazy and process.WithTimeout do. Otherwise use LiveMemory.
func ProcessMemory(pid int) func(uint64, []byte) (int, error) {
	reached := false
	return func(addr uint64, p []byte) (int, error) {
		if !reached {
			process.ProbeReadable(pid)
			reached = true
		}
		n, err := process.ReadMemory(pid, addr, p)
		if err == nil && n < len(p) {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
}
