package plan

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
)

// garbage is memory with words that point into it, and small numbers like tags.
type garbage struct {
	start uint64
	data  []byte
}

func (g *garbage) Read(addr uint64, p []byte) (int, error) {
	if addr < g.start || addr >= g.start+uint64(len(g.data)) {
		return 0, errors.New("not mapped")
	}
	return copy(p, g.data[addr-g.start:]), nil
}

// TestGarbage: memory without structures gives no plan, even if words of the stack point to it.
func TestGarbage(t *testing.T) {
	const size, start, run = 64 << 10, 1 << 20, 1 << 30
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		g := &garbage{start: start, data: make([]byte, size)}
		for at := 0; at < size; at += 8 {
			v := uint64(start + random.IntN(size/8)*8)
			if random.IntN(2) == 0 {
				v = uint64(random.IntN(480))
			}
			binary.NativeEndian.PutUint64(g.data[at:], v)
		}
		for major := oldestMajor; major <= newestMajor; major++ {
			s := &Stack{
				Major: major, Start: 1 << 40, Data: []Range{{start, start + size}}, Code: []Range{{start, start + size}}, X86: true,
				Functions: map[string]uint64{executorRun: run},
				Frames:    []Frame{{PC: start + 64, Start: run, CFA: 1<<40 + 800, Saved: []uint64{start, start + 8, start + 4096}}},
			}
			for range 100 {
				s.Words = append(s.Words, uint64(start+random.IntN(size/8)*8))
			}
			levels, err := Read(s, g)
			if err != nil || len(levels) != 1 || levels[0].Top != nil || levels[0].Reason == "" {
				t.Fatalf("%v, %+v", err, levels[0])
			}
		}
	}
}

// TestUnknownLayout: a version without a compared layout is refused.
func TestUnknownLayout(t *testing.T) {
	for _, major := range []int{0, oldestMajor - 1, newestMajor + 1, 99} {
		_, err := Read(&Stack{Major: major}, &garbage{})
		var unknown *UnknownLayoutError
		if !errors.As(err, &unknown) || unknown.Major != major {
			t.Errorf("version %d: %v", major, err)
		}
	}
}

// TestUnique makes names as EXPLAIN does.
func TestUnique(t *testing.T) {
	tables := []table{
		{eref: "a", name: "a"}, {eref: "x", alias: "x", name: "a"}, {eref: "a", name: "a"}, {eref: "a_1", alias: "a_1"},
		{eref: "a", name: "a"}, {eref: "unused"},
	}
	unique(tables, map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true})
	for i, want := range []string{"a", "x", "a_1", "a_1_1", "a_2", ""} {
		if got := tables[i].refname; got != want {
			t.Errorf("table %d is %q, want %q", i+1, got, want)
		}
	}
}
