// Package table prints tables: for people with aligned columns, and as CSV. The texts of cells may come from a server or a file
// of unknown origin. Each cell is printed on one line, without characters that could control a terminal.
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

// Options define the form of a table for people.
type Options struct {
	// Indent is written before each row.
	Indent string
	// Empty is written in place of an empty cell, except in the last column.
	Empty string
	// Width is the number of columns of the terminal, for Fit; 0: the table may be as wide as its texts.
	Width int
	// NoHeader leaves out the first row, for Fit.
	NoHeader bool
}

// Text returns a writer of a table with aligned columns. Flush prints the rows.
func Text(w io.Writer, o Options) *Writer {
	return &Writer{columns: tabwriter.NewWriter(w, 0, 0, gap, ' ', 0), indent: o.Indent, empty: o.Empty}
}

// CSV returns a writer of the format of RFC 4180, with a line feed at the end of each row.
func CSV(w io.Writer) *Writer { return &Writer{csv: csv.NewWriter(w)} }

// Row adds a row. If this fails, Flush returns the error.
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

// Flush prints the rows that are not printed yet, and returns the first error of the writer.
func (t *Writer) Flush() error {
	if t.columns == nil {
		t.csv.Flush()
		return t.csv.Error()
	}
	return t.columns.Flush()
}

// Cell returns a text in the form in which a table prints it: on one line, without characters that could control a terminal.
func Cell(text string) string {
	return render.VisibleLine(strings.Join(strings.Fields(text), " "))
}

// Cut returns a text in the form of Cell. If it has more than width characters, Cut returns the first width characters
// and three dots.
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
