package symbolize

import (
	"sync"

	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host/gomaxprocs"
	"pg_stat_backtrace/worker/trace"
)

// ReadAhead has what names an image address read by somebody else.
func (m *Module) ReadAhead(addr uint64) {
	m.Lines.QueueLookup(addr)
	m.Symbols.start(m.Tell, func() *symbol.Table {
		gomaxprocs.Begin()
		defer gomaxprocs.End()
		return m.readSymbols()
	})
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

// AppendFrames appends the frame out, whose module and offset are set, behind
// the calls inlined at addr. All have the address of the frame.
func (m *Module) AppendFrames(
	dst []trace.Frame, out *trace.Frame, addr uint64, files, late *Deadline,
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
func (m *Module) annotate(addr uint64, files, late *Deadline) (known []annotation, final bool) {
	p, ok := m.locate(addr, files)
	if !ok {
		return []annotation{{note: SymbolsUnread}}, false
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

// SymbolsUnread is the note on a frame whose name is not known for a reason that time mends.
const SymbolsUnread = "its symbols are being read"

// locate finds the symbol of an image address; false if what that takes has
// not been read by the deadline. It counts only inside its own size and inside
// the FDE that covers the address: anything else would be the nearest symbol's
// name, which is a wrong one.
func (m *Module) locate(addr uint64, files *Deadline) (p place, ok bool) {
	p.addr = addr
	table, ok1 := m.Table(files)
	symbols, ok2 := m.SymbolTable(files)
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

// FunctionAt returns the demangled name and the start of the function at an
// image address, as its symbol has them.
func (m *Module) FunctionAt(addr uint64, files *Deadline) (string, uint64, bool) {
	p, _ := m.locate(addr, files)
	return symbol.Demangle(p.symbol.Name), p.symbol.Addr, p.named
}

// nameByLines gives a frame that no symbol names the name that the debugging
// information has for it. Of a function in several parts, only the one that
// begins with its entry has an offset from there; another part is a note.
func (m *Module) nameByLines(own *annotation, p *place, c *dwarf.Frame) {
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
func (m *Module) neighbourhood(p *place) string {
	if p.end == 0 || !m.stripped || p.symbols == nil {
		return ""
	}
	before, after, ok := p.symbols.Neighbours(p.start, p.end)
	if !ok || !m.Image.SameSection(before.Addr, p.start) || !m.Image.SameSection(p.start, after.Addr) {
		return ""
	}
	return "static, between " + symbol.Demangle(before.Name) + " and " + symbol.Demangle(after.Name)
}
