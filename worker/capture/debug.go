package capture

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
func (m *module) debugOptions() []debugfile.Options {
	own := debugfile.Options{Folders: m.shared.folders, Open: openDebugFile}
	if m.root == "" {
		return []debugfile.Options{own}
	}
	theirs := own
	theirs.Root = m.root
	return []debugfile.Options{theirs, own}
}

// findDebugFile finds the separate debug file, and what is to be told about
// those that were found and not used.
func (m *module) findDebugFile() (debugfile.Result, debugfile.Options, bool) {
	for _, o := range m.debugOptions() {
		r, err := debugfile.Find(m.image, m.path, o)
		if err == nil {
			m.tell(r.Skipped...)
			return r, o, true
		}
		if errors.Is(err, debugfile.ErrMismatch) {
			m.tell(err)
		}
	}
	return debugfile.Result{}, debugfile.Options{}, false
}

// tell reports what keeps names or lines of this module from being found.
func (m *module) tell(errs ...error) {
	for _, err := range errs {
		m.shared.tell(fmt.Errorf("%s: %w", m.name, err))
	}
}

// symbolTable returns the symbols of the image and of its separate debug file;
// false if they have not been read by the deadline. Only when they are there
// is it known where the debugging information is.
func (m *module) symbolTable(late *deadline) (*symbol.Table, bool) {
	if t, ok := m.symbols.now(); ok {
		return t, true
	}
	return m.symbols.get(late, m.tell, m.readSymbols)
}

func (m *module) readSymbols() *symbol.Table {
	tables := []*elfimage.Image{m.image}
	debug, options, ok := m.findDebugFile()
	if ok {
		tables = append(tables, debug.Image)
	}
	m.stripped = m.image.SymbolCount(".symtab") == 0 && !ok
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
		m.lines.open(m, debug.Image, debug.Path, options)
		kept = true // the file stays open
	case hasLines(m.image):
		m.lines.open(m, m.image, m.path, m.debugOptions()[0])
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
func (m *module) useFetched(tables []*elfimage.Image) *symbol.Table {
	fetched, ok := m.fetched()
	if !ok {
		return nil
	}
	m.stripped = false
	kept := hasLines(fetched.Image)
	if kept {
		m.lines.open(m, fetched.Image, fetched.Path, debugfile.Options{Folders: m.shared.folders, Open: openDebugFile})
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
func (m *module) debugFrame() cfi.Section {
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
