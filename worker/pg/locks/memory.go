package locks

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// piece is a range of the server's memory.
type piece struct {
	addr uint64
	size int
}

// memory reads a server's shared memory. A range that cannot be read is nil in the result. An error means that the
// whole process cannot be read.
type memory interface {
	read(pieces []piece) ([][]byte, error)
}

// live is the memory of a running process. calls counts the system calls that read it.
type live struct {
	pid   int
	calls int
}

// maxPieces is the kernel's limit of ranges in one system call (UIO_MAXIOV).
const maxPieces = 1024

func (l *live) read(pieces []piece) ([][]byte, error) {
	var out [][]byte
	var err error
	calls := 0
	if !process.WithTimeout(l.pid, func() { out, calls, err = readPieces(l.pid, pieces) }, func() {}) {
		return nil, fmt.Errorf("process %d: %w", l.pid, process.ErrUnreachable)
	}
	l.calls += calls
	return out, err
}

// readPieces makes as few system calls as possible. After a range that cannot be read it continues with the next one.
func readPieces(pid int, pieces []piece) (out [][]byte, calls int, err error) {
	total := 0
	for _, p := range pieces {
		total += p.size
	}
	buffer := make([]byte, total)
	out = make([][]byte, len(pieces))
	remote := make([]unix.RemoteIovec, 0, min(len(pieces), maxPieces))
	for first := 0; first < len(pieces); {
		n := min(len(pieces)-first, maxPieces)
		remote, total = remote[:0], 0
		for _, p := range pieces[first : first+n] {
			remote = append(remote, unix.RemoteIovec{Base: uintptr(p.addr), Len: p.size})
			total += p.size
		}
		local := unix.Iovec{Base: &buffer[0]}
		local.SetLen(total)
		calls++
		got, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, remote, 0)
		if err != nil && !errors.Is(err, unix.EFAULT) {
			return nil, calls, fmt.Errorf("read the memory of process %d: %w", pid, err)
		}
		for n > 0 && pieces[first].size <= got {
			size := pieces[first].size
			out[first], buffer, got = buffer[:size:size], buffer[size:], got-size
			first, n = first+1, n-1
		}
		if n > 0 { // this range cannot be read
			buffer = buffer[pieces[first].size:]
			first++
		}
	}
	return out, calls, nil
}

// at returns the address of a field.
func at(addr uint64, offset int) uint64 { return addr + uint64(offset) } // offset is not negative

func u16(b []byte, at int) uint16 { return binary.NativeEndian.Uint16(b[at:]) }
func u32(b []byte, at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
func u64(b []byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
func i32(b []byte, at int) int    { return int(int32(u32(b, at))) } // a C int
