package ptrace

import (
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

const (
	perThread = 16 << 10  // bytes touched in advance for each of several threads: more than most threads use
	oneThread = 256 << 10 // bytes touched in advance for a single thread: more than nearly every stack
	maxArena  = 64 << 20  // bytes for all stacks of one capture

	// extraRoom is the number of bytes for copies other than stacks: the most that the extra reads of one capture copy.
	extraRoom = snapshot.MaxBlocks*snapshot.MaxFollow + maxRanged

	// maxShare is the largest number of bytes that are kept free for each stack still to be copied: the bound of arena.share.
	maxShare = 64 << 10
)

// arena is the memory into which stacks are copied while their threads are stopped. It reserves address space for the
// largest copy. The part that stacks commonly need is touched in advance, so that the kernel need not allocate pages
// during a stop. The memory is outside the Go heap, because Go would clear all of it.
type arena struct {
	memory  []byte
	touched int
	used    int
	// stackEnd is the index in memory where stacks must end. Copying other data increases it, so that the stacks lose no room.
	stackEnd int
	// share is the number of bytes that are kept free for each stack that is still to be copied. The field kept is the
	// sum of these bytes. They are at most half of the memory for stacks. Stacks longer than share use the other half, in
	// the order of the threads, the main thread first.
	share, kept int
}

// reserve provides room for the extra reads and for the stacks of a number of threads: maxStack bytes for each, but at most
// maxArena for all.
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
	const page = 4096 // the smallest page: larger pages are touched repeatedly
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

// keep keeps a share of the room free for each of the given number of stacks, which are copied later.
//
//go:nosplit
//go:norace
func (a *arena) keep(stacks int) { a.kept = stacks * a.share }

// takeOther marks the next bytes of the arena as used by data other than a stack.
//
//go:nosplit
//go:norace
func (a *arena) takeOther(length int) {
	a.used += length
	a.stackEnd = min(a.stackEnd+length, len(a.memory))
}

// trim returns the memory of an unusually large capture to the kernel, and empties the arena.
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
