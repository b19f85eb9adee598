package table

import (
	"io"
	"slices"
	"strings"

	"github.com/rivo/uniseg"

	"pg_stat_backtrace/worker/report/render"
)

// Column says how a column of a table becomes narrower if the table is wider than the terminal.
type Column struct {
	// Least is the width in characters down to which the column may be cut; 0: it is not cut.
	Least int
	// Drop says which columns are left out if the cut columns do not fit either: first the column with the largest number.
	// A column with 0 is never left out.
	Drop int
	// Right aligns the column at its right end.
	Right bool
	// Wrap breaks the texts of the column into several lines, instead of cutting them. It is for the last column.
	Wrap bool
}

// Fitted collects the rows of a table for a terminal, and prints them when all are known. The first row is the header. Columns
// without a value in any other row are left out. A row with fewer cells than columns is a note: its last cell takes the rest of the
// line, and is not cut.
type Fitted struct {
	out     io.Writer
	o       Options
	columns []Column
	rows    [][]string
	natural []int // see measure
}

// Fit returns a table for a terminal with o.Width columns. If that is 0, the table has all columns and is as wide as its texts.
func Fit(out io.Writer, o Options, columns []Column) *Fitted {
	return &Fitted{out: out, o: o, columns: columns}
}

// Row adds a row.
func (f *Fitted) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = Cell(cell)
	}
	f.rows = append(f.rows, row)
}

// Note adds a line that is no row.
func (f *Fitted) Note(text string) { f.rows = append(f.rows, []string{render.VisibleLine(text)}) }

// Flush prints the rows. It returns the names of the columns that have values, but had no room. See NoRoom.
func (f *Fitted) Flush() (left []string, err error) {
	if len(f.rows) == 0 {
		return nil, nil
	}
	f.measure()
	shown := f.used()
	needs := func() (sum int) {
		for _, c := range shown {
			sum += f.least(c) + gap
		}
		return sum - gap
	}
	room := f.o.Width - Width(f.o.Indent)
	for f.o.Width > 0 && needs() > room {
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
	_, err = io.WriteString(f.out, f.lines(shown, f.share(shown, room-needs())))
	return left, err
}

// NoRoom prints which columns had no room in a table, if there are any, and how to see them.
func NoRoom(out io.Writer, left []string) error {
	if len(left) == 0 {
		return nil
	}
	_, err := io.WriteString(out, "no room for "+strings.Join(left, ", ")+": --wide prints all columns\n")
	return err
}

const gap = 2 // spaces between columns

// used returns the columns with a value below the header, and the columns that are never left out.
func (f *Fitted) used() (shown []int) {
	for c := range f.columns {
		has := func(row []string) bool { return len(row) == len(f.columns) && row[c] != "" }
		if f.o.Width == 0 || f.columns[c].Drop == 0 || slices.ContainsFunc(f.rows[1:], has) {
			shown = append(shown, c)
		}
	}
	return shown
}

// measure sets the widths at which nothing of a column is cut, except the header of a column that may be cut.
func (f *Fitted) measure() {
	f.natural = make([]int, len(f.columns))
	for c := range f.natural {
		f.natural[c] = Width(f.o.Empty)
	}
	for i, row := range f.rows {
		if i == 0 && f.o.NoHeader {
			continue
		}
		cells := len(row)
		if cells < len(f.columns) {
			cells-- // the text of a note
		}
		for c := range cells {
			n := Width(row[c])
			if i == 0 && f.o.Width > 0 && f.columns[c].Least > 0 {
				n = min(n, f.columns[c].Least)
			}
			f.natural[c] = max(f.natural[c], n)
		}
	}
}

func (f *Fitted) least(c int) int {
	if least := f.columns[c].Least; least > 0 {
		return min(least, f.natural[c])
	}
	return f.natural[c]
}

// share returns the widths of the columns: the spare characters go one by one to the columns that are cut.
func (f *Fitted) share(shown []int, spare int) []int {
	widths, wanted := make([]int, len(shown)), make([]int, len(shown))
	for i, c := range shown {
		widths[i], wanted[i] = f.least(c), f.natural[c]
	}
	if f.o.Width == 0 {
		return wanted
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

// lines returns the rows with the shown columns. No line is wider than the terminal, except the lines of notes.
func (f *Fitted) lines(shown, widths []int) string {
	var s strings.Builder
	rows := f.rows
	if f.o.NoHeader {
		rows = rows[1:]
	}
	for number, row := range rows {
		header := number == 0 && !f.o.NoHeader
		if len(row) < len(f.columns) {
			f.note(&s, row, shown, widths)
			continue
		}
		parts := [][]string{}
		height := 1
		for i, c := range shown {
			cell := row[c]
			if cell == "" && i < len(shown)-1 {
				cell = f.o.Empty
			}
			part := []string{cell}
			if f.columns[c].Wrap && !header && Width(cell) > widths[i] {
				part = Lines(cell, widths[i])
			}
			parts, height = append(parts, part), max(height, len(part))
		}
		for k := range height {
			line := f.o.Indent
			for i, c := range shown {
				cell := ""
				if k < len(parts[i]) {
					cell = parts[i][k]
				}
				line += f.padded(cell, c, widths[i]) + strings.Repeat(" ", gap)
			}
			line = strings.TrimRight(line, " ")
			if f.o.Width > 0 {
				line = cutTo(line, f.o.Width)
			}
			s.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	return s.String()
}

// note writes a row with fewer cells than the table has columns.
func (f *Fitted) note(s *strings.Builder, row []string, shown, widths []int) {
	s.WriteString(f.o.Indent)
	for i, c := range shown {
		if c < len(row)-1 {
			s.WriteString(f.padded(row[c], c, widths[i]) + strings.Repeat(" ", gap))
		}
	}
	s.WriteString(row[len(row)-1] + "\n")
}

// padded returns a cell of a column with the width that the table gives it.
func (f *Fitted) padded(cell string, column, width int) string {
	cell = cutTo(cell, width)
	space := strings.Repeat(" ", max(0, width-Width(cell)))
	if f.columns[column].Right {
		return space + cell
	}
	return cell + space
}

// Lines breaks a text into lines of at most width columns, between words if possible. width 0 or less: there is one line.
func Lines(text string, width int) (lines []string) {
	for width > 0 && Width(text) > width {
		head := headTo(text, width)
		if head == "" {
			break
		}
		if at := strings.LastIndexByte(head, ' '); at > 0 && text[len(head)] != ' ' {
			head = head[:at]
		}
		lines = append(lines, head)
		text = strings.TrimLeft(text[len(head):], " ")
	}
	return append(lines, text)
}

// Width returns the number of columns of a terminal that a text of one line takes.
func Width(text string) int {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return uniseg.StringWidth(text)
		}
	}
	return len(text)
}

// cutTo returns a text of at most width columns. The last character of a cut text is "…".
func cutTo(text string, width int) string {
	if len(text) <= width || Width(text) <= width {
		return text
	}
	return headTo(text, width-1) + "…"
}

// headTo returns the longest begin of a text that takes at most width columns.
func headTo(text string, width int) string {
	used := 0
	for rest, state := text, -1; rest != ""; {
		var w int
		before := rest
		_, rest, w, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if used += w; used > width {
			return text[:len(text)-len(before)]
		}
	}
	return text
}
