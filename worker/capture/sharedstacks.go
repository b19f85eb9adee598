package capture

import (
	"hash/maphash"
	"slices"
	"unsafe"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// SharedStacks keeps one copy of each group of equal stacks, for all StackSpaces of StackNamers, in limited memory.
// Only one goroutine may use it at a time.
type SharedStacks struct {
	seed        maphash.Seed
	byKey       map[uint64][]*backtrace.Thread // by the hash key; different stacks rarely have the same hash
	size, limit int
	full        bool
}

// NewSharedStacks returns an empty SharedStacks for stacks of up to limit bytes, as estimated by sizeOf.
func NewSharedStacks(limit int) *SharedStacks {
	return &SharedStacks{seed: maphash.MakeSeed(), byKey: make(map[uint64][]*backtrace.Thread), limit: limit}
}

// Full reports whether there was no room for a stack. The stacks that were kept before are still shared.
func (s *SharedStacks) Full() bool { return s.full }

// of returns the kept stack that is equal to t. If there is none, it keeps t and returns it, or returns nil if there is
// no room.
func (s *SharedStacks) of(t *backtrace.Thread) *backtrace.Thread {
	key := s.key(t)
	for _, kept := range s.byKey[key] {
		if equalStacks(kept, t) {
			return kept
		}
	}
	size := sizeOf(t)
	if s.size+size > s.limit {
		s.full = true
		return nil
	}
	s.size += size
	s.byKey[key] = append(s.byKey[key], t)
	return t
}

// key returns a hash of the frames' addresses and functions.
func (s *SharedStacks) key(t *backtrace.Thread) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for i := range t.Frames {
		f := &t.Frames[i]
		maphash.WriteComparable(&h, f.Address)
		maphash.WriteComparable(&h, f.Function)
	}
	return h.Sum64()
}

// equalStacks reports whether two stacks are equal. Ids and names of the threads may differ.
func equalStacks(a, b *backtrace.Thread) bool {
	return a.State == b.State && a.Stop == b.Stop && a.Whole == b.Whole && slices.Equal(a.Kernel, b.Kernel) &&
		slices.EqualFunc(a.Frames, b.Frames, equalFrames)
}

func equalFrames(a, b backtrace.Frame) bool {
	return a.Level == b.Level && a.Address == b.Address && a.Function == b.Function && a.Offset == b.Offset &&
		a.Module == b.Module && a.BuildID == b.BuildID && a.ModuleOffset == b.ModuleOffset &&
		a.File == b.File && a.Line == b.Line && a.Inlined == b.Inlined && a.Derived == b.Derived && a.Note == b.Note &&
		slices.Equal(a.Levels, b.Levels)
}

// sizeOf estimates the bytes of memory for a stack. It does not count the names of frames, which are parts of the
// symbol tables.
func sizeOf(t *backtrace.Thread) int {
	const entry = 64 // bytes of an entry in the map
	n := entry + int(unsafe.Sizeof(*t)) + cap(t.Frames)*int(unsafe.Sizeof(backtrace.Frame{}))
	for i := range t.Frames {
		for _, l := range t.Frames[i].Levels {
			n += int(unsafe.Sizeof(l)) + len(l.Text) + len(l.Function) + len(l.Query) + len(l.Relation) + len(l.Statement)
		}
	}
	return n
}
