package ptrace

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/snapshot"
)

// This file copies the variables of ExtraReads, and the data to which they are expected to point, in the same system call as the
// stack. This shortens the pause, which is mostly spent in system calls and their look-ups of pages.

// maxNear is the maximum length of one read for neighbouring variables.
const maxNear = 512

// join groups variables that are read as one piece of memory: neighbours in one page. The kernel looks up the page
// for each piece, which takes longer than copying some more words.
func (r *extraReads) join() {
	const page = 4096 // or more
	words := make([]uint64, 0, len(r.near))
	for i := range r.variables[:r.nVariables] {
		words = append(words, r.variables[i].Address)
	}
	if r.head != 0 {
		words = append(words, r.head)
	}
	slices.Sort(words)
	r.nNear = 0
	for _, w := range words {
		end := w + 8
		if last := r.nNear - 1; last >= 0 && end > w {
			if s := &r.near[last]; end-s.Start <= maxNear && s.Start/page == (end-1)/page {
				s.End = end
				continue
			}
		}
		r.near[r.nNear] = snapshot.Span{Start: w, End: end}
		r.nNear++
	}
}

// wantVariables makes the memory of the variables and of the list's head the first blocks.
//
//go:nosplit
//go:norace
func (s *session) wantVariables() {
	r := &s.extra
	r.n = 0
	for i := range r.nNear {
		s.wantBlock(r.near[i].Start, int(r.near[i].End-r.near[i].Start))
	}
}

// wantWithStack adds the memory that is copied together with the main thread's stack: the variables and the data to which
// they are expected to point. It returns false for another thread, with coroutines, and if there is nothing or too much to
// copy. It is separate from readBehindVariables because of the small stack (800 bytes, see stop.go).
//
//go:nosplit
//go:norace
func (s *session) wantWithStack(t *tracee) bool {
	r := &s.extra
	if !r.wanted || r.fetched > 0 || s.coroutines.wanted || t != &s.tracees[0] {
		return false
	}
	s.wantVariables()
	for i := range r.nVariables {
		if v := &r.variables[i]; v.Expected != 0 {
			s.wantBytes(v.Expected, v.Follow)
		}
	}
	return r.n > 0 && r.n < snapshot.MaxBlocks
}

// expectNothing removes the expected values of the variables.
func (r *extraReads) expectNothing() {
	for i := range r.variables[:r.nVariables] {
		r.variables[i].Expected = 0
	}
}

// readBehindVariables copies a stack, as the method read does. The same system call first copies the memory that
// wantWithStack has added. It returns false if not all of the added memory is readable, or if there is no room for it.
//
//go:nosplit
//go:norace
func (s *session) readBehindVariables(t *tracee, start, end uint64) (n int, ok bool) {
	r := &s.extra
	variables, stack := 0, int(min(end-start, s.maxStack, s.arena.stackRoom()))
	for i := range r.n {
		r.vectors[i] = iovec{uintptr(r.blocks[i].address), uintptr(r.blocks[i].wanted)}
		variables += r.blocks[i].wanted
	}
	if variables+stack > len(s.arena.memory)-s.arena.used {
		return 0, false
	}
	r.vectors[r.n] = iovec{uintptr(start), uintptr(stack)}
	r.local = iovec{uintptr(unsafe.Pointer(&s.arena.memory[s.arena.used])), uintptr(variables + stack)}
	got, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.tid), uintptr(unsafe.Pointer(&r.local)), 1,
		uintptr(unsafe.Pointer(&r.vectors)), uintptr(r.n+1), 0)
	if errno != 0 || int(got) < variables {
		return 0, false
	}
	s.takeBlocks(0, r.n, variables)
	r.fetched = r.n
	t.stackAt = s.arena.used
	return int(got) - variables, true
}

// loadVariable returns the word at an address that wantVariables has added, 0 if it was not copied.
//
//go:nosplit
//go:norace
func (s *session) loadVariable(address uint64) uint64 {
	r := &s.extra
	for i := range r.nNear {
		if off := address - r.near[i].Start; address >= r.near[i].Start && off < maxNear {
			if word := s.loadWord(i, int(off)); word != 0 {
				return word
			}
		}
	}
	return 0
}
