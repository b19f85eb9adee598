package capture

import (
	"runtime"
	"sync"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host/gomaxprocs"
	"pg_stat_backtrace/worker/trace"
)

// maxLines is the bound on the frames of a thread, inlined calls included.
func maxLines(o Options) int {
	if o.MaxFrames > 0 {
		return o.MaxFrames
	}
	return unwind.DefaultMaxFrames
}

// name turns the walk's frames into a trace's, at most limit: inlined calls
// are frames too, as they are in gdb. It reports whether some were left out.
// Source lines that are not there by the deadline are missing.
func (sp *space) name(frames []unwind.Frame, limit int, late *deadline) (out []trace.Frame, cut bool) {
	out = make([]trace.Frame, 0, len(frames))
	if len(frames) > 0 {
		sp.prefetchInnermost(frames[0].Lookup()) // of a core file and of a goroutine nobody has
	}
	if sp.unfamiliar {
		sp.unfamiliar = false
		sp.prefetch(frames)
	}
	for i := range frames {
		out = sp.nameFrame(out, &frames[i], late)
	}
	if cut = len(out) > limit; cut {
		out = out[:limit]
	}
	for i := range out {
		out[i].Level = i
	}
	return out, cut
}

// prefetchInnermost has what names the innermost frame, by its look-up address, read while the stack is unwound, if
// none in its image has been the innermost one yet: to expand the image's lines may take longer than all the rest.
func (sp *space) prefetchInnermost(addr uint64) {
	_, where, ok := sp.find(addr)
	m := where.module
	if !ok || m == nil || m.prefetched.Load() || m.prefetched.Swap(true) {
		return
	}
	sp.unfamiliar = true
	m.readAhead(addr - where.bias)
	runtime.Gosched() // let it begin: there may be one processor
}

// readAhead has what names an image address read by somebody else.
func (m *module) readAhead(addr uint64) {
	m.lines.queueLookup(addr)
	m.symbols.start(m.tell, func() *symbol.Table {
		gomaxprocs.Begin()
		defer gomaxprocs.End()
		return m.readSymbols()
	})
}

// prefetch reads the symbols of all images that frames are in, while their lines are looked up: both may take their
// time when they are needed for the first time.
func (sp *space) prefetch(frames []unwind.Frame) {
	modules := make([]*module, len(frames))
	for i := range frames {
		_, where, ok := sp.find(frames[i].Lookup())
		if !ok || where.module == nil {
			continue
		}
		modules[i] = where.module
		if !frames[i].Signal {
			modules[i].lines.queueLookup(frames[i].Lookup() - where.bias)
		}
	}
	for _, m := range modules {
		if m == nil {
			continue
		}
		if _, ok := m.symbolTable(sp.files); ok {
			m.lines.startLookups()
		}
	}
}

// nameFrame appends a frame, behind the calls that are inlined there.
func (sp *space) nameFrame(dst []trace.Frame, f *unwind.Frame, late *deadline) []trace.Frame {
	out := trace.Frame{Address: f.PC, Offset: f.PC, Module: "[unmapped]", Note: note(f)}
	m, where, ok := sp.find(f.Lookup())
	if !ok {
		if i := sp.mapping(f.PC); i >= 0 {
			out.Module, out.Offset = moduleName(sp.maps[i].Path), f.PC-sp.maps[i].Start
		}
		return append(dst, out)
	}
	out.Module, out.Offset = moduleName(m.Path), f.PC-m.Start
	mod := where.module
	if mod == nil {
		if m.Inode != 0 {
			// The file's own offset says more than the distance in a mapping.
			out.Offset += m.Offset
		}
		sp.generated.name(&out, f.Lookup())
		if out.Function == "" && m.Inode == 0 {
			sp.namePerf(&out, f.Lookup())
		}
		return append(dst, out)
	}
	out.Module = where.name
	out.BuildID = mod.image.BuildID()
	out.ModuleOffset = f.PC - where.bias
	out.Offset = out.ModuleOffset
	return mod.appendFrames(dst, &out, f.Lookup()-where.bias, sp.files, late)
}

// place is an image address with what the image itself says of it.
type place struct {
	addr uint64
	// start and end are those of the call frame information; end 0: none.
	start, end uint64
	trampoline bool          // it says that this is a signal trampoline
	symbols    *symbol.Table // nil: there are none
	symbol     symbol.Symbol
	named      bool
}

// maxAnnotations bounds the addresses of one module whose names are kept; servers' stacks have some hundreds of
// different ones.
const maxAnnotations = 2048

// annotation is what an image address is called: all of a frame that is the same in every process.
type annotation struct {
	function, file, note string
	base                 uint64 // from which the frame's offset counts, an image address
	line                 int
	inlined, derived     bool
}

// annotations keeps them: of a stack that is captured again, every address is known.
type annotations struct {
	mu     sync.Mutex
	byAddr map[uint64][]annotation
}

func (a *annotations) find(addr uint64) []annotation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byAddr[addr]
}

func (a *annotations) keep(addr uint64, known []annotation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byAddr == nil || len(a.byAddr) >= maxAnnotations {
		a.byAddr = make(map[uint64][]annotation)
	}
	a.byAddr[addr] = known
}

