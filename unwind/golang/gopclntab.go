package golang

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrNone means that the image has no Go function table: it is not a Go program.
	ErrNone = errors.New("gopclntab: no Go function table")
	// ErrMalformed means that the table contradicts itself.
	ErrMalformed = errors.New("gopclntab: malformed Go function table")
	// ErrTableVersion means that the table is not supported: its format is older than Go 1.16, or its addresses depend
	// on several code sections.
	ErrTableVersion = errors.New("gopclntab: unknown format of the Go function table")
	// ErrNotCovered means that an address is in no Go function.
	ErrNotCovered = errors.New("gopclntab: address in no Go function")
)

// Source reads an image's content by link-time address. Callers do not change the returned bytes.
type Source interface {
	Bytes(addr, n uint64) ([]byte, error)
}

// Frame is a call at an address: a function, or a call that the compiler inlined.
type Frame struct {
	// Function is the name as in Go's stack traces: with [...] in place of type arguments.
	Function string
	// Entry is the function's first address, 0 for an inlined call. Start is the first address of the piece of the
	// function's code that contains the address.
	Entry, Start uint64
	// File and Line are the place in the source that the frame executes. They are "" and 0 if unknown.
	File string
	Line int
	// Inlined is set for an inlined call, which shares the stack frame of the next Frame.
	Inlined bool
}

// Table is the function table of an image. It is safe for concurrent use if its source is.
type Table struct {
	src    Source
	order  binary.ByteOrder
	addr   uint64 // of the header
	size   uint64 // limit of the table's size in bytes
	format format
	// quantum is the unit of code distances, ptr the size of addresses, both in bytes.
	quantum, ptr uint64
	// functions is the number of functions.
	functions uint64
	// Offsets of the parts from the header.
	names, units, files, values, funcs uint64
	// The field text is the base address of functions. The field base is the base address of their data; 0 means
	// unknown.
	text, base uint64
}

// format identifies a version of the table, by the first version of Go that has it.
type format uint8

const (
	go116 format = iota
	go118
	go120
)

// magics are the magic numbers in the first four bytes of the table's header, by which its format is recognised.
var magics = map[uint32]format{0xfffffffa: go116, 0xfffffff0: go118, 0xfffffff1: go120}

// Limits of the reader of a table.
const (
	maxFunctions = 1 << 24
	maxName      = 16 << 10 // bytes of a name
	maxInlined   = 256      // calls inlined into each other
	maxTable     = 1 << 20  // bytes of one function's table
	maxRuns      = 1 << 16  // pieces of code in one function's table of inlined calls
)

// Functions returns how many functions the table has.
func (t *Table) Functions() int { return int(t.functions) }

// open reads the header at an address. The table has at most size bytes from there on.
func open(src Source, order binary.ByteOrder, addr, size uint64) (*Table, error) {
	t := &Table{src: src, order: order, addr: addr, size: size}
	head, err := t.bytes(0, 8)
	if err != nil {
		return nil, err
	}
	f, ok := magics[order.Uint32(head)]
	if !ok {
		return nil, fmt.Errorf("%w: magic %#x", ErrTableVersion, order.Uint32(head))
	}
	t.format, t.quantum, t.ptr = f, uint64(head[6]), uint64(head[7])
	if head[4]|head[5] != 0 || t.quantum != 1 && t.quantum != 2 && t.quantum != 4 || t.ptr != 4 && t.ptr != 8 {
		return nil, fmt.Errorf("%w: header % x", ErrMalformed, head)
	}
	words, err := t.bytes(8, 8*t.ptr)
	if err != nil {
		return nil, err
	}
	word := func(i uint64) uint64 { return t.word(words[i*t.ptr:]) }
	parts := uint64(2)
	if t.format >= go118 {
		t.text = word(2) // Go 1.26 leaves it 0; in a position-independent program the dynamic linker writes it
		parts = 3
	}
	t.functions = word(0)
	t.names, t.units, t.files, t.values, t.funcs = word(parts), word(parts+1), word(parts+2), word(parts+3), word(parts+4)
	for _, off := range [...]uint64{t.names, t.units, t.files, t.values, t.funcs} {
		if off > size {
			return nil, fmt.Errorf("%w: a part at %#x of %#x bytes", ErrMalformed, off, size)
		}
	}
	if t.functions == 0 || t.functions > maxFunctions || t.functions > (size-t.funcs)/(2*t.field()) {
		return nil, fmt.Errorf("%w: %d functions", ErrMalformed, t.functions)
	}
	return t, nil
}

// field returns the size in bytes of each of the two numbers that the list of functions has for a function: the
// function's entry and the offset of its data.
func (t *Table) field() uint64 {
	if t.format == go116 {
		return t.ptr
	}
	return 4
}

// word reads an address-sized number at the beginning of p.
func (t *Table) word(p []byte) uint64 {
	if t.ptr == 8 {
		return t.order.Uint64(p)
	}
	return uint64(t.order.Uint32(p))
}

// bytes returns n bytes at an offset from the header.
func (t *Table) bytes(off, n uint64) ([]byte, error) {
	if off > t.size || n > t.size-off {
		return nil, fmt.Errorf("%w: no %d bytes at %#x", ErrMalformed, n, off)
	}
	p, err := t.src.Bytes(t.addr+off, n)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if uint64(len(p)) < n {
		return nil, fmt.Errorf("%w: %d bytes at %#x, not %d", ErrMalformed, len(p), off, n)
	}
	return p, nil
}

// str reads a string at an offset from the header. A zero byte ends the string.
func (t *Table) str(off uint64) (string, error) {
	for n := uint64(64); ; n *= 4 {
		if off > t.size {
			return "", fmt.Errorf("%w: no string at %#x", ErrMalformed, off)
		}
		n = min(n, t.size-off, maxName)
		p, err := t.bytes(off, n)
		if err != nil {
			return "", err
		}
		for i, c := range p {
			if c == 0 {
				return string(p[:i]), nil
			}
		}
		if n == maxName || n == t.size-off {
			return "", fmt.Errorf("%w: string without end at %#x", ErrMalformed, off)
		}
	}
}
