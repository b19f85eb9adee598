package capture

import (
	"cmp"
	"slices"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/jit"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/trace"
)

// Code that the process has made at run time comes and goes with its queries, so what describes it counts only if it is
// of the same moment as the stack. The live process is asked, after the stop, no more than where that is; the process
// is then captured again, and the pieces are copied in the same stop. A core file, and a process that sleeps, are of
// one moment anyway.

const (
	generatedModule = "[jit]"
	maxUnknown      = 32        // addresses of one walk that are looked for
	maxDescribing   = 384 << 10 // bytes that are copied in a stop
	maxPieces       = 200       // ptrace takes 256
	maxObjects      = 128       // of a process, the newest
)

// jitProcess is what the search for generated code must know of a process.
type jitProcess struct {
	arch *arch.Arch
	maps []procfs.Mapping
	// descriptors returns the addresses of the variables at which lists of registered objects begin.
	descriptors func() []uint64
}

// mapping returns the index of the mapping that holds addr, or -1.
func (p *jitProcess) mapping(addr uint64) int { return procfs.IndexOf(p.maps, addr) }

// generated is what is known of generated code at the moment of a stack.
type generated struct {
	images []generatedImage
	// unknown are addresses in memory without a file that no image covers.
	unknown []uint64
	// steady reads memory that is of the same moment as the stack; nil: there is none but what was copied.
	steady byteReader
	// off is set where it cannot be told what is of that moment: nothing is known then.
	off bool
}

// generatedImage is the code of one object that was registered with debuggers, or of one .eh_frame section.
type generatedImage struct {
	object *jit.Object // nil: it was not registered
	table  *cfi.Table  // nil: no call frame information
}

// whereabouts say where a process keeps what describes its generated code.
type whereabouts struct {
	descriptors []uint64   // of GDB's JIT interface
	frames      []jit.Span // .eh_frame sections
	pieces      []ptrace.Range
}

// add takes over what another look has found; false if that is nothing new.
func (w *whereabouts) add(o *whereabouts) bool {
	before := len(w.pieces)
	for _, d := range o.descriptors {
		if !slices.Contains(w.descriptors, d) {
			w.descriptors = append(w.descriptors, d)
		}
	}
	for _, f := range o.frames {
		if !slices.Contains(w.frames, f) {
			w.frames = append(w.frames, f)
		}
	}
	for _, p := range o.pieces {
		if !slices.Contains(w.pieces, p) {
			w.pieces = append(w.pieces, p)
		}
	}
	return len(w.pieces) > before
}

// generatedTable returns the call frame information that covers an address in a mapping without a file, nil if there is
// none.
func (g *generated) tableAt(p *jitProcess, code *procfs.Mapping, addr uint64) *cfi.Table {
	if code.Inode != 0 || code.Path != "" || g.off {
		return nil
	}
	if i := g.find(addr); i != nil {
		return i.table
	}
	if slices.Contains(g.unknown, addr) || len(g.unknown) >= maxUnknown {
		return nil
	}
	g.unknown = append(g.unknown, addr)
	if g.steady == nil {
		return nil
	}
	g.learn(p.whereabouts(g.steady, g.unknown[len(g.unknown)-1:]), g.steady, p.arch)
	if i := g.find(addr); i != nil {
		return i.table
	}
	return nil
}

