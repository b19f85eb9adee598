package doctor

import (
	"fmt"
	"io"
	"strings"

	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

// SymbolTable prints a table with a line for each image. Lines for the debug file, if any, and for problems follow
// below the line of their image. width is the number of columns of the terminal; 0: the table may be wider. With a build-id of 20
// bytes a line has at most 100 columns, unless a name or a path is long.
func SymbolTable(w io.Writer, images []SymbolImage, width int) error {
	t := table.Fit(w, table.Options{Width: width}, []table.Column{
		{}, {Right: true}, {Right: true}, {Least: 12, Drop: 1}, {Least: 12, Wrap: true},
	})
	t.Row("IMAGE", "NAMED", "LINES", "BUILD-ID", "FROM")
	for i := range images {
		m := &images[i]
		share, lines, id := "-", "no", m.BuildID
		if m.Functions > 0 {
			share = fmt.Sprintf("%.1f %%", m.Share())
		}
		if m.Lines {
			lines = "yes"
		}
		if id == "" {
			id = "-"
		}
		t.Row(clean(m.Name), share, lines, id, m.sources())
		for _, below := range m.below() {
			t.Note("    " + below)
		}
	}
	left, err := t.Flush()
	if err != nil {
		return err
	}
	return table.NoRoom(w, left)
}

// sources returns words for the sources of names, the best source first.
func (m *SymbolImage) sources() string {
	var s []string
	add := func(have bool, what string) {
		if have {
			s = append(s, what)
		}
	}
	add(m.Symtab, ".symtab")
	add(m.DebugFile != "", "debug file")
	add(m.FetchedFile != "", "debuginfod")
	add(m.GoTable, "Go's table")
	add(m.DebugData, ".gnu_debugdata")
	add(m.DynSym && !m.Symtab, ".dynsym")
	if len(s) == 0 {
		return "nothing"
	}
	return strings.Join(s, ", ")
}

// below returns the lines below the line of the image.
func (m *SymbolImage) below() []string {
	var s []string
	add := func(what, text string) {
		if text != "" {
			s = append(s, what+clean(text))
		}
	}
	add("debug file, by "+m.HowFound+": ", m.DebugFile)
	add("supplement: ", m.Supplement)
	add("debuginfod: ", m.FetchedFile)
	if m.Derived+m.Noted > 0 {
		s = append(s, fmt.Sprintf("names derived from its own code: %s; notes: %d", units.Count(m.Derived, "more function"), m.Noted))
	}
	switch {
	case m.InMemory:
		s = append(s, "the file cannot be read; this is what the process has mapped of it")
	case m.Deleted:
		s = append(s, "the file was replaced or removed since the process began")
	}
	for _, p := range m.Problems {
		for part := range strings.Lines(p) {
			add("! ", strings.TrimSpace(part))
		}
	}
	return s
}

// clean replaces characters that are not printable by "?". Other users may have chosen the names and paths.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !render.VisibleRune(r) || r == 0xfffd {
			return '?'
		}
		return r
	}, s)
}
