package ptrace

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/snapshot"
)

// Bounds of a session's extra reads besides those of package snapshot.
const (
	maxRanges  = 256
	maxRanged  = 512 << 10 // bytes of all ranges
	maxRetries = 16        // calls of process_vm_readv by one fetchBlocks: after an unreadable block it makes another one
)

// block is memory to copy: at most a page, not crossing a page boundary.
type block struct {
	address uint64
	wanted  int // bytes to copy
	length  int // bytes that were copied
	at      int // index in the arena
}

// kind is a copy of a snapshot.Kind. Its derefs are in an array, so that nothing is allocated while the target is stopped.
type kind struct {
	word    uint64
	derefs  [snapshot.MaxDerefs]snapshot.Deref
	nDerefs int
}

// extraReads is the state of Options.ExtraReads in a session. All memory that it needs is allocated before the target is
// stopped.
type extraReads struct {
	wanted     bool
	variables  [snapshot.MaxVariables]snapshot.Variable
	nVariables int
	near       [snapshot.MaxVariables + 1]snapshot.Span // the memory of the variables and of the list's head; see join
	nNear      int
	head       uint64
	kinds      [snapshot.MaxKinds + 1]kind // of the list's nodes; the first one is for nodes of no known kind
	nKinds     int
	elsewhere  int
	ranges     [maxRanges]snapshot.Range
	nRanges    int

	blocks [snapshot.MaxBlocks]block
	n      int
	// fetched is the number of blocks read together with the stack: the variables, and the memory at Variable.Expected.
	fetched int
	vectors [snapshot.MaxBlocks]iovec
	local   iovec
}

// prepare takes over Options.ExtraReads. It leaves out or shortens parts that exceed the bounds; nil: no extra reads.
func (r *extraReads) prepare(t *snapshot.ExtraReads) {
	r.wanted, r.n, r.fetched = false, 0, 0
	if t == nil {
		return
	}
	r.wanted = len(t.Variables) > 0 || t.Head != 0 || len(t.Ranges) > 0
	r.nVariables = copy(r.variables[:], t.Variables)
	r.kinds[0].prepare(&snapshot.Kind{OnStack: t.OnStack})
	r.nKinds = 1
	for i := range t.Kinds[:min(len(t.Kinds), snapshot.MaxKinds)] {
		r.kinds[r.nKinds].prepare(&t.Kinds[i])
		r.nKinds++
	}
	r.head, r.elsewhere = t.Head, min(max(t.Elsewhere, 0), snapshot.MaxFollow)
	for i := range r.variables[:r.nVariables] {
		r.variables[i].Follow = min(max(r.variables[i].Follow, 0), snapshot.MaxFollow)
	}
	r.join()
	r.nRanges = 0
	left := maxRanged
	for _, piece := range t.Ranges[:min(len(t.Ranges), maxRanges)] {
		if piece.Length <= 0 || piece.Length > left {
			continue
		}
		left -= piece.Length
		r.ranges[r.nRanges] = piece
		r.nRanges++
	}
}

// prepare takes over a snapshot.Kind. It leaves out or shortens derefs that exceed the bounds.
func (k *kind) prepare(given *snapshot.Kind) {
	k.word, k.nDerefs = given.Word, copy(k.derefs[:], given.OnStack)
	for i := range k.derefs[:k.nDerefs] {
		k.derefs[i].Length = min(max(k.derefs[i].Length, 0), snapshot.MaxFollow)
	}
}

// copyExtraReads copies the memory of s.extra through t, the main thread. It does nothing unless t is stopped and its
// registers were read. It copies the variables first. Then it copies the data to which the variables and the nodes of the
// linked list point, and the memory ranges.
//
//go:nosplit
//go:norace
func (s *session) copyExtraReads(t *tracee) {
	r := &s.extra
	if t.phase != stopped || t.foreign || t.length == 0 {
		return
	}
	expected := r.fetched > 0
	if !expected {
		s.wantVariables()
		s.fetchBlocks(t, 0)
	}
	first := r.n
	for i := range r.nVariables {
		v := &r.variables[i]
		if p := s.loadVariable(v.Address); p != 0 && (!expected || p != v.Expected) {
			s.wantBytes(p, v.Follow)
		}
	}
	if r.head != 0 {
		s.followList(t, s.loadVariable(r.head))
	}
	for i := range r.nRanges {
		s.wantBytes(r.ranges[i].Address, r.ranges[i].Length)
	}
	s.fetchBlocks(t, first)
}

