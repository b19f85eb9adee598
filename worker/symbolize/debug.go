package symbolize

import (
	"errors"
	"fmt"
	"os"

	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/debugfile"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// debugOptions say where separate debug files are looked for: below the root
// directory of the process and, where that is another one, below this
// process's too. A file is proved by its build-id, wherever it lies.
func (m *Module) debugOptions() []debugfile.Options {
	own := debugfile.Options{Folders: m.Sources.Folders, Open: openDebugFile}
	if m.Root == "" {
		return []debugfile.Options{own}
	}
	theirs := own
	theirs.Root = m.Root
	return []debugfile.Options{theirs, own}
}

// findDebugFile finds the separate debug file, and what is to be told about
// those that were found and not used.
func (m *Module) findDebugFile() (debugfile.Result, debugfile.Options, bool) {
	for _, o := range m.debugOptions() {
		r, err := debugfile.Find(m.Image, m.Path, o)
		if err == nil {
			m.Tell(r.Skipped...)
			return r, o, true
		}
		if errors.Is(err, debugfile.ErrMismatch) {
			m.Tell(err)
		}
	}
	return debugfile.Result{}, debugfile.Options{}, false
}

// Tell reports what keeps names or lines of this module from being found.
func (m *Module) Tell(errs ...error) {
	for _, err := range errs {
		m.Sources.Tell(fmt.Errorf("%s: %w", m.Name, err))
	}
}

// SymbolTable returns the symbols of the image and of its separate debug file;
// false if they have not been read by the deadline. Only when they are there
// is it known where the debugging information is.
func (m *Module) SymbolTable(late *Deadline) (*symbol.Table, bool) {
	if t, ok := m.Symbols.now(); ok {
		return t, true
	}
	return m.Symbols.Get(late, m.Tell, m.readSymbols)
}

func (m *Module) readSymbols() *symbol.Table {
	tables := []*elfimage.Image{m.Image}
	debug, options, ok := m.findDebugFile()
	if ok {
		tables = append(tables, debug.Image)
	}
	m.stripped = m.Image.SymbolCount(".symtab") == 0 && !ok
	if !ok || debug.How == debugfile.ByDebugData {
		if fetched := m.useFetched(tables); fetched != nil {
			if ok {
				_ = debug.Close()
			}
			return fetched
		}
	}
	kept := false
	switch { // first, for lines take longer
	case ok && hasLines(debug.Image):
		m.Lines.open(m, debug.Image, debug.Path, options)
		kept = true // the file stays open
	case hasLines(m.Image):
		m.Lines.open(m, m.Image, m.Path, m.debugOptions()[0])
	}
	// What could be read of a damaged table comes beside the error.
	symbols, _ := symbol.NewTable(tables...)
	if ok && !kept {
		_ = debug.Close()
	}
	return symbols
}

// useFetched takes symbols and lines from a debug file that was fetched, if
// there is one, beside the symbols of the images given; nil if there is none.
func (m *Module) useFetched(tables []*elfimage.Image) *symbol.Table {
	fetched, ok := m.fetched()
	if !ok {
		return nil
	}
	m.stripped = false
	kept := hasLines(fetched.Image)
	if kept {
		m.Lines.open(m, fetched.Image, fetched.Path, debugfile.Options{Folders: m.Sources.Folders, Open: openDebugFile})
	}
	symbols, _ := symbol.NewTable(append(tables, fetched.Image)...)
	if !kept {
		_ = fetched.Close()
	}
	return symbols
}

// hasLines reports whether an image has debugging information.
func hasLines(m *elfimage.Image) bool {
	return m.HasSection(".debug_info")
}

// debugFrame returns .debug_frame of the separate debug file, for an image
// that has no call frame information of its own.
func (m *Module) debugFrame() cfi.Section {
	debug, _, ok := m.findDebugFile()
	if !ok {
		return cfi.Section{}
	}
	defer func() { _ = debug.Close() }()
	s, _ := debug.Image.CFISections() // an unreadable part is an absent one
	return cfi.Section(s.DebugFrame)
}

// spill makes a file for what a compressed section expands to. It has no name
// any more, and goes when it is closed.
func spill() (*os.File, error) {
	f, err := os.CreateTemp("", "pg_stat_backtrace-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
