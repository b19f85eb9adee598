package symbolize

import (
	"errors"
	"fmt"
	"os"

	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// debugOptions lists the places to search for separate debug files: below the root directory of the process and, if
// that is a different one, below this process's root. The build-id verifies a file, so files of both places can be
// used.
func (m *Module) debugOptions() []elfimage.SearchOptions {
	own := elfimage.SearchOptions{Folders: m.Sources.Folders, Open: m.openDebugFile}
	if m.Root == "" {
		return []elfimage.SearchOptions{own}
	}
	theirs := own
	theirs.Root = m.Root
	return []elfimage.SearchOptions{theirs, own}
}

// findDebugFile finds the separate debug file. It reports files that it found but rejected.
func (m *Module) findDebugFile() (elfimage.FoundFile, elfimage.SearchOptions, bool) {
	for _, o := range m.debugOptions() {
		r, err := elfimage.FindDebugFile(m.Image, m.Path, o)
		if err == nil {
			m.Warn(r.Skipped...)
			return r, o, true
		}
		if errors.Is(err, elfimage.ErrMismatch) {
			m.Warn(err)
		}
	}
	return elfimage.FoundFile{}, elfimage.SearchOptions{}, false
}

// Warn reports errors that cause names or lines of this module to be missing.
func (m *Module) Warn(errs ...error) {
	for _, err := range errs {
		m.Sources.Warn(fmt.Errorf("%s: %w", m.Name, err))
	}
}

// SymbolTable returns the symbols of the image and of its separate debug file. It returns false if they were not read
// by the deadline. Lines are looked up only after the symbols have been read, because that finds the debugging
// information.
func (m *Module) SymbolTable(late *Deadline) (*symbol.Table, bool) {
	if t, ok := m.Symbols.ifReady(); ok {
		return t, true
	}
	return m.Symbols.Get(late, m.Warn, m.readSymbols)
}

func (m *Module) readSymbols() *symbol.Table {
	tables := []*elfimage.Image{m.Image}
	debug, options, ok := m.findDebugFile()
	if ok {
		tables = append(tables, debug.Image)
	}
	m.debugFile = m.debugIdentity(&debug, ok)
	m.stripped = m.Image.SymbolCount(".symtab") == 0 && !ok
	if !ok || debug.How == elfimage.ByDebugData {
		if fetched := m.useFetched(tables); fetched != nil {
			if ok {
				_ = debug.Close()
			}
			return fetched
		}
	}
	kept := false
	switch { // begin with the lines, because they take longer than symbols
	case ok && hasLines(debug.Image):
		m.Lines.open(m, debug.Image, debug.Path, options)
		kept = true // the file stays open
	case hasLines(m.Image):
		m.Lines.open(m, m.Image, m.Path, m.debugOptions()[0])
	}
	// If a table is damaged, NewTable returns the readable symbols and an error.
	symbols, err := symbol.NewTable(tables...)
	m.partial = err != nil
	if ok && !kept {
		_ = debug.Close()
	}
	return symbols
}

// useFetched reads the symbols and lines of the downloaded debug file. It returns these symbols together with the
// symbols of the images in tables, or nil if no debug file was downloaded.
func (m *Module) useFetched(tables []*elfimage.Image) *symbol.Table {
	fetched, ok := m.fetched()
	if !ok {
		return nil
	}
	m.stripped, m.debugFile = false, ""
	kept := hasLines(fetched.Image)
	if kept {
		m.Lines.open(m, fetched.Image, fetched.Path, elfimage.SearchOptions{Folders: m.Sources.Folders, Open: m.openDebugFile})
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

// debugFrame returns .debug_frame of the separate debug file, for an image without call frame information.
func (m *Module) debugFrame() cfi.Section {
	debug, _, ok := m.findDebugFile()
	if !ok {
		return cfi.Section{}
	}
	defer func() { _ = debug.Close() }()
	s, _ := debug.Image.CFISections() // an unreadable section is treated as missing
	return cfi.Section(s.DebugFrame)
}

// spill creates a file for the expanded content of a compressed section. The file has no name, and the kernel deletes
// it when it is closed.
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
