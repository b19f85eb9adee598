package memctx

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

// fake is a memory of one piece at base.
const base = 0x10000

// pg is the layout of the fake server.
var pg, _ = layout.Of(18)

func server(t testing.TB, major int) *Server {
	t.Helper()
	s, err := NewServer(major, func(name string) uint64 {
		if name == "TopMemoryContext" {
			return base
		}
		return 0
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type fake []byte

func (f fake) read(addr uint64, p []byte) int {
	if addr < base || addr >= base+uint64(len(f)) {
		return 0
	}
	return copy(p, f[addr-base:])
}

func (f fake) put(addr, v uint64) { binary.NativeEndian.PutUint64(f[addr-base:], v) }

// tree makes three AllocSets of 18: the first has the second and the third as children.
func tree() fake {
	f := make(fake, 4*pageSize)
	const name, first, step = base + 0x100, base + 0x1000, 0x400
	copy(f[0x100:], "TopMemoryContext\x00")
	f.put(base, first)
	for i := range uint64(3) {
		set, block := first+i*step, first+i*step+200
		f.put(set, 474)
		f.put(set+pg.MemoryContextData.MemAllocated.Uint64(), step)
		f.put(set+pg.MemoryContextData.Name.Uint64(), name)
		f.put(set+pg.AllocSetContext.Blocks.Uint64(), block)
		f.put(block+pg.AllocBlockData.Aset.Uint64(), set)
		f.put(block+pg.AllocBlockData.Freeptr.Uint64(), block+100)
		f.put(block+pg.AllocBlockData.Endptr.Uint64(), set+step)
		if i > 0 {
			f.put(set+pg.MemoryContextData.Parent.Uint64(), first)
		}
	}
	f.put(first+pg.MemoryContextData.Firstchild.Uint64(), first+step)
	f.put(first+step+pg.MemoryContextData.Nextchild.Uint64(), first+2*step)
	f.put(first+2*step+pg.MemoryContextData.Prevchild.Uint64(), first+step)
	f.put(first+pg.AllocSetContext.Freelist.Uint64()+8, first+304) // a chunk of 16 bytes
	return f
}

// TestRead reads a small tree.
func TestRead(t *testing.T) {
	m, err := server(t, 18).Read(t.Context(), tree().read, 0, Options{})
	if err != nil || !m.Consistent || len(m.Contexts) != 3 || m.Contexts[2].Parent != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	c := m.Contexts[0]
	if c.Name != "TopMemoryContext" || c.Total != 1024 || c.Blocks != 1 || c.FreeChunks != 1 ||
		c.Free != 1024-200-100+16+8 || c.Used() != 1024-c.Free {
		t.Errorf("%+v", c)
	}
}

// TestContradictions: a tree with structures that contradict each other is not consistent. Contexts are missing only if
// links are wrong.
func TestContradictions(t *testing.T) {
	const first, step = base + 0x1000, 0x400
	for what, damage := range map[string]func(fake){
		"parent":       func(f fake) { f.put(first+step+pg.MemoryContextData.Parent.Uint64(), first+2*step) },
		"circle":       func(f fake) { f.put(first+2*step+pg.MemoryContextData.Nextchild.Uint64(), first+step) },
		"own child":    func(f fake) { f.put(first+pg.MemoryContextData.Firstchild.Uint64(), first) },
		"block's set":  func(f fake) { f.put(first+200+pg.AllocBlockData.Aset.Uint64(), first+step) },
		"block circle": func(f fake) { f.put(first+200+pg.AllocBlockData.Next.Uint64(), first+200) },
		"sum":          func(f fake) { f.put(first+pg.MemoryContextData.MemAllocated.Uint64(), 1<<40) },
		"chunk circle": func(f fake) { f.put(first+304+8, first+304) },
		"no memory":    func(f fake) { f.put(first+step+pg.MemoryContextData.Nextchild.Uint64(), 1<<50) },
		"name":         func(f fake) { f.put(first+pg.MemoryContextData.Name.Uint64(), 8) },
	} {
		f := tree()
		damage(f)
		m, err := server(t, 18).Read(t.Context(), f.read, 0, Options{})
		if err != nil || m.Consistent || m.Broken == 0 || m.Attempts != DefaultAttempts {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
		links := what == "parent" || what == "circle" || what == "own child" || what == "no memory"
		if links != (m.Missing > 0) {
			t.Errorf("%s: the children of %d contexts are missing", what, m.Missing)
		}
	}
}

// TestChange: a tree that changes between the two readings of each attempt is not consistent. If it stops changing, a
// later attempt returns a consistent tree.
func TestChange(t *testing.T) {
	f := tree()
	reads, last := 0, 30
	m, err := server(t, 18).Read(t.Context(), func(addr uint64, p []byte) int {
		if reads++; reads < last {
			f.put(base+0x1000+200+pg.AllocBlockData.Freeptr.Uint64(), base+0x1000+300+uint64(reads))
		}
		return f.read(addr, p)
	}, 0, Options{Attempts: 100})
	if err != nil || !m.Consistent || m.Attempts < 2 {
		t.Errorf("%+v, %v", m, err)
	}
	reads, last = 0, 1<<30
	if m, err = server(t, 18).Read(t.Context(), func(addr uint64, p []byte) int {
		reads++
		f.put(base+0x1000+200+pg.AllocBlockData.Freeptr.Uint64(), base+0x1000+300+uint64(reads%100))
		return f.read(addr, p)
	}, 0, Options{}); err != nil || m.Consistent || m.Changed == 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestChildrenMove: children whose links change while they are read are read again within the same attempt.
func TestChildrenMove(t *testing.T) {
	const first, step = base + 0x1000, 0x400
	f := tree()
	prev, looks := first+2*step+pg.MemoryContextData.Prevchild.Uint64(), 0
	m, err := server(t, 18).Read(t.Context(), func(addr uint64, p []byte) int {
		if addr == first {
			looks++
			f.put(prev, first+step)
			if looks < childTries {
				f.put(prev, first)
			}
		}
		return f.read(addr, p)
	}, 0, Options{})
	if err != nil || m.Attempts != 1 || m.Missing != 0 || len(m.Contexts) != 3 || !m.Consistent || looks < childTries {
		t.Errorf("after %d looks: %+v, %v", looks, m, err)
	}
}

// TestBounds: if a tree exceeds the limits of contexts or pages, the reading ends, and LeftOut is set.
func TestBounds(t *testing.T) {
	m, err := server(t, 18).Read(t.Context(), tree().read, 0, Options{MaxContexts: 2})
	if err != nil || !m.LeftOut || len(m.Contexts) != 2 {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err = server(t, 18).Read(t.Context(), tree().read, 0, Options{MaxPages: 2}); err != nil || m.LeftOut {
		t.Errorf("all are on two pages: %+v, %v", m, err)
	}
	if _, err = server(t, 18).Read(t.Context(), tree().read, 0, Options{MaxPages: 1}); !errors.Is(err, ErrNoContexts) {
		t.Errorf("one page: %v", err)
	}
	if _, err = server(t, 18).Read(t.Context(), func(uint64, []byte) int { return 0 }, 0, Options{}); !errors.Is(
		err, ErrNoContexts) {
		t.Errorf("no memory: %v", err)
	}
	if _, err = NewServer(13, func(string) uint64 { return 1 }); !errors.Is(err, ErrNotServer) {
		t.Errorf("version 13: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = server(t, 18).Read(ctx, tree().read, 0, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestBounded: contexts below the last level are added to their ancestors on it, and the sums over the tree stay whole.
func TestBounded(t *testing.T) {
	const chain, size = 1000, 256
	f := make(fake, 0x1000+2*chain*size)
	f.put(base, base+0x1000)
	context := func(i int) uint64 { return base + 0x1000 + uint64(i)*size }
	for i := range 2 * chain { // two chains below the first context: the even and the odd numbers
		set := context(i)
		f.put(set, 474)
		f.put(set+pg.MemoryContextData.MemAllocated.Uint64(), size)
		f.put(set+pg.MemoryContextData.Name.Uint64(), base+0x100)
		f.put(set+pg.AllocSetContext.Blocks.Uint64(), set+200)
		f.put(set+200+pg.AllocBlockData.Aset.Uint64(), set)
		f.put(set+200+pg.AllocBlockData.Freeptr.Uint64(), set+248)
		f.put(set+200+pg.AllocBlockData.Endptr.Uint64(), set+size)
		if i > 0 {
			f.put(set+pg.MemoryContextData.Parent.Uint64(), context(max(i-2, 0)))
		}
		if i > 0 && i+2 < 2*chain {
			f.put(set+pg.MemoryContextData.Firstchild.Uint64(), context(i+2))
		}
	}
	f.put(context(0)+pg.MemoryContextData.Firstchild.Uint64(), context(1))
	f.put(context(1)+pg.MemoryContextData.Nextchild.Uint64(), context(2))
	f.put(context(2)+pg.MemoryContextData.Prevchild.Uint64(), context(1))
	whole, err := server(t, 18).Read(t.Context(), f.read, 0, Options{})
	if err != nil || !whole.Consistent || whole.LeftOut || len(whole.Contexts) != 2*chain {
		t.Fatalf("%v, %d contexts", err, len(whole.Contexts))
	}
	bounded := whole.Bounded()
	total, free := int64(0), int64(0)
	for i := range bounded.Contexts {
		total, free = total+bounded.Contexts[i].Total, free+bounded.Contexts[i].Free
	}
	if n := len(bounded.Contexts); n != 2*MaxLevels-1 || n+bounded.Deeper() != 2*chain || total != 2*chain*size ||
		free != 2*chain*8 {
		t.Errorf("%d contexts and %d deeper ones with %d bytes, %d free", n, bounded.Deeper(), total, free)
	}
	last := bounded.Contexts[2*MaxLevels-2]
	if last.Deeper != chain-MaxLevels || last.Blocks != int64(last.Deeper)+1 || whole.Deeper() != 0 {
		t.Errorf("%+v", last)
	}
	whole.Contexts[2*chain-1].Free, whole.Contexts[2*chain-1].FreeChunks = Unknown, Unknown
	bounded = whole.Bounded()
	before, last := bounded.Contexts[2*MaxLevels-3], bounded.Contexts[2*MaxLevels-2]
	if min(before.Free, last.Free) != Unknown || max(before.Free, last.Free) == Unknown || before.Total < 0 || last.Total < 0 {
		t.Errorf("with an unknown part: %+v, %+v", before, last)
	}
}

// TestIdent: an identifier is cut between two characters, and bytes that are not UTF-8 are escaped.
func TestIdent(t *testing.T) {
	if got := clip([]byte(strings.Repeat("ä", 600)), 1023); len(got) != 1022 {
		t.Errorf("%d bytes", len(got))
	}
	if got := printable([]byte("a\xe4b\x00c")); got != "a\\xe4b\x00c" {
		t.Errorf("%q", got)
	}
}

// FuzzRead: with any content of the memory, the reading does not crash, ends, and returns no impossible figures.
func FuzzRead(f *testing.F) {
	f.Add([]byte(tree()), uint8(4))
	f.Add([]byte(tree()), uint8(0))
	f.Fuzz(func(t *testing.T, raw []byte, version uint8) {
		memory := make(fake, 4*pageSize)
		copy(memory, raw)
		m, err := server(t, 14+int(version%5)).Read(t.Context(), memory.read, 0, Options{Attempts: 1, MaxContexts: 1000})
		if err != nil {
			return
		}
		for i := range m.Contexts {
			c := &m.Contexts[i]
			if c.Parent >= i || c.Total < Unknown || c.Free < Unknown || c.FreeChunks < Unknown ||
				m.Consistent && c.Free > c.Total {
				t.Fatalf("%+v", c)
			}
		}
	})
}
