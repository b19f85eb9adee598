package golang

import (
	"errors"
	"testing"
)

// counted is a source that counts its reads. It refuses them after a million.
type counted struct {
	flat

	reads int
}

func (c *counted) Bytes(addr, n uint64) ([]byte, error) {
	if c.reads++; c.reads > 1_000_000 {
		return nil, errors.New("too many reads")
	}
	return c.flat.Bytes(addr, n)
}

// nested makes a table with one function at 0x1000. Its code begins with siblings of one unit each, which are different
// calls inlined into the outermost call. Then follow one unit of each of the nested calls, the innermost first, and one
// unit of the function itself.
func nested(t *testing.T, siblings, calls int) (*Table, *counted) {
	t.Helper()
	s := smalls[0]
	units := siblings + calls + 1
	values, inlined, tree := []byte{0}, []int(nil), []byte(nil)
	for i := range units - 1 {
		inlined = append(inlined, i, 1)
		parent := i + 1
		if i < siblings {
			parent = units - 2
		}
		tree = s.u32(tree, 0, len("\x00main.outer\x00"), parent, 1)
	}
	add := func(pairs ...int) int {
		values = append(values, steps(pairs...)...)
		return len(values) - len(steps(pairs...))
	}
	file, line, inline := add(0, units), add(10, units), add(append(inlined, -1, 1)...)
	none := int(^uint32(0))
	list := s.u32(s.entry(nil, 0), 3*len(s.entry(nil, 0)))
	list = append(s.entry(list, units),
		s.function(0, []int{1, 0, 0, 0, file, line}, []int{0, 0, inline}, []int{none, none, none, 0})...)
	data := s.join(1, []byte("\x00main.outer\x00main.inner\x00"), []byte("a.go\x00b.go\x00"), values, list)
	c := &counted{flat: append(data, tree...)}
	table, err := open(c, s.order, 0, uint64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	table.base = uint64(len(data))
	return table, c
}

// TestManyInlined checks that Frames reads the inline tree and the table of a large function only once.
func TestManyInlined(t *testing.T) {
	const siblings, calls = 50_000, 200
	table, c := nested(t, siblings, calls)
	c.reads = 0
	frames, err := table.Frames(0x1000 + siblings)
	if err != nil || len(frames) != calls+1 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	for i, f := range frames {
		want := uint64(0x1000 + siblings)
		if i >= calls-1 {
			want = 0x1000 // of the outermost call and of the function
		}
		if f.Start != want || f.Inlined != (i < calls) {
			t.Errorf("%d: %+v", i, f)
		}
	}
	if c.reads > 2*siblings {
		t.Errorf("%d reads", c.reads)
	}
}

// TestTooManyInlined checks the limit of the pieces of code in a function's table of inlined calls.
func TestTooManyInlined(t *testing.T) {
	const calls = 10
	table, _ := nested(t, maxRuns-calls-1, calls)
	if frames, err := table.Frames(0x1000 + maxRuns - 2); err != nil || len(frames) != 2 {
		t.Errorf("%+v, %v", frames, err)
	}
	table, _ = nested(t, maxRuns-calls, calls)
	if frames, err := table.Frames(0x1000 + maxRuns); !errors.Is(err, ErrMalformed) || len(frames) != 1 {
		t.Errorf("behind the last piece: %+v, %v", frames, err)
	}
}
