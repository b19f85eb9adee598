package golang

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

type smallOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// small is a hand-made table. main.outer is at 0x1000, 16 units long, with main.inner inlined from 4 to 8. A gap of 8
// units follows, and then main.last at 24, 8 units long.
type small struct {
	name    string
	order   smallOrder
	format  format
	ptr     int
	quantum int
}

var smalls = []small{
	{"1.20, amd64", binary.LittleEndian, go120, 8, 1},
	{"1.20, s390x", binary.BigEndian, go120, 8, 2},
	{"1.20, arm64", binary.LittleEndian, go120, 8, 4},
	{"1.18, amd64", binary.LittleEndian, go118, 8, 1},
	{"1.18, mips", binary.BigEndian, go118, 4, 4},
	{"1.16, amd64", binary.LittleEndian, go116, 8, 1},
	{"1.16, mips", binary.BigEndian, go116, 4, 4},
}

// steps encodes a table: pairs of a value and the units of code that have it.
func steps(pairs ...int) []byte {
	var out []byte
	last := -1
	for i := 0; i < len(pairs); i += 2 {
		d := int32(pairs[i] - last)
		out = binary.AppendUvarint(out, uint64(uint32(d<<1)^uint32(d>>31)))
		out = binary.AppendUvarint(out, uint64(pairs[i+1]))
		last = pairs[i]
	}
	return append(out, 0)
}

// word appends an address-sized number.
func (s small) word(p []byte, v int) []byte {
	if s.ptr == 8 {
		return s.order.AppendUint64(p, uint64(v))
	}
	return s.u32(p, v)
}

func (s small) u32(p []byte, values ...int) []byte {
	for _, v := range values {
		p = s.order.AppendUint32(p, uint32(v))
	}
	return p
}

// entry appends the address of a function, as the list of functions has it.
func (s small) entry(p []byte, units int) []byte {
	if s.format == go116 {
		return s.word(p, 0x1000+units*s.quantum)
	}
	return s.u32(p, units*s.quantum)
}

// function builds the table's data of one function.
func (s small) function(units int, fields, tables, data []int) []byte {
	p := s.u32(s.entry(nil, units), fields...)
	p = s.u32(p, len(tables), 0)
	if s.format == go120 {
		p = s.u32(p, 1)
	}
	p = append(p, 0, 0, 0, byte(len(data)))
	p = s.u32(p, tables...)
	if s.format != go116 {
		return s.u32(p, data...)
	}
	for _, v := range data { // addresses, aligned: see build
		p = s.word(p, v)
	}
	return p
}

// functions is the list of functions, and the values that it refers to. The inline tree is at an address, or an offset.
func (s small) functions(tree int) (list, values []byte) {
	values = []byte{0}
	add := func(pairs ...int) int {
		values = append(values, steps(pairs...)...)
		return len(values) - len(steps(pairs...))
	}
	sp, file := add(0, 1, 24, 15), add(0, 4, 1, 4, 0, 8)
	line, inlined := add(10, 4, 30, 4, 11, 8), add(-1, 4, 0, 4, -1, 8)
	lastFile, lastLine := add(0, 8), add(50, 8)
	none := int(^uint32(0))
	outer := s.function(0, []int{1, 0, 0, sp, file, line}, []int{0, 0, inlined}, []int{none, none, none, tree})
	last := s.function(24, []int{23, 0, 0, 0, lastFile, lastLine}, nil, nil)
	number := s.u32
	if s.format == go116 {
		number = func(p []byte, values ...int) []byte { return s.word(p, values[0]) }
	}
	size := 5 * len(s.entry(nil, 0))
	list = number(s.entry(nil, 0), size)
	list = number(s.entry(list, 24), size+len(outer))
	return slices.Concat(s.entry(list, 32), outer, last), values
}

// build returns the table and where the functions' data begin.
func (s small) build() (data []byte, base uint64) {
	data, base = s.buildWith(0)
	if s.format == go116 {
		return s.buildWith(int(base))
	}
	return data, base
}

func (s small) buildWith(at int) (data []byte, base uint64) {
	names := []byte("\x00main.outer\x00main.inner\x00main.last\x00")
	files := []byte("a.go\x00b.go\x00")
	funcs, values := s.functions(at)
	data = s.join(2, names, files, values, funcs)
	tree := s.u32(nil, 0, 12, 2*s.quantum, 1)
	if s.format < go120 {
		tree = s.u32(nil, 0, 0, 0, 12, 2*s.quantum)
	}
	return slices.Concat(data, tree), uint64(len(data))
}

// join returns the header and the parts of a table with that number of functions.
func (s small) join(functions int, names, files, values, funcs []byte) []byte {
	for before := 8 + 8*s.ptr + len(names) + 8 + len(files); (before+len(values))%8 != 0; {
		values = append(values, 0)
	}
	magic := map[format]int{go116: 0xfffffffa, go118: 0xfffffff0, go120: 0xfffffff1}[s.format]
	header := append(s.u32(nil, magic), 0, 0, byte(s.quantum), byte(s.ptr))
	header = s.word(s.word(header, functions), 2)
	if s.format >= go118 {
		header = s.word(header, 0x1000)
	}
	parts := [][]byte{names, s.u32(nil, 0, 5), files, values, funcs}
	off := 8 + 8*s.ptr
	for _, part := range parts {
		header = s.word(header, off)
		off += len(part)
	}
	header = append(header, make([]byte, 8+8*s.ptr-len(header))...)
	return slices.Concat(header, slices.Concat(parts...))
}

func TestFormats(t *testing.T) {
	for _, s := range smalls {
		t.Run(s.name, func(t *testing.T) {
			data, base := s.build()
			table, err := open(flat(data), s.order, 0, uint64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			table.base = base
			inner := "main.inner b.go:30 from 4 [inlined], main.outer a.go:10 from 0"
			for units, want := range map[int]string{
				0: "main.outer a.go:10 from 0", 3: "main.outer a.go:10 from 0", 4: inner, 7: inner,
				8: "main.outer a.go:11 from 0", 15: "main.outer a.go:11 from 0",
				24: "main.last a.go:50 from 24", 31: "main.last a.go:50 from 24",
				16: "", 23: "", 32: "", -1: "",
			} {
				addr := uint64(0x1000 + units*s.quantum)
				frames, err := table.Frames(addr)
				if want == "" && !errors.Is(err, ErrNotCovered) {
					t.Errorf("unit %d: %v", units, err)
				}
				if got := s.text(frames); got != want {
					t.Errorf("unit %d: %q, not %q (%v)", units, got, want, err)
				}
			}
			f, err := table.Find(0x1000)
			if err != nil {
				t.Fatal(err)
			}
			for units, want := range []int{0, 24, 24} {
				if d, err := f.SPDelta(0x1000 + uint64(units*s.quantum)); err != nil || d != want {
					t.Errorf("unit %d: distance %d, not %d: %v", units, d, want, err)
				}
			}
			if f.End != uint64(0x1000+24*s.quantum) {
				t.Errorf("end at %#x", f.End)
			}
		})
	}
}

func (s small) text(frames []Frame) string {
	var out []string
	for _, f := range frames {
		text := fmt.Sprintf("%s %s:%d from %d", f.Function, f.File, f.Line, int(f.Start-0x1000)/s.quantum)
		if f.Inlined {
			text += " [inlined]"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
