package symbolize

import (
	"sync"

	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// ReadAhead starts to read the symbols and the lines for an image address, in goroutines of their own.
func (m *Module) ReadAhead(addr uint64) {
	m.Lines.QueueLookup(addr)
	read := func() {
		m.Symbols.start(m.Warn, func() *symbol.Table {
			host.BeginWork()
			defer host.EndWork()
			return m.readSymbols()
		})
	}
	if m.Sources.Kept == nil {
		read()
		return
	}
	m.kept.start(m.Warn, func() *keptFrames {
		kept := m.readKept()
		if kept.find(addr) == nil {
			read()
		}
		return kept
	})
	if kept, ok := m.kept.ifReady(); ok && kept.find(addr) == nil {
		read()
	}
}

// place is an image address with what the image says about the address.
type place struct {
	addr uint64
	// start and end are the limits of the FDE that covers the address. If no FDE covers it, end is 0.
	start, end uint64
	trampoline bool          // the FDE says that this is a signal trampoline
	symbols    *symbol.Table // nil if the image has no symbols
	symbol     symbol.Symbol
	named      bool
}

// maxAnnotations bounds the addresses of one module whose names are cached. A server's stacks have some hundreds of
// different addresses.
const maxAnnotations = 2048

// annotation has the parts of a frame that are the same in every process.
type annotation struct {
	function, file, note string
	base                 uint64 // image address from which the frame's offset is measured
	line                 int
	inlined, derived     bool
}

// annotations caches the names of a module's addresses, so that a repeated capture looks up none of them again.
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

// AppendFrames appends the calls inlined at addr and then the frame out, whose module and offset the caller has set.
// All of them have the frame's address.
func (m *Module) AppendFrames(
	dst []backtrace.Frame, out *backtrace.Frame, addr uint64, files, late *Deadline,
) []backtrace.Frame {
	known := m.known.find(addr)
	if known == nil {
		known = m.keptAt(addr, files)
	}
	if known == nil {
		var final bool
		if known, final = m.annotate(addr, files, late); final {
			m.known.keep(addr, known)
			if kept, _ := m.kept.ifReady(); kept != nil {
				kept.add()
			}
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

// annotate returns the calls that are inlined at an image address, and last the function that contains them. final is
// false if a part was not read by its deadline: files is the deadline for symbols, late the deadline for lines.
func (m *Module) annotate(addr uint64, files, late *Deadline) (known []annotation, final bool) {
	p, ok := m.locate(addr, files)
	if !ok {
		return []annotation{{note: SymbolsUnread}}, false
	}
	// A C library's trampoline is assembly code, and no unit of the debugging information describes it. A lookup
	// would read every unit to find that out.
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
			in.base = 0 // the compiler made this function as a part of another function
		}
		known = append(known, in)
	}
	switch {
	case p.named:
		// The linker's name is more exact than the source's: it distinguishes a function from its clones and parts.
		own.function, own.base = symbol.Demangle(p.symbol.Name), p.symbol.Addr
	case own.function == "" && own.note == "":
		final = m.nameByCode(&own, &p, late) && final
	}
	return append(known, own), final
}

// SymbolsUnread is the note on a frame whose name will be known once the symbols have been read.
const SymbolsUnread = "its symbols are being read"

// locate finds the symbol of an image address. It returns false if symbols or call frame information were not read by
// the deadline. A symbol is used only if the address lies inside the symbol's size and the symbol inside the FDE that
// covers the address. The nearest symbol without these conditions would give a wrong name.
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

// FunctionAt returns the demangled name and the start of the function at an image address, from its symbol.
func (m *Module) FunctionAt(addr uint64, files *Deadline) (string, uint64, bool) {
	p, _ := m.locate(addr, files)
	return symbol.Demangle(p.symbol.Name), p.symbol.Addr, p.named
}

// nameByLines names a frame without a symbol by the debugging information. If a function has several parts, only the
// part with its entry gets the name and an offset. Another part gets a note.
func (m *Module) nameByLines(own *annotation, p *place, c *dwarf.Frame) {
	switch {
	case p.named || c.Function == "":
	case c.Entry == c.Start && (p.end == 0 || c.Entry >= p.start && c.Entry < p.end):
		own.function, own.base = symbol.Demangle(c.Function), c.Entry
	default:
		own.note = "part of " + symbol.Demangle(c.Function)
	}
}

// neighbourhood returns a note for a function without a name: the named functions before and after it. The function
// must have call frame information, and the image must have no full symbol table.
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
