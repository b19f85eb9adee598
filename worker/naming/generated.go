package naming

import (
	"cmp"
	"slices"
	"sort"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// A process compiles code for a query and frees it afterwards. So a description of generated code (its call frame
// information and names) is used only if it was copied at the same moment as the stack. After the stop, the worker
// finds out only where the live process keeps the description. It then captures the process again and copies the
// description in the same stop. A core file and a sleeping process need no second capture.

const (
	// GeneratedModule is the module of frames in generated code.
	GeneratedModule = "[jit]"
	maxUnknown      = 32        // addresses that one walk looks up
	maxDescribing   = 384 << 10 // bytes that are copied in a stop
	maxPieces       = 200       // the limit of package ptrace is 256
	maxObjects      = 128       // objects of a process that are read, from the head of its list
)

// JITProcess has the facts about a process that the search for generated code needs.
type JITProcess struct {
	Arch *arch.Arch
	Maps []process.Mapping
	// Descriptors returns the addresses of the variables of GDB's JIT interface at which lists of objects begin.
	Descriptors func() []uint64
}

// mapping returns the index of the mapping that contains addr, or -1.
func (p *JITProcess) mapping(addr uint64) int { return process.IndexOf(p.Maps, addr) }

// JITCode has the descriptions of generated code that are of the same moment as a stack.
type JITCode struct {
	images []image
	// Unknown has the addresses in anonymous memory that no description covers.
	Unknown []uint64
	// SameMoment reads memory of the same moment as the stack. If it is nil, only the memory that the stop copied is of
	// that moment.
	SameMoment symbolize.MemoryReader
	// Disabled is set if no memory is certain to be of that moment. TableAt then returns nil for all addresses.
	Disabled bool
}

// image describes the code of one object that was registered with debuggers, or of one .eh_frame section.
type image struct {
	object *symbol.JITObject // nil: not registered
	table  *cfi.Table        // nil: no call frame information
}

// JITLocations has the addresses at which a process keeps the descriptions of its generated code. Pieces are the memory
// ranges that a stop copies for them.
type JITLocations struct {
	descriptors []uint64         // addresses of variables of GDB's JIT interface
	Frames      []symbol.JITSpan // limits of .eh_frame sections
	Pieces      []snapshot.Range
}

// Add adds the results of another search, o. It returns false if o has no new memory to copy.
func (w *JITLocations) Add(o *JITLocations) bool {
	before := len(w.Pieces)
	for _, d := range o.descriptors {
		if !slices.Contains(w.descriptors, d) {
			w.descriptors = append(w.descriptors, d)
		}
	}
	for _, f := range o.Frames {
		if !slices.Contains(w.Frames, f) {
			w.Frames = append(w.Frames, f)
		}
	}
	for _, p := range o.Pieces {
		if !slices.Contains(w.Pieces, p) {
			w.Pieces = append(w.Pieces, p)
		}
	}
	return len(w.Pieces) > before
}

// TableAt returns the call frame information for an address in a mapping without a file, or nil if there is none.
func (g *JITCode) TableAt(p *JITProcess, code *process.Mapping, addr uint64) *cfi.Table {
	if code.Inode != 0 || code.Path != "" || g.Disabled {
		return nil
	}
	if i := g.find(addr); i != nil {
		return i.table
	}
	if slices.Contains(g.Unknown, addr) || len(g.Unknown) >= maxUnknown {
		return nil
	}
	g.Unknown = append(g.Unknown, addr)
	if g.SameMoment == nil {
		return nil
	}
	g.AddFrom(p.Locate(g.SameMoment, g.Unknown[len(g.Unknown)-1:]), g.SameMoment, p.Arch)
	if i := g.find(addr); i != nil {
		return i.table
	}
	return nil
}

// find returns the description of the code at an address, or nil.
func (g *JITCode) find(addr uint64) *image {
	for i := range g.images {
		m := &g.images[i]
		if m.object != nil && m.object.Holds(addr) {
			return m
		}
		if m.object == nil {
			if _, err := m.table.Find(addr); err == nil {
				return m
			}
		}
	}
	return nil
}

// Name names a frame in generated code.
func (g *JITCode) Name(out *backtrace.Frame, addr uint64) {
	m := g.find(addr)
	if m == nil {
		return
	}
	out.Module = GeneratedModule
	if f, ok := m.function(addr); ok {
		out.Function, out.Offset = symbol.Demangle(f.Name), out.Address-f.Start
	}
}

// function returns the function at an address in generated code. If call frame information covers the address, the
// function must begin inside its FDE.
func (m *image) function(addr uint64) (symbol.JITFunction, bool) {
	if m.object == nil {
		return symbol.JITFunction{}, false
	}
	f, ok := m.object.Function(addr)
	if !ok || m.table == nil {
		return f, ok
	}
	fde, err := m.table.Find(addr)
	return f, err != nil || fde.Start <= f.Start && f.Start < fde.End
}

// AddFrom reads descriptions of generated code. The memory must be of the same moment as the stack.
func (g *JITCode) AddFrom(w *JITLocations, memory symbolize.MemoryReader, a *arch.Arch) {
	for _, d := range w.descriptors {
		entries, _ := symbol.JITEntries(memory.Exactly, a.Order, d) // after an error, JITEntries returns the entries before it
		for _, e := range entries[:min(len(entries), maxObjects)] {
			o, err := symbol.OpenJIT(memory.Exactly, e, a.Machine)
			if err == nil && len(o.Code) > 0 {
				g.images = append(g.images, image{object: o, table: framesAt(a, memory, o.Frames)})
			}
		}
	}
	for _, f := range w.Frames {
		if t := framesAt(a, memory, f); t != nil {
			g.images = append(g.images, image{table: t})
		}
	}
}

// framesAt reads an .eh_frame section. It returns nil if the section cannot be read or decoded.
func framesAt(a *arch.Arch, memory symbolize.MemoryReader, at symbol.JITSpan) *cfi.Table {
	if at.Start >= at.End || at.End-at.Start > maxSearched {
		return nil
	}
	data := make([]byte, at.End-at.Start)
	if !memory.Exactly(at.Start, data) {
		return nil
	}
	return frameTable(a, at.Start, data)
}

func frameTable(a *arch.Arch, addr uint64, data []byte) *cfi.Table {
	t, err := cfi.New(cfi.Sections{
		EHFrame: cfi.Section{Addr: addr, Data: data}, Order: a.Order, AddrSize: a.AddrSize, Arch: a,
	})
	if err != nil {
		return nil
	}
	return t
}

// Locate finds the descriptions of the code at the addresses: first in objects that are registered with debuggers. For
// the other addresses it searches .eh_frame sections near the code.
func (p *JITProcess) Locate(memory symbolize.MemoryReader, addrs []uint64) *JITLocations {
	w := &JITLocations{}
	left := slices.Clone(addrs)
	for _, d := range p.Descriptors() {
		r := recorder{read: memory}
		entries, _ := symbol.JITEntries(r.memory, p.Arch.Order, d)
		if len(entries) == 0 {
			continue
		}
		w.descriptors = append(w.descriptors, d)
		w.Pieces = append(w.Pieces, r.pieces...)
		for _, e := range entries[:min(len(entries), maxObjects)] {
			left = slices.DeleteFunc(left, p.registered(w, memory, e))
		}
	}
	for _, addr := range left {
		i := p.mapping(addr)
		if i < 0 || slices.ContainsFunc(w.Frames, func(f symbol.JITSpan) bool { return p.describes(memory, f, addr) }) {
			continue
		}
		if f, ok := p.searchFrames(memory, i, addr); ok {
			w.Frames = append(w.Frames, f)
			w.Pieces = append(w.Pieces, snapshot.Range{Address: f.Start, Length: int(f.End - f.Start)})
		}
	}
	w.Pieces = MergeRanges(w.Pieces)
	return w
}

// registered adds the memory ranges of an entry's object to w, within the limits of a stop. It returns a function that
// reports whether an address belongs to the object.
func (p *JITProcess) registered(w *JITLocations, memory symbolize.MemoryReader, e symbol.JITEntry) func(uint64) bool {
	r := recorder{read: memory}
	o, err := symbol.OpenJIT(r.memory, e, p.Arch.Machine)
	if err != nil || len(o.Code) == 0 {
		return func(uint64) bool { return false }
	}
	if n := o.Frames.End - o.Frames.Start; n > 0 {
		r.pieces = append(r.pieces, snapshot.Range{Address: o.Frames.Start, Length: int(n)})
	}
	if all := MergeRanges(append(r.pieces, w.Pieces...)); size(all) <= maxDescribing && len(all) <= maxPieces {
		w.Pieces = all
	}
	return o.Holds
}

// recorder records the ranges that were read.
type recorder struct {
	read   symbolize.MemoryReader
	pieces []snapshot.Range
}

func (r *recorder) memory(addr uint64, p []byte) bool {
	if !r.read.Exactly(addr, p) {
		return false
	}
	r.pieces = append(r.pieces, snapshot.Range{Address: addr, Length: len(p)})
	return true
}

// MergeRanges sorts ranges by address, and joins ranges with a gap of at most 256 bytes.
func MergeRanges(pieces []snapshot.Range) []snapshot.Range {
	const near = 256
	sort.Slice(pieces, func(i, j int) bool {
		a, b := pieces[i], pieces[j]
		return cmp.Compare(a.Address, b.Address) < 0
	})
	out := make([]snapshot.Range, 0, len(pieces))
	for _, p := range pieces {
		if last := len(out) - 1; last >= 0 && p.Address <= out[last].Address+uint64(out[last].Length)+near {
			end := max(p.Address+uint64(p.Length), out[last].Address+uint64(out[last].Length))
			out[last].Length = int(end - out[last].Address)
			continue
		}
		out = append(out, p)
	}
	return out
}

func size(pieces []snapshot.Range) (n int) {
	for _, p := range pieces {
		n += p.Length
	}
	return n
}
