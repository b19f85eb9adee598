package ptrace

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Trail is memory to copy in the same stop as the stacks, where it cannot have changed since: a few variables, what
// they point at, and what the nodes of a list on the main thread's stack point at. Whatever is not readable is left
// out. The zero value asks for nothing.
type Trail struct {
	// Variables are up to eight addresses of pointers.
	Variables []Variable
	// Head is the address of a pointer to the first node of a list, 0 for no list. A node is a pointer to the next
	// one, a word that is not looked at, and a pointer, its argument. The list is followed as long as its nodes lie on
	// the copied stack of the main thread, each of them beyond the one before.
	Head uint64
	// OnStack is what to copy for a node whose argument lies on the copied stack.
	OnStack []Deref
	// Elsewhere is how many bytes to copy from where the argument of any other node points.
	Elsewhere int
	// Ranges are up to 256 pieces of memory at known addresses, 512 KiB in all. They are copied last.
	Ranges []Range
}

// Range is Length bytes of the target's memory at an address.
type Range struct {
	Address uint64
	Length  int
}

// Variable is a pointer in the target at a known address.
type Variable struct {
	Address uint64
	Follow  int // bytes to copy from where it points; 0: none
}

// Deref is a pointer that lies Offset bytes behind a node's argument, and how many bytes to copy from where it points.
type Deref struct {
	Offset, Length int
}

// Bounds of a trail.
const (
	maxVariables = 8
	maxDerefs    = 8
	maxNodes     = 128
	maxRanges    = 256
	maxRanged    = 512 << 10 // bytes of all ranges
	maxBlocks    = 768       // below IOV_MAX
	maxFollow    = 4096      // bytes from one pointer
	maxRetries   = 16        // after a block that turned out not to be readable
)

// block is memory to copy, at most a page long and not crossing a page.
type block struct {
	address uint64
	wanted  int
	length  int // copied
	at      int // in the arena
}

// trail is the state of a Trail in a session: all that the stop needs exists before.
type trail struct {
	wanted     bool
	variables  [maxVariables]Variable
	nVariables int
	head       uint64
	derefs     [maxDerefs]Deref
	nDerefs    int
	elsewhere  int
	ranges     [maxRanges]Range
	nRanges    int

	blocks  [maxBlocks]block
	n       int
	fetched bool // the variables were read with the stack
	vectors [maxBlocks]iovec
	local   iovec
}

// prepare takes over what is asked for.
func (r *trail) prepare(t *Trail) {
	r.wanted, r.n, r.fetched = false, 0, false
	if t == nil {
		return
	}
	r.wanted = len(t.Variables) > 0 || t.Head != 0 || len(t.Ranges) > 0
	r.nVariables = copy(r.variables[:], t.Variables)
	r.nDerefs = copy(r.derefs[:], t.OnStack)
	r.head, r.elsewhere = t.Head, min(max(t.Elsewhere, 0), maxFollow)
	for i := range r.variables[:r.nVariables] {
		r.variables[i].Follow = min(max(r.variables[i].Follow, 0), maxFollow)
	}
	for i := range r.derefs[:r.nDerefs] {
		r.derefs[i].Length = min(max(r.derefs[i].Length, 0), maxFollow)
	}
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

// copyTrail copies the trail by way of the main thread, if that stands still: first the variables, then all that they
// and the list lead to.
//
//go:nosplit
//go:norace
func (s *session) copyTrail(t *tracee) {
	r := &s.trail
	if t.phase != stopped || t.foreign || t.length == 0 {
		return
	}
	if !r.fetched {
		s.wantVariables()
		s.fetchBlocks(t, 0)
	}
	first := r.nVariables
	if r.head != 0 {
		first++
	}
	for i := range r.nVariables {
		if p := s.loadBlock(i); p != 0 {
			s.wantBytes(p, r.variables[i].Follow)
		}
	}
	if r.head != 0 {
		s.followList(t, s.loadBlock(r.nVariables))
	}
	for i := range r.nRanges {
		s.wantBytes(r.ranges[i].Address, r.ranges[i].Length)
	}
	s.fetchBlocks(t, first)
}

// wantVariables wants what copyTrail begins with.
//
//go:nosplit
//go:norace
func (s *session) wantVariables() {
	r := &s.trail
	r.n = 0
	for i := range r.nVariables {
		s.wantBlock(r.variables[i].Address, 8)
	}
	if r.head != 0 {
		s.wantBlock(r.head, 8)
	}
}

// readBehindVariables is read for a stack. If that is the main thread's, the variables that are wanted are read in the
// same system call, provided that all of them are readable.
//
//go:nosplit
//go:norace
func (s *session) readBehindVariables(t *tracee, start, end uint64) int {
	r := &s.trail
	if !r.wanted || r.fetched || s.coroutines.wanted || t != &s.tracees[0] {
		return s.read(t, start, end)
	}
	s.wantVariables()
	variables, stack := 8*r.n, int(min(end-start, s.maxStack))
	if r.n == 0 || variables+stack > len(s.arena.memory)-s.arena.used {
		return s.read(t, start, end)
	}
	for i := range r.n {
		r.vectors[i] = iovec{uintptr(r.blocks[i].address), uintptr(r.blocks[i].wanted)}
	}
	r.vectors[r.n] = iovec{uintptr(start), uintptr(stack)}
	r.local = iovec{uintptr(unsafe.Pointer(&s.arena.memory[s.arena.used])), uintptr(variables + stack)}
	n, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.tid), uintptr(unsafe.Pointer(&r.local)), 1,
		uintptr(unsafe.Pointer(&r.vectors)), uintptr(r.n+1), 0)
	if errno != 0 || int(n) < variables {
		return s.read(t, start, end)
	}
	s.takeBlocks(0, r.n, variables)
	r.fetched = true
	t.stackAt = s.arena.used
	return int(n) - variables
}

