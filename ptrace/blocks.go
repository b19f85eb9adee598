package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/snapshot"
)

// Limits of Options.Blocks. Blocks beyond the first two limits are left out.
const (
	maxCopied     = 1 << 18 // blocks
	maxCopiedSize = 32 << 20
	maxVectors    = 1024 // IOV_MAX
	maxUnreadable = 256  // unreadable blocks after which the copying ends
)

// blocks is the state of Options.Blocks in a session. All memory that the copying needs is allocated and touched before the
// target is stopped.
type blocks struct {
	wanted  []snapshot.Block
	vectors []iovec
	memory  []byte
	copied  []bool
	local   iovec
}

// prepare takes over Options.Blocks, up to the first block that is empty or exceeds the limits, and allocates the memory for
// the copies.
func (b *blocks) prepare(wanted []snapshot.Block) {
	*b = blocks{}
	size := 0
	for i := range wanted {
		n := wanted[i].Length
		if i == maxCopied || n <= 0 || size+n > maxCopiedSize {
			wanted = wanted[:i]
			break
		}
		size += n
	}
	if len(wanted) == 0 {
		return
	}
	b.wanted, b.memory = wanted, make([]byte, size)
	b.vectors, b.copied = make([]iovec, len(wanted)), make([]bool, len(wanted))
	for i := range wanted {
		b.vectors[i] = iovec{uintptr(wanted[i].Address), uintptr(wanted[i].Length)}
	}
	const page = 4096
	for i := 0; i < size; i += page {
		b.memory[i] = 1
	}
}

// copyBlocks copies the blocks through t, a stopped thread, up to maxVectors in one system call. The call ends at the
// first unreadable block, and the next call continues after that block. After maxUnreadable of them, copyBlocks ends.
//
//go:nosplit
//go:norace
func (s *session) copyBlocks(t *tracee) {
	b := &s.blocks
	at, unreadable := 0, 0
	for first := 0; first < len(b.vectors) && unreadable < maxUnreadable; {
		last := min(first+maxVectors, len(b.vectors))
		b.local = iovec{uintptr(unsafe.Pointer(&b.memory[at])), uintptr(len(b.memory) - at)}
		n, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.tid), uintptr(unsafe.Pointer(&b.local)), 1,
			uintptr(unsafe.Pointer(&b.vectors[first])), uintptr(last-first), 0)
		if errno != 0 {
			n = 0
		}
		for left := int(n); first < last && left >= b.wanted[first].Length; first++ {
			left -= b.wanted[first].Length
			at += b.wanted[first].Length
			b.copied[first] = true
		}
		if first < last {
			at += b.wanted[first].Length
			first++
			unreadable++
		}
	}
}

// found returns the blocks in the order of Options.Blocks. Unread blocks have no data.
func (b *blocks) found() []snapshot.Stack {
	if len(b.wanted) == 0 {
		return nil
	}
	out := make([]snapshot.Stack, len(b.wanted))
	at := 0
	for i := range b.wanted {
		n := b.wanted[i].Length
		out[i].Start = b.wanted[i].Address
		if b.copied[i] {
			out[i].Data = b.memory[at : at+n : at+n]
		}
		at += n
	}
	*b = blocks{} // the memory is the caller's now
	return out
}