// appendFrames appends the frame out, whose module and offset are set, behind
// the calls inlined at addr. All have the address of the frame.
func (m *module) appendFrames(
	dst []trace.Frame, out *trace.Frame, addr uint64, files, late *deadline,
) []trace.Frame {
	known := m.known.find(addr)
	if known == nil {
		var final bool
		if known, final = m.annotate(addr, files, late); final {
			m.known.keep(addr, known)
		}
	}
	for i := range known {
		a := &known[i]
		f := *out
		f.Function, f.File, f.Line, f.Inlined = a.function, a.file, a.line, a.inlined
		f.Derived = a.derived
		f.Offset = out.ModuleOffset - a.base
		switch {
		case a.inlined:
			f.Note = ""
		case f.Note == "":
			f.Note = a.note
		}
		dst = append(dst, f)
	}
	return dst
}

// annotate finds what an image address is called: the calls inlined there, and last the function that they are in. It
// is not final if not all could be found before the deadlines, that for symbols and that for lines.
func (m *module) annotate(addr uint64, files, late *deadline) (known []annotation, final bool) {
	p, ok := m.locate(addr, files)
	if !ok {
		return []annotation{{note: symbolsUnread}}, false
	}
	// A C library's trampoline is assembly that no unit of the debugging information describes: to learn that, all of
	// them would have to be read.
	var calls []dwarf.Frame
	if final = true; !p.trampoline {
		calls, final = m.calls(addr, late)
	}
	var own annotation
	for i := range calls {
		c := &calls[i]
		if !c.Inlined {
			own.file, own.line = c.File, c.Line
			m.nameByLines(&own, &p, c)
			break
		}
		in := annotation{function: symbol.Demangle(c.Function), base: c.Start, file: c.File, line: c.Line, inlined: true}
		if in.function == "" {
			in.base = 0 // the compiler made it, as a part of another
		}
		known = append(known, in)
	}
	switch {
	case p.named:
		// The linker's name says more than the source's: it tells a function
		// from its clones and parts.
		own.function, own.base = symbol.Demangle(p.symbol.Name), p.symbol.Addr
	case own.function == "" && own.note == "":
		final = m.nameByCode(&own, &p, late) && final
	}
	return append(known, own), final
}

// symbolsUnread is the note on a frame whose name is not known for a reason that time mends.
const symbolsUnread = "its symbols are being read"

// locate finds the symbol of an image address; false if what that takes has
// not been read by the deadline. It counts only inside its own size and inside
// the FDE that covers the address: anything else would be the nearest symbol's
// name, which is a wrong one.
func (m *module) locate(addr uint64, files *deadline) (p place, ok bool) {
	p.addr = addr
	table, ok1 := m.table(files)
	symbols, ok2 := m.symbolTable(files)
	if !ok1 || !ok2 {
		return p, false
	}
	if table != nil {
		if fde, err := table.Find(addr); err == nil {
			p.start, p.end, p.trampoline = fde.Start, fde.End, fde.Signal
		}
	}
	if symbols != nil {
		p.symbol, p.named = symbols.Lookup(addr, p.start, p.end)
		p.symbols = symbols
	}
	return p, true
}

// function returns the demangled name and the start of the function at an
// image address, as its symbol has them.
func (m *module) function(addr uint64, files *deadline) (string, uint64, bool) {
	p, _ := m.locate(addr, files)
	return symbol.Demangle(p.symbol.Name), p.symbol.Addr, p.named
}

// nameByLines gives a frame that no symbol names the name that the debugging
// information has for it. Of a function in several parts, only the one that
// begins with its entry has an offset from there; another part is a note.
func (m *module) nameByLines(own *annotation, p *place, c *dwarf.Frame) {
	switch {
	case p.named || c.Function == "":
	case c.Entry == c.Start && (p.end == 0 || c.Entry >= p.start && c.Entry < p.end):
		own.function, own.base = symbol.Demangle(c.Function), c.Entry
	default:
		own.note = "part of " + symbol.Demangle(c.Function)
	}
}

// neighbourhood is a note on a function without a name: which functions that
// have one are before and behind it. It must be known to be a function, and one
// that no symbol table could name.
func (m *module) neighbourhood(p *place) string {
	if p.end == 0 || !m.stripped || p.symbols == nil {
		return ""
	}
	before, after, ok := p.symbols.Neighbours(p.start, p.end)
	if !ok || !m.image.SameSection(before.Addr, p.start) || !m.image.SameSection(p.start, after.Addr) {
		return ""
	}
	return "static, between " + symbol.Demangle(before.Name) + " and " + symbol.Demangle(after.Name)
}

func note(f *unwind.Frame) string {
	switch {
	case f.Signal:
		return "signal handler called"
	case f.Method == unwind.ByFramePointer:
		return "by frame pointer"
	case f.Method == unwind.ByRecovery:
		return "by recovered frame pointer"
	case f.Method == unwind.ByReturnAddress:
		return "caller of a bad address"
	case f.Method == unwind.ByReturnRegister:
		return "by return register"
	case f.Method == unwind.ByInstructions:
		return "by instructions"
	case f.Method == unwind.ByReturnProbe:
		return "past a return probe"
	case f.Method == unwind.ByCall:
		return "by its call"
	default:
		return ""
	}
}
