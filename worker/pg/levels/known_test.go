package levels

import (
	"slices"
	"testing"
)

// copied copies from the fake process the memory that the extra reads t list, as package ptrace does. It returns the
// copy and its size in bytes.
func (f *fake) copied(t ExtraReads) (Memory, int) {
	have := map[uint64]int{stackLow: stackHigh - stackLow}
	total := 0
	word := func(at uint64) uint64 {
		r := reader{in: &Input{Frozen: f.read}}
		w, _ := r.word(at)
		return w
	}
	take := func(at uint64, n int) {
		if n = f.read(at, make([]byte, n)); n > have[at] {
			total += n - have[at]
			have[at] = n
		}
	}
	for _, v := range t.Variables {
		take(v.Address, 8)
		take(word(v.Address), v.Follow)
	}
	take(t.Head, 8)
	for node := word(t.Head); node != 0; node = word(node) {
		derefs, arg := t.OnStack, word(node+16)
		for _, k := range t.Known {
			if k.Callback == word(node+8) {
				derefs = k.OnStack
			}
		}
		if arg < stackLow || arg >= stackHigh {
			take(arg, t.Elsewhere)
			continue
		}
		for _, d := range derefs {
			take(word(arg+uint64(d.Offset)), d.Length)
		}
	}
	return func(addr uint64, p []byte) int {
		most := 0
		for start, n := range have {
			if addr >= start && addr < start+uint64(n) {
				most = max(most, f.read(addr, p[:min(uint64(len(p)), start+uint64(n)-addr)]))
			}
		}
		return most
	}, total
}

// TestKnown reads the levels of a process from the memory that its ExtraReads list. Once the callbacks are known, the
// list is shorter, and the levels must be the same. If the function at a known address is another one, its levels may
// be missing in one read.
func TestKnown(t *testing.T) {
	for major := 14; major <= 19; major++ {
		f := newFake(major)
		variable, _ := f.plpgsql("inline_code_block", 0, 3, 7)
		if f.layout.errVar != 0 {
			at := f.alloc(make([]byte, 64))
			f.put32(at+16, 5)
			f.put64(variable+uint64(f.layout.errVar), at)
		}
		f.plpgsql("f()", 1, 21, 1) // whose statement has a flag far behind
		f.node(inlineAt, f.text("no pointer"))
		_, _ = f.plpgsql("g()", 1, -1, 0)
		f.put64(f.node(spiAt, 0), f.text("SELECT 1"))
		p, code := f.server().Process(bias), f.code
		read := func() (texts []string, size int) {
			in := f.input()
			in.Frozen, size = f.copied(p.ExtraReads())
			in.Code = func(addr uint64) Code { return code(addr) }
			for _, l := range p.Read(in).Levels {
				texts = append(texts, l.Level.Text)
			}
			return texts, size
		}
		first, all := read()
		again, less := read()
		if len(first) != 4 || !slices.Equal(again, first) {
			t.Errorf("%d: first %q, then %q", major, first, again)
		}
		if less >= all*2/3 {
			t.Errorf("%d: %d bytes, then %d", major, all, less)
		}
		code = func(addr uint64) Code {
			if addr == plpgsqlAt {
				return Code{Module: plpgsqlModule, Function: "another"}
			}
			return f.code(addr)
		}
		if other, _ := read(); len(other) != 1 {
			t.Errorf("%d: of another function %q", major, other)
		}
		if _, size := read(); size <= less {
			t.Errorf("%d: %d bytes of what is not known any more, %d of what was", major, size, less)
		}
		code = f.code
		if back, _ := read(); !slices.Equal(back, first) {
			t.Errorf("%d: once more %q, not %q", major, back, first)
		}
	}
}
