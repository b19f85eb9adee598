package ptrace

import (
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

const (
	perThread = 16 << 10  // bytes per thread that are touched beforehand: more than most threads use
	oneThread = 256 << 10 // the same for a single thread: more than nearly every stack
	maxArena  = 64 << 20  // for all stacks of one capture

	// extraRoom is for memory other than stacks: the largest extra reads.
	extraRoom = snapshot.MaxBlocks*snapshot.MaxFollow + maxRanged

	// maxShare bounds the memory that each stack has for itself if there is not enough for all of full length.
	maxShare = 64 << 10
)

// arena is the memory into which stacks are copied while their threads are stopped. It reserves address space for the
// largest copy. The part that stacks commonly need was touched in advance, so that the kernel need not allocate pages
// during a stop. It is outside the Go heap, where a reservation would clear all of it.
type arena struct {
	memory  []byte
	touched int
	used    int
	// stackEnd is where stacks must end. Memory other than stacks moves it, so that it takes no room from them.
	stackEnd int
	// share is the memory that each stack has for itself, and kept all of it that is for stacks to come. Half of the
	// memory, or more, has no such use: it is for long stacks, in the order of the threads, the main thread first.
	share, kept int
}

// reserve provides room for the stacks of that many threads, and for the extra reads.
func (a *arena) reserve(maxStack, threads int) error {
	size := max(maxStack, min(maxStack*threads, maxArena)) + extraRoom
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
	a.stackEnd = len(a.memory) - extraRoom
	a.share = min(a.stackEnd/threads/2, maxShare)
	const page = 4096 // or more; then some pages are touched twice
	for wanted := min(len(a.memory), max(oneThread, perThread*threads)); a.touched < wanted; a.touched += page {
		a.memory[a.touched] = 1
	}
	return nil
}

// stackRoom returns how many bytes of a stack can be copied.
//
//go:nosplit
//go:norace
func (a *arena) stackRoom() uint64 { return uint64(max(0, a.stackEnd-a.used-a.kept)) }

// otherRoom returns how many bytes other than stacks can be copied.
//
//go:nosplit
//go:norace
func (a *arena) otherRoom() int { return len(a.memory) - a.used - a.kept }

// keep keeps the memory for so many further stacks.
//
//go:nosplit
//go:norace
func (a *arena) keep(stacks int) { a.kept = stacks * a.share }

// takeOther takes memory that is not for a stack.
//
//go:nosplit
//go:norace
func (a *arena) takeOther(length int) {
	a.used += length
	a.stackEnd = min(a.stackEnd+length, len(a.memory))
}

// trim returns the memory of an unusually large capture.
func (a *arena) trim() {
	if a.touched > oneThread || a.used > oneThread {
		_ = unix.Madvise(a.memory[oneThread:], unix.MADV_DONTNEED)
		a.touched = min(a.touched, oneThread)
	}
	a.used, a.kept = 0, 0
}

func (a *arena) free() {
	if a.memory != nil {
		_ = unix.Munmap(a.memory)
	}
	*a = arena{}
}
