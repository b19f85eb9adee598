package snapshot

import (
	"slices"
	"sync"
)

// stackCopy is memory for a copy of a stack of common size. It is reused, because allocating it takes longer than
// filling it.
type stackCopy [32 << 10]byte

//nolint:gochecknoglobals // a cache
var stackCopies = sync.Pool{New: func() any { return new(stackCopy) }}

// Release returns memory of the snapshot's stacks for use by further captures. The caller must not use the stacks any more.
// Calling Release is optional.
func (s *Snapshot) Release() {
	if s.lent == nil {
		return
	}
	for i := range s.Threads {
		if stack := &s.Threads[i].Stack; len(stack.Data) > 0 && &stack.Data[0] == &s.lent[0] {
			stack.Data = nil
		}
	}
	stackCopies.Put(s.lent)
	s.lent = nil
}

// CopyOf returns a copy of a stack. The memory for the first copy comes from the pool, if the stack fits; see Release.
func (s *Snapshot) CopyOf(stack []byte) []byte {
	if s.lent != nil || len(stack) == 0 || len(stack) > len(stackCopy{}) {
		return slices.Clone(stack)
	}
	lent, ok := stackCopies.Get().(*stackCopy)
	if !ok {
		return slices.Clone(stack)
	}
	s.lent = lent
	return lent[:copy(lent[:], stack)]
}
