package gopclntab

import (
	"errors"
	"fmt"
)

// Frames returns the calls at an address, innermost first. The last call is the function itself. The error is
// ErrNotCovered or ErrMalformed. With ErrMalformed, Frames may still return the function itself, without a line. If a
// source line is unknown, it stays empty. Frames never uses the line of another call instead.
func (t *Table) Frames(addr uint64) ([]Frame, error) {
	f, err := t.Find(addr)
	if err != nil {
		return nil, err
	}
	own := Frame{Function: f.Name, Entry: f.Entry, Start: f.Entry}
	frames := make([]Frame, 0, 4)
	at := addr
	for range maxInlined {
		index, err := f.inlinedAt(at)
		if err != nil {
			return []Frame{own}, err
		}
		if index < 0 {
			own.File, own.Line, err = f.line(at)
			return append(frames, own), err
		}
		call, err := f.call(index)
		if err != nil {
			return []Frame{own}, err
		}
		in := Frame{Function: call.name, Inlined: true}
		if in.File, in.Line, err = f.line(at); err != nil {
			return []Frame{own}, err
		}
		if in.Start, err = f.start(index, addr); err != nil {
			return []Frame{own}, err
		}
		frames = append(frames, in)
		at = f.Entry + uint64(call.parent)
	}
	return []Frame{own}, fmt.Errorf("%w: %s inlines without end", ErrMalformed, f.Name)
}

// line returns the place in the source of an address.
func (f *Function) line(addr uint64) (string, int, error) {
	t := f.table
	file, err := f.value(f.pcfile, addr)
	if err != nil {
		return "", 0, err
	}
	line, err := f.value(f.pcline, addr)
	if err != nil || file.value < 0 {
		return "", 0, err
	}
	p, err := t.bytes(t.units+4*(uint64(f.unit)+uint64(file.value)), 4)
	if err != nil {
		return "", 0, err
	}
	off := t.order.Uint32(p)
	if off == ^uint32(0) {
		return "", 0, nil
	}
	name, err := t.str(t.files + uint64(off))
	return name, int(line.value), err
}

// inlinedAt returns the number of the innermost call inlined at an address, or -1.
func (f *Function) inlinedAt(addr uint64) (int32, error) {
	if f.inline == 0 {
		return -1, nil
	}
	r, err := f.value(f.inline, addr)
	if errors.Is(err, ErrNotCovered) {
		return -1, nil
	}
	return r.value, err
}

// call is an entry of the inline tree.
type call struct {
	name string
	// parent is the distance from the function's entry to an instruction of the caller, at the line of the call.
	parent uint32
}

// call reads an entry of the inline tree (inlinedCall in package runtime).
func (f *Function) call(index int32) (call, error) {
	t := f.table
	size, name, parent := uint64(16), 4, 8
	if t.format < go120 {
		size, name, parent = 20, 12, 16
	}
	if f.tree == 0 {
		return call{}, fmt.Errorf("%w: %s has no inline tree", ErrMalformed, f.Name)
	}
	p, err := t.src.Bytes(f.tree+uint64(uint32(index))*size, size)
	if err != nil || uint64(len(p)) < size {
		return call{}, fmt.Errorf("%w: inline tree of %s", ErrMalformed, f.Name)
	}
	c := call{parent: t.order.Uint32(p[parent:])}
	c.name, err = t.str(t.names + uint64(t.order.Uint32(p[name:])))
	if err == nil && (c.name == "" || f.Entry+uint64(c.parent) >= f.End) {
		err = fmt.Errorf("%w: inline tree of %s", ErrMalformed, f.Name)
	}
	return c, err
}

// start returns where the piece of code of an inlined call begins that holds an address.
func (f *Function) start(index int32, addr uint64) (uint64, error) {
	inside := map[int32]bool{-1: false, index: true}
	r := f.runs(f.inline)
	start, was := f.Entry, false
	for r.next() {
		is, err := f.within(r.run.value, inside)
		if err != nil {
			return 0, err
		}
		if is && !was {
			start = r.run.start
		}
		if was = is; addr < r.run.end {
			break
		}
	}
	return start, r.err
}

// within reports whether a call is marked true in inside, or inlined into such a call. It stores the result in
// inside.
func (f *Function) within(index int32, inside map[int32]bool) (bool, error) {
	if is, known := inside[index]; known {
		return is, nil
	}
	if index < 0 || len(inside) > maxTable/16 {
		return false, nil
	}
	inside[index] = false // ends a circle
	c, err := f.call(index)
	if err != nil {
		return false, err
	}
	parent, err := f.inlinedAt(f.Entry + uint64(c.parent))
	if err != nil {
		return false, err
	}
	is, err := f.within(parent, inside)
	inside[index] = is
	return is, err
}