// find returns the image that has an address.
func (g *generated) find(addr uint64) *generatedImage {
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

// name names a frame by the image that has the address.
func (g *generated) name(out *trace.Frame, addr uint64) {
	m := g.find(addr)
	if m == nil {
		return
	}
	out.Module = generatedModule
	if f, ok := m.function(addr); ok {
		out.Function, out.Offset = symbol.Demangle(f.Name), out.Address-f.Start
	}
}

// function returns the function of a generated image that has an address; it must begin in what the call frame
// information says of the address.
func (m *generatedImage) function(addr uint64) (jit.Function, bool) {
	if m.object == nil {
		return jit.Function{}, false
	}
	f, ok := m.object.Function(addr)
	if !ok || m.table == nil {
		return f, ok
	}
	fde, err := m.table.Find(addr)
	return f, err != nil || fde.Start <= f.Start && f.Start < fde.End
}

// learn reads what describes generated code. The memory must be of the same moment as the stack.
func (g *generated) learn(w *whereabouts, memory byteReader, a *arch.Arch) {
	for _, d := range w.descriptors {
		entries, _ := jit.Entries(memory.exactly, a.Order, d) // as far as they were copied
		for _, e := range entries[:min(len(entries), maxObjects)] {
			o, err := jit.Open(memory.exactly, e, a.Machine)
			if err == nil && len(o.Code) > 0 {
				g.images = append(g.images, generatedImage{object: o, table: framesAt(a, memory, o.Frames)})
			}
		}
	}
	for _, f := range w.frames {
		if t := framesAt(a, memory, f); t != nil {
			g.images = append(g.images, generatedImage{table: t})
		}
	}
}

// framesAt reads an .eh_frame section, nil if it cannot.
func framesAt(a *arch.Arch, memory byteReader, at jit.Span) *cfi.Table {
	if at.Start >= at.End || at.End-at.Start > maxSearched {
		return nil
	}
	data := make([]byte, at.End-at.Start)
	if !memory.exactly(at.Start, data) {
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

// whereabouts looks for what describes the code at addresses: in what is registered with debuggers, else near it.
func (p *jitProcess) whereabouts(memory byteReader, addrs []uint64) *whereabouts {
	w := &whereabouts{}
	left := slices.Clone(addrs)
	for _, d := range p.descriptors() {
		r := recorder{read: memory}
		entries, _ := jit.Entries(r.memory, p.arch.Order, d)
		if len(entries) == 0 {
			continue
		}
		w.descriptors = append(w.descriptors, d)
		w.pieces = append(w.pieces, r.pieces...)
		for _, e := range entries[:min(len(entries), maxObjects)] {
			left = slices.DeleteFunc(left, p.registered(w, memory, e))
		}
	}
	for _, addr := range left {
		i := p.mapping(addr)
		if i < 0 || slices.ContainsFunc(w.frames, func(f jit.Span) bool { return p.describes(memory, f, addr) }) {
			continue
		}
		if f, ok := p.searchFrames(memory, i, addr); ok {
			w.frames = append(w.frames, f)
			w.pieces = append(w.pieces, ptrace.Range{Address: f.Start, Length: int(f.End - f.Start)})
		}
	}
	w.pieces = merge(w.pieces)
	return w
}

// registered adds the pieces of an entry's object, and tells which addresses are its.
func (p *jitProcess) registered(w *whereabouts, memory byteReader, e jit.Entry) func(uint64) bool {
	r := recorder{read: memory}
	o, err := jit.Open(r.memory, e, p.arch.Machine)
	if err != nil || len(o.Code) == 0 {
		return func(uint64) bool { return false }
	}
	if n := o.Frames.End - o.Frames.Start; n > 0 {
		r.pieces = append(r.pieces, ptrace.Range{Address: o.Frames.Start, Length: int(n)})
	}
	if all := merge(append(r.pieces, w.pieces...)); size(all) <= maxDescribing && len(all) <= maxPieces {
		w.pieces = all
	}
	return o.Holds
}

// recorder remembers what was read.
type recorder struct {
	read   byteReader
	pieces []ptrace.Range
}

func (r *recorder) memory(addr uint64, p []byte) bool {
	if !r.read.exactly(addr, p) {
		return false
	}
	r.pieces = append(r.pieces, ptrace.Range{Address: addr, Length: len(p)})
	return true
}

// merge sorts pieces and joins those that touch, or nearly so.
func merge(pieces []ptrace.Range) []ptrace.Range {
	const near = 256
	slices.SortFunc(pieces, func(a, b ptrace.Range) int { return cmp.Compare(a.Address, b.Address) })
	out := make([]ptrace.Range, 0, len(pieces))
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

func size(pieces []ptrace.Range) (n int) {
	for _, p := range pieces {
		n += p.Length
	}
	return n
}
