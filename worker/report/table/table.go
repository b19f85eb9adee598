// Package table prints tables: for people with aligned columns, and as CSV. Its cells may come from a server or a file
// of unknown origin: each is printed on one line, and cannot control a terminal.
package table

import (
	"encoding/csv"
	"io"
	"strings"
	"text/tabwriter"

	"pg_stat_backtrace/worker/report/render"
)

// Writer prints a table row by row. Its methods are not safe for concurrent use.
type Writer struct {
	columns *tabwriter.Writer // nil: CSV
	csv     *csv.Writer
	indent  string
	empty   string
	clean   []string
}

// Options say how a table for people looks.
type Options struct {
	// Indent stands before each row.
	Indent string
	// Empty stands for an empty cell, except in the last column.
	Empty string
}

// Text returns a writer of a table with aligned columns. Rows are printed by Flush.
func Text(w io.Writer, o Options) *Writer {
	const gap = 2
	return &Writer{columns: tabwriter.NewWriter(w, 0, 0, gap, ' ', 0), indent: o.Indent, empty: o.Empty}
}

// CSV returns a writer of the format of RFC 4180, with a line feed at the end of each row.
func CSV(w io.Writer) *Writer { return &Writer{csv: csv.NewWriter(w)} }

// Row adds a row. Flush returns the first error.
func (t *Writer) Row(cells ...string) {
	t.clean = t.clean[:0]
	for i, cell := range cells {
		if cell = Cell(cell); cell == "" && i < len(cells)-1 {
			cell = t.empty
		}
		t.clean = append(t.clean, cell)
	}
	if t.columns == nil {
		_ = t.csv.Write(t.clean) // Flush returns the error
		return
	}
	_, _ = io.WriteString(t.columns, t.indent+strings.Join(t.clean, "\t")+"\n") // Flush returns the error
}

// Flush prints the rows.
func (t *Writer) Flush() error {
	if t.columns == nil {
		t.csv.Flush()
		return t.csv.Error()
	}
	return t.columns.Flush()
}

// Cell returns a text as a table prints it: on one line, without characters that control a terminal.
func Cell(text string) string {
	return render.VisibleLine(strings.Join(strings.Fields(text), " "))
}

// Cut returns a cell of at most so many characters. Dots stand for the rest.
func Cut(text string, width int) string {
	text = Cell(text)
	if len(text) <= width {
		return text
	}
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width]) + "..."
	}
	return text
}
