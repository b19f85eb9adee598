package symbolize

import (
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host"
)

// derivedNames returns the names and notes that are derived from the code of a stripped image, or nil if there are
// none. The first call starts a goroutine that scans the code. With Config.AwaitNames callers wait for the scan until
// their deadline. Otherwise known is false until the scan has ended.
func (m *Module) derivedNames(late *Deadline) (names *selfnames.Names, known bool) {
	if !m.stripped {
		return nil, true
	}
	if names, known = m.derived.ifReady(); known {
		return names, true
	}
	if m.Sources.AwaitNames {
		return m.derived.Get(late, m.Warn, m.deriveNames)
	}
	m.derived.start(m.Warn, m.deriveNames)
	return nil, false
}

// deriveNames returns the names that an earlier run has kept, or scans the code of an image. A scan takes some 60 ms of
// processor time for a server, and only one image is scanned at a time.
func (m *Module) deriveNames() *selfnames.Names {
	m.Sources.deriving.Lock()
	defer m.Sources.deriving.Unlock()
	host.BeginWork()
	defer host.EndWork()
	if !selfnames.Concerns(m.Image) {
		return nil // not an image of PostgreSQL
	}
	if names, ok := m.keptNames(m.Sources.keptFolder()); ok {
		return names
	}
	table, _ := m.Table(nil)
	symbols, _ := m.SymbolTable(nil)
	names, err := selfnames.Derive(m.Image, table, symbols, selfnames.Builtin())
	if err != nil {
		return nil // a damaged image: only its symbols are used
	}
	return names
}

// nameByCode names a frame without a symbol by the name or the note derived from the image's code. It returns false if
// the scan for names has not ended yet.
func (m *Module) nameByCode(own *annotation, p *place, late *Deadline) bool {
	if p.end == 0 {
		return true
	}
	names, known := m.derivedNames(late)
	fact, ok := names.At(p.start)
	switch {
	case ok && fact.Name != "":
		own.function, own.base, own.derived = symbol.Demangle(fact.Name), p.start, true
	case ok && fact.Part != 0:
		if name := m.entryName(p, names, fact.Part); name != "" {
			own.note = "part of " + symbol.Demangle(name)
		}
	case ok:
		own.note = fact.Note
	default:
		own.note = m.neighbourhood(p)
	}
	return known
}

// entryName returns the name of the function that begins at entry: from its symbol, or else the derived name.
func (m *Module) entryName(p *place, names *selfnames.Names, entry uint64) string {
	if p.symbols != nil {
		if s, ok := p.symbols.Lookup(entry, entry, 0); ok && s.Addr == entry {
			return s.Name
		}
	}
	fact, _ := names.At(entry)
	return fact.Name
}
