package table

import (
	"io"
	"slices"
	"strings"

	"github.com/rivo/uniseg"
)

// Column says how a column of a table becomes narrower if the table is wider than the terminal.
type Column struct {
	// Least is the width in characters down to which the column may be cut; 0: it is not cut.
	Least int
	// Drop says which columns are left out if the cut columns do not fit either: first the column with the largest number.
	// A column with 0 is never left out.
	Drop int
}

// Fitted collects the rows of a table for a terminal, and prints them when all are known. The first row is the header. Columns
// without a value in any other row are left out.
type Fitted struct {
	out     io.Writer
	width   int
	empty   string
	columns []Column
	rows    [][]string
}

// Fit returns a table for a terminal with width columns. Each row must have as many cells as there are columns.
func Fit(out io.Writer, width int, empty string, columns []Column) *Fitted {
	return &Fitted{out: out, width: width, empty: empty, columns: columns}
}

// Row adds a row.
func (f *Fitted) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = Cell(cell)
	}
	f.rows = append(f.rows, row)
}

// Flush prints the rows. It returns the names of the columns that have values, but had no room.
func (f *Fitted) Flush() (left []string, err error) {
	if len(f.rows) == 0 {
		return nil, nil
	}
	shown := f.used()
	needs := func() (sum int) {
		for _, c := range shown {
			sum += f.least(c) + gap
		}
		return sum - gap
	}
	for needs() > f.width {
		at := -1
		for i, c := range shown {
			if d := f.columns[c].Drop; d > 0 && (at < 0 || d > f.columns[shown[at]].Drop) {
				at = i
			}
		}
		if at < 0 {
			break
		}
		left = append(left, f.rows[0][shown[at]])
		shown = slices.Delete(shown, at, at+1)
	}
	_, err = io.WriteString(f.out, f.lines(shown, f.share(shown, f.width-needs())))
	return left, err
}

const gap = 2 // spaces between columns

// used returns the columns with a value below the header, and the columns that are never left out.
func (f *Fitted) used() (shown []int) {
	for c := range f.columns {
		if f.columns[c].Drop == 0 || slices.ContainsFunc(f.rows[1:], func(row []string) bool { return row[c] != "" }) {
			shown = append(shown, c)
		}
	}
	return shown
}

// natural returns the width at which nothing of a column is cut, except the header of a column that may be cut.
func (f *Fitted) natural(c int) (width int) {
	for i, row := range f.rows {
		n := Width(row[c])
		if i == 0 && f.columns[c].Least > 0 {
			n = min(n, f.columns[c].Least)
		}
		width = max(width, n)
	}
	return max(width, Width(f.empty))
}

func (f *Fitted) least(c int) int {
	if least := f.columns[c].Least; least > 0 {
		return min(least, f.natural(c))
	}
	return f.natural(c)
}

// share returns the widths of the columns: the spare characters go one by one to the columns that are cut.
func (f *Fitted) share(shown []int, spare int) []int {
	widths, wanted := make([]int, len(shown)), make([]int, len(shown))
	for i, c := range shown {
		widths[i], wanted[i] = f.least(c), f.natural(c)
	}
	for grown := true; grown && spare > 0; {
		grown = false
		for i := range widths {
			if widths[i] < wanted[i] && spare > 0 {
				widths[i]++
				spare--
				grown = true
			}
		}
	}
	return widths
}

// lines returns the rows with the shown columns. No line is wider than the terminal.
func (f *Fitted) lines(shown, widths []int) string {
	var s strings.Builder
	for _, row := range f.rows {
		var line strings.Builder
		for i, c := range shown {
			cell := row[c]
			if cell == "" && i < len(shown)-1 {
				cell = f.empty
			}
			cell = cutTo(cell, widths[i])
			line.WriteString(cell + strings.Repeat(" ", max(0, widths[i]-Width(cell))+gap))
		}
		s.WriteString(strings.TrimRight(cutTo(strings.TrimRight(line.String(), " "), f.width), " ") + "\n")
	}
	return s.String()
}

// Width returns the number of columns of a terminal that a text of one line takes.
func Width(text string) int { return uniseg.StringWidth(text) }

// cutTo returns a text of at most width columns. The last character of a cut text is "…".
func cutTo(text string, width int) string {
	if len(text) <= width || Width(text) <= width {
		return text
	}
	kept, used := "", 0
	for rest, state := text, -1; rest != ""; {
		var cluster string
		var w int
		cluster, rest, w, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if used+w > width-1 {
			break
		}
		kept, used = kept+cluster, used+w
	}
	return kept + "…"
}
