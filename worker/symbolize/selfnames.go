package symbolize

import (
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host/gomaxprocs"
)

// derivedNames returns the names and notes that follow from the code of a stripped image, nil if there are none. The
// first call starts a goroutine that scans the code. An answer waits for it only with Config.AwaitNames.
func (m *Module) derivedNames(late *Deadline) (names *selfnames.Names, known bool) {
	if !m.stripped {
		return nil, true
	}
	if names, known = m.derived.now(); known {
		return names, true
	}
	if m.Sources.AwaitNames {
		return m.derived.Get(late, m.Tell, m.deriveNames)
	}
	m.derived.start(m.Tell, m.deriveNames)
	return nil, false
}

// deriveNames goes through the code of one image at a time: it takes some 60 ms of processor time for a server.
func (m *Module) deriveNames() *selfnames.Names {
	m.Sources.deriving.Lock()
	defer m.Sources.deriving.Unlock()
	gomaxprocs.Begin()
	defer gomaxprocs.End()
	table, _ := m.Table(nil)
	symbols, _ := m.SymbolTable(nil)
	names, err := selfnames.Derive(m.Image, table, symbols, selfnames.Builtin())
	if err != nil {
		return nil // no image of PostgreSQL, or a damaged one: its symbols are all there is
	}
	return names
}

// nameByCode gives a frame that no symbol names the name or the note that the image's own code has for it. It reports
// whether that is known yet.
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

// entryName returns the name of the function with an entry: its symbol's, else the derived one.
func (m *Module) entryName(p *place, names *selfnames.Names, entry uint64) string {
	if p.symbols != nil {
		if s, ok := p.symbols.Lookup(entry, entry, 0); ok && s.Addr == entry {
			return s.Name
		}
	}
	fact, _ := names.At(entry)
	return fact.Name
}
