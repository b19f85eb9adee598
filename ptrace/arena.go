package ptrace

import (
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

const (
	perThread = 16 << 10  // bytes per thread that are touched beforehand: more than most threads use
	oneThread = 256 << 10 // the same for a single thread: more than nearly every stack
	maxArena  = 64 << 20  // for all stacks of one capture
)

// arena is the memory into which stacks are copied while their threads are stopped. It reserves address space for the
// largest copy. The part that stacks commonly need was touched in advance, so that the kernel need not allocate pages
// during a stop. It is outside the Go heap, where a reservation would clear all of it.
type arena struct {
	memory  []byte
	touched int
	used    int
}

// reserve provides room for the stacks of that many threads.
func (a *arena) reserve(maxStack, threads int) error {
	size := max(maxStack, min(maxStack*threads, maxArena))
	if len(a.memory) < size {
		a.free()
		memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return process.Failed(unix.Getpid(), "reserve memory for stacks", err)
		}
		// The kernel would take longer to clear one huge page than the whole capture lasts.
		_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE)
		a.memory = memory
	}
	const page = 4096 // or more; then some pages are touched twice
	for wanted := min(len(a.memory), max(oneThread, perThread*threads)); a.touched < wanted; a.touched += page {
		a.memory[a.touched] = 1
	}
	return nil
}

// trim returns the memory of an unusually large capture.
func (a *arena) trim() {
	if a.touched > oneThread || a.used > oneThread {
		_ = unix.Madvise(a.memory[oneThread:], unix.MADV_DONTNEED)
		a.touched = min(a.touched, oneThread)
	}
	a.used = 0
}

func (a *arena) free() {
	if a.memory != nil {
		_ = unix.Munmap(a.memory)
	}
	*a = arena{}
}
