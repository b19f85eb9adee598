package ptrace

import (
	"slices"
	"unsafe"

	"pg_stat_backtrace/ptrace/snapshot"
)

// Bounds of Options.Coroutines.
const (
	maxRoots     = 8
	maxStructure = 256 // bytes
	maxStacks    = 4   // of one thread
	maxStackSize = 1 << 30
	nearWords    = 64   // words of a thread's stack that are searched for addresses in the stack of another coroutine
	farWords     = 4096 // like nearWords, if no coroutine is current or the saved stack pointer of the current one is 0
)

// coroutines is the state of Options.Coroutines in a session. All memory that it needs is allocated before the target is
// stopped.
type coroutines struct {
	wanted bool
	given  snapshot.Coroutines
	roots  [maxRoots]snapshot.Root
	nRoots int

	// Coroutines of the thread that is being copied.
	found  [maxStacks]coroutine
	nFound int
}

// coroutine has the limits of a coroutine's stack, and its saved stack pointer. open is set if high is not the real end of
// the stack: it continues to the end of its mapping.
type coroutine struct {
	low, high, saved uint64
	open             bool
}

// part is memory that was copied in addition to a thread's stack.
type part struct {
	address    uint64
	at, length int // in the arena
}

// maxParts is the largest number of parts of a thread: its structure, and structure and stack of each coroutine.
const maxParts = 1 + 2*maxStacks

// prepare takes over Options.Coroutines. If they are nil, have no roots, or have sizes or offsets out of bounds, the session
// searches no coroutines.
func (c *coroutines) prepare(wanted *snapshot.Coroutines) {
	*c = coroutines{}
	if wanted == nil {
		return
	}
	c.given, c.given.Roots = *wanted, nil
	c.nRoots = copy(c.roots[:], wanted.Roots)
	ok := wanted.Size <= maxStructure && wanted.OwnerSize >= 8 && wanted.OwnerSize <= maxStructure
	for _, off := range [...]int{wanted.Low, wanted.High, wanted.Saved, wanted.Owner} {
		ok = ok && off >= 0 && off%8 == 0 && off+8 <= wanted.Size
	}
	c.wanted = ok && c.nRoots > 0
}

// findCoroutines copies the structures of the coroutines that a stopped thread may be running. They are the blocks of
// s.extra with the indexes first to last-1, until the extra reads, which begin later, use the same blocks.
//
//go:nosplit
//go:norace
func (s *session) findCoroutines(t *tracee) (first, last int) {
	c, r := &s.coroutines, &s.extra
	c.nFound, r.n = 0, 0
	for i := range c.nRoots {
		if base, ok := t.register(c.roots[i].Register); ok {
			s.wantBlock(base+uint64(c.roots[i].Offset), 8)
		}
	}
	first = r.n
	s.fetchBlocks(t, 0)
	for i := range first {
		s.wantStructure(s.loadWord(i, 0), first)
	}
	last = r.n
	s.fetchBlocks(t, first)
	return first, last
}

// takeOwner assumes that block i is a coroutine's structure, which points to the structure of its thread. It copies this
// structure and those of all the thread's coroutines. It returns false if the pointer is invalid, or if the thread's
// structure does not point back to block i.
//
//go:nosplit
//go:norace
func (s *session) takeOwner(t *tracee, i int) bool {
	c, r := &s.coroutines, &s.extra
	address := s.loadWord(i, c.given.Owner)
	if address == 0 || address%8 != 0 || !s.readable(address) {
		return false
	}
	owner := r.n
	s.wantBlock(address, c.given.OwnerSize)
	s.fetchBlocks(t, owner)
	belongs := false
	for off := 0; off < c.given.OwnerSize; off += 8 {
		belongs = belongs || s.loadWord(owner, off) == r.blocks[i].address
	}
	if !belongs {
		return false
	}
	b := &r.blocks[owner]
	t.keep(b.address, b.at, b.length)
	first := r.n
	for off := 0; off < c.given.OwnerSize; off += 8 {
		s.wantStructure(s.loadWord(owner, off), first)
	}
	s.fetchBlocks(t, first)
	for k := first; k < r.n && c.nFound < maxStacks; k++ {
		low, high := s.loadWord(k, c.given.Low), s.loadWord(k, c.given.High)
		if s.loadWord(k, c.given.Owner) != address || low >= high || high-low > maxStackSize {
			continue // not the structure of one of the thread's coroutines
		}
		b = &r.blocks[k]
		t.keep(b.address, b.at, b.length)
		own := b.address == s.loadWord(owner, 0)
		c.found[c.nFound] = coroutine{low, high, s.loadWord(k, c.given.Saved), own && !s.together(address, low)}
		c.nFound++
	}
	return true
}

// wantStructure adds a block for a possible structure of a coroutine, unless the address is 0, unaligned or unreadable, or
// a block with the index first or higher has it.
//
//go:nosplit
//go:norace
func (s *session) wantStructure(address uint64, first int) {
	if address == 0 || address%8 != 0 || !s.readable(address) {
		return
	}
	for i := first; i < s.extra.n; i++ {
		if s.extra.blocks[i].address == address {
			return
		}
	}
	s.wantBlock(address, s.coroutines.given.Size)
}

