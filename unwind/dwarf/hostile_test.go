package dwarf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"pg_stat_backtrace/unwind/budget"
)

// counted is a reader that counts its reads.
type counted struct {
	io.ReaderAt
	reads int
}

func (c *counted) ReadAt(p []byte, off int64) (int, error) {
	c.reads++
	return c.ReaderAt.ReadAt(p, off)
}

// zeros is a sparse file that contains only zeros.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// TestSparseUnits checks that a huge section of zeros, which takes no space on the disk, is not read to its end.
func TestSparseUnits(t *testing.T) {
	d := fromBytes(map[string][]byte{".debug_abbrev": {0}}, nil)
	r := &counted{ReaderAt: zeros{}}
	d.sections.info.r, d.sections.info.size = r, 1<<42
	if err := d.Load(); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if r.reads > 2*maxUnits {
		t.Errorf("%d reads", r.reads)
	}
}

// lineTable is a table of version 4 with a header of these bytes from minimum_instruction_length on.
func lineTable(header, program []byte) []byte {
	t := binary.LittleEndian.AppendUint32(nil, uint32(6+len(header)+len(program)))
	t = binary.LittleEndian.AppendUint16(t, 4)
	t = binary.LittleEndian.AppendUint32(t, uint32(len(header)))
	return append(append(t, header...), program...)
}

// TestLineRangeZero: special opcodes are numbered by a division by line_range, also if the only one is 255.
func TestLineRangeZero(t *testing.T) {
	for _, opcodeBase := range []byte{0, 1, 10, 13, 254, 255} {
		header := append([]byte{1, 1, 1, 0, 0, opcodeBase}, make([]byte, 256+2)...)
		for _, op := range []byte{255, lnsConstAddPC} {
			d := fromBytes(map[string][]byte{".debug_line": lineTable(header, []byte{op, op})}, nil)
			if _, err := d.readLines(&unit{version: 4, addrSize: 8}); !errors.Is(err, ErrMalformed) {
				t.Errorf("opcode_base %d, opcode %d: %v", opcodeBase, op, err)
			}
		}
	}
}

// TestIndexedRanges: addresses by their index are read one by one, so that a list of many takes longer than its
// bytes.
func TestIndexedRanges(t *testing.T) {
	list := bytes.Repeat([]byte{rleStartxLength, 0, 0}, 8<<20) // all of them empty
	d := fromBytes(map[string][]byte{".debug_rnglists": list, ".debug_addr": make([]byte, 8)}, nil)
	r := &counted{ReaderAt: bytes.NewReader(make([]byte, 8))}
	d.sections.addr.r = r
	left := 1 << 20
	u := &unit{version: 5, addrSize: 8}
	if _, err := d.rangeList(nil, u, value{form: formSecOffset}, &left); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if r.reads > 1<<20/indexCost {
		t.Errorf("%d reads", r.reads)
	}
}

// filled is a sparse file that contains the same byte everywhere.
type filled byte

func (b filled) ReadAt(p []byte, _ int64) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

// repeatedNames returns a table of names whose format contains a name 255 times.
func repeatedNames() []byte {
	table := []byte{255}
	for range 255 {
		table = append(table, lnctPath, byte(formStrp))
	}
	const count = 1 << 14
	table = binary.AppendUvarint(table, count)
	return append(table, make([]byte, 255*4*count)...)
}

// TestRepeatedNames checks a format that contains a name many times, each of which is read.
func TestRepeatedNames(t *testing.T) {
	for _, test := range []struct {
		content filled
		reads   int
	}{
		{0, maxNameBytes/nameCost + 255},
		{'x', 3 * (maxNameBytes/maxString + 255)}, // names without an end
	} {
		d := fromBytes(nil, nil)
		r := &counted{ReaderAt: test.content}
		d.sections.str.r, d.sections.str.size = r, 1<<20
		c := cursor{data: repeatedNames()}
		if _, err := d.readNameTable(&c, &unit{version: 5, addrSize: 8}); !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
		if r.reads > test.reads {
			t.Errorf("names of %q: %d reads", test.content, r.reads)
		}
	}
}

// TestEffortOfNames: names are charged at their cost, which is much more than their bytes in the table.
func TestEffortOfNames(t *testing.T) {
	for _, content := range []filled{0, 'x'} {
		synctest.Test(t, func(t *testing.T) { // without time, in which used bytes are regained
			d := fromBytes(nil, nil)
			d.effort = budget.NewEffort()
			d.sections.str.r, d.sections.str.size = content, 1<<20
			table := repeatedNames()
			c := cursor{data: table}
			if _, err := d.readNameTable(&c, &unit{version: 5, addrSize: 8}); !errors.Is(err, ErrTooLarge) {
				t.Error(err)
			}
			if used := d.effort.Used(); used < 2*int64(len(table)/4) {
				t.Errorf("names of %q: %d bytes charged", content, used)
			}
		})
	}
}
