package golang

import "fmt"

// run is a piece of code for which a table of a function has one value.
type run struct {
	start, end uint64
	value      int32
}

// runs reads the runs of one of a function's tables, from the start of the table.
type runs struct {
	f    *Function
	at   uint64 // offset of the next value
	stop uint64
	buf  []byte
	run  run
	err  error
	more bool
}

// runs returns a reader of the function's table that begins at the offset off in the part values; 0: the table is
// empty.
func (f *Function) runs(off uint32) runs {
	at := f.table.values + uint64(off)
	return runs{f: f, at: at, stop: at + maxTable, run: run{end: f.Entry, value: -1}, more: off != 0}
}

// next reads the next run. It returns false after the last run, or if the table is damaged.
func (r *runs) next() bool {
	if !r.more {
		return false
	}
	first := r.run.end == r.f.Entry
	delta, ok := r.varint()
	if !ok || delta == 0 && !first {
		r.more = false
		return false
	}
	distance, ok := r.varint()
	if !ok {
		r.more = false
		return false
	}
	r.run.start = r.run.end
	r.run.value += int32(-(delta & 1) ^ delta>>1)
	r.run.end += uint64(distance) * r.f.table.quantum
	if distance == 0 && !first || r.run.end < r.run.start {
		r.more, r.err = false, fmt.Errorf("%w: table of %s", ErrMalformed, r.f.Name)
	}
	return r.more
}

// varint reads a number in at most five bytes. The result is false if the table is damaged.
func (r *runs) varint() (uint32, bool) {
	var v uint32
	for shift := 0; shift < 35; shift += 7 {
		if len(r.buf) == 0 {
			t := r.f.table
			if r.at >= min(t.size, r.stop) {
				break
			}
			n := min(t.size-r.at, 256)
			if r.buf, r.err = t.bytes(r.at, n); r.err != nil {
				return 0, false
			}
			r.at += n
		}
		b := r.buf[0]
		r.buf = r.buf[1:]
		v |= uint32(b&0x7f) << shift
		if b&0x80 == 0 {
			return v, true
		}
	}
	r.err = fmt.Errorf("%w: table of %s", ErrMalformed, r.f.Name)
	return 0, false
}

// value returns the run of a table that contains an address. The error is ErrNotCovered if there is no such run or no
// table, or ErrMalformed.
func (f *Function) value(off uint32, addr uint64) (run, error) {
	r := f.runs(off)
	for r.next() {
		if addr >= r.run.start && addr < r.run.end {
			return r.run, nil
		}
	}
	if r.err != nil {
		return run{}, r.err
	}
	return run{}, fmt.Errorf("%w: %#x", ErrNotCovered, addr)
}
