package golang

import (
	"fmt"
	"sort"
)

// Frames returns the calls at an address, innermost first. The last Frame is the function itself. The error is
// ErrNotCovered or ErrMalformed. With ErrMalformed, Frames may still return the function itself, without a line. An
// unknown line is 0.
func (t *Table) Frames(addr uint64) ([]Frame, error) {
	f, err := t.Find(addr)
	if err != nil {
		return nil, err
	}
	own := Frame{Function: f.Name, Entry: f.Entry, Start: f.Entry}
	in := f.inlines()
	calls, at, err := in.calls(addr)
	if err != nil {
		return []Frame{own}, err
	}
	starts, err := in.starts(addr, calls)
	if err != nil {
		return []Frame{own}, err
	}
	frames := make([]Frame, 0, 1+len(calls))
	for i, c := range calls {
		frame := Frame{Function: c.name, Inlined: true, Start: starts[i]}
		if frame.File, frame.Line, err = f.line(c.at); err != nil {
			return []Frame{own}, err
		}
		frames = append(frames, frame)
	}
	own.File, own.Line, err = f.line(at)
	return append(frames, own), err
}

// line returns the file and line of an address; "" and 0 if they are unknown.
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

// inlines is the table of a function's inlined calls. It decodes each piece of code (run) once, and only as far as
// needed.
type inlines struct {
	f     *Function
	table runs
	runs  []run // the runs decoded so far, without gaps
}

// inlines returns the function's table of inlined calls, before anything is decoded.
func (f *Function) inlines() *inlines { return &inlines{f: f, table: f.runs(f.inline)} }

// find returns the index in n.runs of the piece of code that contains an address, or -1 if the table does not contain
// the address.
func (n *inlines) find(addr uint64) (int, error) {
	for (len(n.runs) == 0 || n.runs[len(n.runs)-1].end <= addr) && n.table.next() {
		if len(n.runs) == maxRuns {
			n.table.more, n.table.err = false, fmt.Errorf("%w: inlined calls of %s", ErrMalformed, n.f.Name)
			break
		}
		n.runs = append(n.runs, n.table.run)
	}
	i := sort.Search(len(n.runs), func(i int) bool { return n.runs[i].end > addr })
	if i == len(n.runs) {
		return -1, n.table.err
	}
	if addr < n.runs[i].start {
		return -1, nil
	}
	return i, nil
}

// at returns the index in the inline tree of the innermost call inlined at an address; -1: none.
func (n *inlines) at(addr uint64) (int32, error) {
	i, err := n.find(addr)
	if err != nil || i < 0 {
		return -1, err
	}
	return n.runs[i].value, nil
}

// call is an inlined call.
type call struct {
	index int32 // in the inline tree
	name  string
	// at is an address whose line is the current line in the call.
	at uint64
}

// calls returns the inlined calls at an address, innermost first. at is an address whose line is the function's current
// line: the line of the outermost call.
func (n *inlines) calls(addr uint64) (calls []call, at uint64, err error) {
	at = addr
	for range maxInlined {
		index, err := n.at(at)
		if err != nil || index < 0 {
			return calls, at, err
		}
		name, parent, err := n.f.call(index)
		if err != nil {
			return nil, 0, err
		}
		calls = append(calls, call{index: index, name: name, at: at})
		at = parent
	}
	return nil, 0, fmt.Errorf("%w: %s inlines without end", ErrMalformed, n.f.Name)
}

// starts returns, for each inlined call at an address, the start of the piece of code that belongs to the call and
// contains the address. The piece includes the calls that are inlined into this call. So an outer call's piece contains
// the pieces of inner calls, and one pass backwards from the address finds all starts.
func (n *inlines) starts(addr uint64, calls []call) ([]uint64, error) {
	i, err := n.find(addr)
	if err != nil || i < 0 || len(calls) == 0 {
		return nil, err
	}
	levels := n.levels(calls)
	starts := make([]uint64, len(calls))
	for level := range calls {
		for ; i > 0; i-- {
			inside, err := levels.of(n.runs[i-1].value)
			if err != nil {
				return nil, err
			}
			if inside > level {
				break
			}
		}
		starts[level] = n.runs[i].start
	}
	return starts, nil
}

// levels finds out which of the inlined calls at an address contain another inlined call of the function.
type levels struct {
	inlines *inlines
	known   map[int32]int
	none    int
}

// levels makes a levels for the inlined calls at an address. The list calls is innermost first.
func (n *inlines) levels(calls []call) levels {
	l := levels{inlines: n, known: make(map[int32]int, 2*len(calls)), none: len(calls)}
	for i, c := range calls {
		l.known[c.index] = i
	}
	return l
}

// of looks up the call with the number index in the inline tree. If this call is in the list that the method levels
// got, of returns its position in the list. Otherwise it returns the position of the innermost call in the list into
// which this call is inlined, or l.none if there is no such call. It reads each entry of the inline tree once.
func (l levels) of(index int32) (int, error) {
	var path []int32
	level := l.none
	for index >= 0 {
		if known, ok := l.known[index]; ok {
			level = known
			break
		}
		l.known[index] = l.none // ends a cycle in a damaged tree
		path = append(path, index)
		_, parent, err := l.inlines.f.entry(index)
		if err != nil {
			return 0, err
		}
		if index, err = l.inlines.at(parent); err != nil {
			return 0, err
		}
	}
	for _, index := range path {
		l.known[index] = level
	}
	return level, nil
}

// entry reads an entry of the inline tree (inlinedCall in package runtime). name is the offset of the inlined
// function's name among the names. parent is the address of an instruction whose line is the line of the call.
func (f *Function) entry(index int32) (name uint32, parent uint64, err error) {
	t := f.table
	size, nameAt, parentAt := uint64(16), 4, 8
	if t.format < go120 {
		size, nameAt, parentAt = 20, 12, 16
	}
	if f.tree == 0 {
		return 0, 0, fmt.Errorf("%w: %s has no inline tree", ErrMalformed, f.Name)
	}
	p, err := t.src.Bytes(f.tree+uint64(uint32(index))*size, size)
	if err != nil || uint64(len(p)) < size {
		return 0, 0, fmt.Errorf("%w: inline tree of %s", ErrMalformed, f.Name)
	}
	parent = f.Entry + uint64(t.order.Uint32(p[parentAt:]))
	if parent >= f.End {
		return 0, 0, fmt.Errorf("%w: inline tree of %s", ErrMalformed, f.Name)
	}
	return t.order.Uint32(p[nameAt:]), parent, nil
}

// call is like entry, but returns the name itself, not the name's offset.
func (f *Function) call(index int32) (name string, parent uint64, err error) {
	off, parent, err := f.entry(index)
	if err != nil {
		return "", 0, err
	}
	name, err = f.table.str(f.table.names + uint64(off))
	if err == nil && name == "" {
		err = fmt.Errorf("%w: inline tree of %s", ErrMalformed, f.Name)
	}
	return name, parent, err
}