// followList adds blocks for the memory to which the nodes of the linked list point. It follows the list while the nodes are
// in the copied stack, at increasing addresses. node is the address of the first node.
//
//go:nosplit
//go:norace
func (s *session) followList(t *tracee, node uint64) {
	r := &s.extra
	const word, argument = 8, 16
	for range snapshot.MaxNodes {
		arg, ok := s.loadStack(t, node+argument)
		if !ok {
			return
		}
		if _, ok := s.loadStack(t, arg); ok {
			told, _ := s.loadStack(t, node+word)
			k := r.kindOf(told)
			for i := range k.nDerefs {
				p, ok := s.loadStack(t, arg+uint64(k.derefs[i].Offset))
				if ok && p != 0 {
					s.wantBytes(p, k.derefs[i].Length)
				}
			}
		} else if arg != 0 {
			s.wantBytes(arg, r.elsewhere)
		}
		next, ok := s.loadStack(t, node)
		if !ok || next <= node {
			return
		}
		node = next
	}
}

// kindOf returns the kind of the nodes that contain the given word, or r.kinds[0] if there is none.
//
//go:nosplit
//go:norace
func (r *extraReads) kindOf(word uint64) *kind {
	for i := 1; i < r.nKinds; i++ {
		if r.kinds[i].word == word {
			return &r.kinds[i]
		}
	}
	return &r.kinds[0]
}

// wantBytes adds blocks for memory to copy, up to the first page that is not mapped as readable. The system call that
// copies all blocks would end at the first unreadable one.
//
//go:nosplit
//go:norace
func (s *session) wantBytes(address uint64, length int) {
	for length > 0 {
		part := min(length, int(s.pageMask+1-address&s.pageMask))
		if !s.readable(address) {
			return
		}
		s.wantBlock(address, part)
		address += uint64(part)
		length -= part
	}
}

//go:nosplit
//go:norace
func (s *session) wantBlock(address uint64, length int) {
	if r := &s.extra; r.n < snapshot.MaxBlocks {
		r.blocks[r.n] = block{address: address, wanted: length}
		r.n++
	}
}

// fetchBlocks copies the blocks from the index first on in one system call. After an unreadable block, it copies the
// following blocks in another call, up to maxRetries times.
//
//go:nosplit
//go:norace
func (s *session) fetchBlocks(t *tracee, first int) {
	r := &s.extra
	for range maxRetries {
		room, total, last := s.arena.otherRoom(), 0, first
		for last < r.n && total+r.blocks[last].wanted <= room {
			b := &r.blocks[last]
			r.vectors[last] = iovec{uintptr(b.address), uintptr(b.wanted)}
			total += b.wanted
			last++
		}
		if last == first {
			return
		}
		r.local = iovec{uintptr(unsafe.Pointer(&s.arena.memory[s.arena.used])), uintptr(total)}
		n, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.tid), uintptr(unsafe.Pointer(&r.local)), 1,
			uintptr(unsafe.Pointer(&r.vectors[first])), uintptr(last-first), 0)
		if errno != 0 {
			n = 0
		}
		first = s.takeBlocks(first, last, int(n)) + 1
		if first >= r.n {
			return
		}
	}
}

// takeBlocks assigns n bytes, which were just copied to the arena, to the blocks with the indexes first to last-1. It
// returns the index of the first block that was not read completely.
//
//go:nosplit
//go:norace
func (s *session) takeBlocks(first, last, n int) int {
	r := &s.extra
	for ; first < last && n >= r.blocks[first].wanted; first++ {
		b := &r.blocks[first]
		b.at, b.length = s.arena.used, b.wanted
		s.arena.takeOther(b.wanted)
		n -= b.wanted
	}
	return first
}

// loadStack returns the word at an address of the copied stack; false: the address is outside or not aligned.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (s *session) loadStack(t *tracee, address uint64) (uint64, bool) {
	off := address - t.stackStart
	if address < t.stackStart || address%8 != 0 || off > uint64(t.stackLen) || uint64(t.stackLen)-off < 8 {
		return 0, false
	}
	return *(*uint64)(unsafe.Pointer(&s.arena.memory[t.stackAt+int(off)])), true
}

// found returns the memory that the extra reads copied; nil if there were none. It joins adjacent blocks.
func (s *session) found() []snapshot.Stack {
	if !s.extra.wanted {
		return nil
	}
	blocks := make([]snapshot.Stack, 0, s.extra.n)
	for i := range s.extra.blocks[:s.extra.n] {
		b := &s.extra.blocks[i]
		if b.length == 0 {
			continue
		}
		data := s.arena.memory[b.at : b.at+b.length]
		if last := len(blocks) - 1; last >= 0 && blocks[last].Start+uint64(len(blocks[last].Data)) == b.address {
			blocks[last].Data = append(blocks[last].Data, data...)
			continue
		}
		blocks = append(blocks, snapshot.Stack{Start: b.address, Data: slices.Clone(data)})
	}
	return blocks
}