// loadWord returns the word at an offset in block i of s.extra, or 0 if it was not copied.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (s *session) loadWord(i, off int) uint64 {
	if b := &s.extra.blocks[i]; off+8 <= b.length {
		return *(*uint64)(unsafe.Pointer(&s.arena.memory[b.at+off]))
	}
	return 0
}

// register returns the word at a byte offset of the thread's registers; false: the offset is out of bounds.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (t *tracee) register(at int) (uint64, bool) {
	if at < 0 || at%8 != 0 || at+8 > t.length || at+8 > snapshot.MaxRegisters {
		return 0, false
	}
	return *(*uint64)(unsafe.Pointer(&t.registers[at])), true
}

// keep records copied memory as one of the thread's parts, unless it is empty or the thread has maxParts.
//
//go:nosplit
//go:norace
func (t *tracee) keep(address uint64, at, length int) {
	if t.nParts < maxParts && length > 0 {
		t.parts[t.nParts] = part{address, at, length}
		t.nParts++
	}
}

// current returns the index in c.found of the coroutine whose stack contains the address sp, or -1.
//
//go:nosplit
//go:norace
func (c *coroutines) current(sp uint64) int {
	for i := range c.nFound {
		if f := &c.found[i]; sp >= f.low && sp < f.high {
			return i
		}
	}
	return -1
}

// stackOf is like stackAround. But if sp is in the stack of a found coroutine whose field open is false, end is the end of
// that stack and ok is true, even outside of the known mappings.
//
//go:nosplit
//go:norace
func (s *session) stackOf(sp uint64) (start, end uint64, ok bool) {
	start, end, ok = s.stackAround(sp)
	if i := s.coroutines.current(sp); i >= 0 && !s.coroutines.found[i].open {
		if !ok {
			start = sp - min(s.redZone, sp) // the stack's memory was mapped after the mappings were read
		}
		return start, s.coroutines.found[i].high, true
	}
	return start, end, ok
}

// copyCoroutines copies the stacks of the thread's coroutines, except for the current one, which is already copied. A
// copy begins at the coroutine's saved stack pointer. But this may be out of date. So if the thread's registers or the
// beginning of its current stack contain lower addresses in the coroutine's stack, the copy begins at the lowest of these.
// After a signal, the kernel has saved the interrupted registers on the current stack, far from its beginning: farWords.
//
//go:nosplit
//go:norace
func (s *session) copyCoroutines(t *tracee, sp uint64) {
	c := &s.coroutines
	current := c.current(sp)
	words := farWords
	if current >= 0 && c.found[current].saved != 0 {
		words = nearWords
	}
	stackAt := t.stackAt
	for i := range c.nFound {
		f := &c.found[i]
		if i == current {
			continue
		}
		start, saved := s.lowest(t, f, words), f.high
		if f.saved >= f.low && f.saved < f.high {
			saved = f.saved
		}
		if !s.copyFrom(t, f, min(start, saved)) {
			s.copyFrom(t, f, saved)
		}
	}
	t.stackAt = stackAt
}

// copyFrom copies the stack of a coroutine from the address start on. It returns false if this address is beyond the stack
// or unreadable.
//
//go:nosplit
//go:norace
func (s *session) copyFrom(t *tracee, f *coroutine, start uint64) bool {
	if start >= f.high {
		return false // the coroutine's stack is empty
	}
	end := f.high
	if _, mapped, ok := s.stackAround(start); ok && f.open {
		end = mapped
	}
	n := s.read(t, start, end)
	s.arena.used += n
	t.keep(start, t.stackAt, n)
	return n > 0
}

// lowest returns the lowest aligned address in a coroutine's stack that the thread's registers or the first words of its
// copied stack contain. If there is none, it returns the end of the coroutine's stack. It ignores addresses more than
// maxStack bytes before this end: the rest of the stack would be too large to copy.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (s *session) lowest(t *tracee, f *coroutine, words int) uint64 {
	least, low := f.high, max(f.low, f.high-min(f.high, s.maxStack))
	for at := 0; at+8 <= t.length && at+8 <= snapshot.MaxRegisters; at += 8 {
		if v := *(*uint64)(unsafe.Pointer(&t.registers[at])); v >= low && v < least && v%8 == 0 {
			least = v
		}
	}
	at, end := t.stackAt+int(-t.stackStart&7), t.stackAt+t.stackLen
	for ; words > 0 && at+8 <= end; at += 8 {
		if v := *(*uint64)(unsafe.Pointer(&s.arena.memory[at])); v >= low && v < least && v%8 == 0 {
			least = v
		}
		words--
	}
	return least
}

// others returns the copied data of a thread's coroutines.
func (s *session) others(t *tracee) []snapshot.Stack {
	if t.nParts == 0 {
		return nil
	}
	out := make([]snapshot.Stack, 0, t.nParts)
	for _, p := range t.parts[:t.nParts] {
		out = append(out, snapshot.Stack{Start: p.address, Data: slices.Clone(s.arena.memory[p.at : p.at+p.length])})
	}
	return out
}