// followList wants what the nodes of the list lead to.
//
//go:nosplit
//go:norace
func (s *session) followList(t *tracee, node uint64) {
	r := &s.trail
	const argument = 16
	for range maxNodes {
		arg, ok := s.loadStack(t, node+argument)
		if !ok {
			return
		}
		if _, ok := s.loadStack(t, arg); ok {
			for i := range r.nDerefs {
				p, ok := s.loadStack(t, arg+uint64(r.derefs[i].Offset))
				if ok && p != 0 {
					s.wantBytes(p, r.derefs[i].Length)
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

// wantBytes wants memory that a pointer leads to. A pointer into nowhere is not followed: the call for all blocks ends
// at the first one that cannot be read.
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
	if r := &s.trail; r.n < maxBlocks {
		r.blocks[r.n] = block{address: address, wanted: length}
		r.n++
	}
}

// readable reports whether the address is in a readable mapping. The maps may be remembered ones (Options.Layout), and
// the heap have grown since: then any address between the first mapping and the last will do.
//
//go:nosplit
//go:norace
func (s *session) readable(address uint64) bool {
	low, high := 0, len(s.spans)
	if high == 0 || address < s.spans[0].start || address >= s.spans[high-1].end {
		return false
	}
	if s.flight.options.Layout != nil {
		return true
	}
	for low < high {
		if middle := int(uint(low+high) >> 1); s.spans[middle].end > address {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low < len(s.spans) && s.spans[low].start <= address
}

// fetchBlocks reads the blocks from number first on in one system call; should one of them be unreadable, in another
// one for those behind it.
//
//go:nosplit
//go:norace
func (s *session) fetchBlocks(t *tracee, first int) {
	r := &s.trail
	for range maxRetries {
		room, total, last := len(s.arena.memory)-s.arena.used, 0, first
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

// takeBlocks notes which blocks n bytes were the content of, and returns the number of the first that was not read.
//
//go:nosplit
//go:norace
func (s *session) takeBlocks(first, last, n int) int {
	r := &s.trail
	for ; first < last && n >= r.blocks[first].wanted; first++ {
		b := &r.blocks[first]
		b.at, b.length = s.arena.used, b.wanted
		s.arena.used += b.wanted
		n -= b.wanted
	}
	return first
}

// loadBlock returns the first word of a block, 0 if it was not read.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (s *session) loadBlock(i int) uint64 {
	if b := &s.trail.blocks[i]; b.length >= 8 {
		return *(*uint64)(unsafe.Pointer(&s.arena.memory[b.at]))
	}
	return 0
}

// loadStack returns the aligned word at an address of the copied stack.
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

// found makes the result of a trail; blocks that continue each other become one.
func (s *session) found() []Stack {
	if !s.trail.wanted {
		return nil
	}
	blocks := make([]Stack, 0, s.trail.n)
	for i := range s.trail.blocks[:s.trail.n] {
		b := &s.trail.blocks[i]
		if b.length == 0 {
			continue
		}
		data := s.arena.memory[b.at : b.at+b.length]
		if last := len(blocks) - 1; last >= 0 && blocks[last].Start+uint64(len(blocks[last].Data)) == b.address {
			blocks[last].Data = append(blocks[last].Data, data...)
			continue
		}
		blocks = append(blocks, Stack{Start: b.address, Data: slices.Clone(data)})
	}
	return blocks
}
