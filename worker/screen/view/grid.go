package view

import (
	"strings"
	"unicode"

	"github.com/rivo/uniseg"

	"pg_stat_backtrace/worker/report/render"
)

// Ink is a colour by its role. The terminal's own colour is Plain.
type Ink uint8

// The inks: the colours of the wait classes, then the colours of messages.
const (
	Plain Ink = iota
	Green
	Blue
	Pink
	Red
	Teal
	Purple
	Orange
	Gold
	Brown
	Orchid
	Gray
)

// Style is how a cell looks. Without colours, only the attributes count.
type Style struct {
	Fg, Bg                        Ink
	Bold, Dim, Reverse, Underline bool
}

// Cell is one place of the screen. A wide character has an empty cell (Rune 0) after it.
type Cell struct {
	Rune  rune
	Style Style
}

// Grid is a screen. The zero value has no cells.
type Grid struct {
	Width, Height int
	// ASCII is set if the terminal shows only ASCII.
	ASCII bool
	// Mono is set if the terminal shows no colours.
	Mono  bool
	cells []Cell
}

// maxSide bounds a screen.
const maxSide = 2000

// NewGrid returns an empty screen.
func NewGrid(width, height int) *Grid {
	width, height = min(max(width, 0), maxSide), min(max(height, 0), maxSide)
	g := &Grid{Width: width, Height: height, cells: make([]Cell, width*height)}
	for i := range g.cells {
		g.cells[i].Rune = ' '
	}
	return g
}

// At returns a cell; outside of the screen, an empty one.
func (g *Grid) At(x, y int) Cell {
	if x < 0 || y < 0 || x >= g.Width || y >= g.Height {
		return Cell{}
	}
	return g.cells[y*g.Width+x]
}

// Set draws one character of the program itself, which has the width of one cell.
func (g *Grid) Set(x, y int, r rune, s Style) {
	if x < 0 || y < 0 || x >= g.Width || y >= g.Height {
		return
	}
	if g.ASCII && r > unicode.MaxASCII {
		r = plainGlyph(r)
	}
	c := &g.cells[y*g.Width+x]
	if c.Rune == 0 && x > 0 { // the second half of a wide character
		g.cells[y*g.Width+x-1].Rune = ' '
	}
	if x+1 < g.Width && g.cells[y*g.Width+x+1].Rune == 0 {
		g.cells[y*g.Width+x+1].Rune = ' '
	}
	*c = Cell{r, s}
}

// plainGlyph returns an ASCII character for a character of the program.
func plainGlyph(r rune) rune {
	const from, to = "─│├└┬┤┴╌┄━═░◀▁▂▃▄▅▆▇█■▲▸●✗…›↑↓←→×·▔❚", "-||`+|+---=:<....####*!>*x.>^v<>x.-|"
	i := 0
	for _, f := range from {
		if f == r {
			return rune(to[i])
		}
		i++
	}
	return '?'
}

// Text draws a text on one line, and returns the column after it. It draws at most up to column limit. A text that is too
// long ends with a mark. Control and format characters become question marks, combining characters are left out, and each
// line end or tab is a space.
func (g *Grid) Text(x, y, limit int, s Style, text string) int {
	limit = min(limit, g.Width)
	if y < 0 || y >= g.Height || x >= limit {
		return x
	}
	start := x
	for rest := text; rest != ""; {
		r, width, next := Next(rest)
		if g.ASCII && r > unicode.MaxASCII {
			r, width = plainGlyph(r), 1
		}
		if x+width > limit && !hasMore(rest) {
			return x
		}
		if x+width > limit || x+width == limit && next != "" && hasMore(next) {
			if limit-start > 0 {
				g.Set(limit-1, y, '…', s)
				for i := x; i < limit-1; i++ {
					g.Set(i, y, ' ', s)
				}
			}
			return limit
		}
		g.Set(x, y, r, s)
		if width == 2 {
			g.cells[y*g.Width+x+1] = Cell{0, s}
		}
		x += width
		rest = next
	}
	return x
}

// hasMore reports whether a text has anything to draw.
func hasMore(text string) bool { return strings.TrimSpace(text) != "" }

// Next returns the first character of a text that a screen may show, its width in cells (1 or 2), and the rest of the text.
// Of characters that combine, only the first is shown, because terminals disagree about the others.
func Next(text string) (r rune, width int, rest string) {
	if c := text[0]; c >= ' ' && c < 0x7f && (len(text) == 1 || text[1] < 0x80) {
		return rune(c), 1, text[1:]
	}
	const longest = 256 // bytes of a cluster that are looked at
	head := text[:min(len(text), longest)]
	cluster, _, _, _ := uniseg.FirstGraphemeClusterInString(head, -1)
	rest = text[len(cluster):]
	if len(cluster) == longest {
		rest = strings.TrimLeftFunc(rest, func(r rune) bool { return unicode.In(r, unicode.Mn, unicode.Me) })
	}
	first := []rune(cluster)[0]
	switch {
	case first == '\n' || first == '\t' || first == '\r':
		return ' ', 1, rest
	case first == unicode.ReplacementChar || !render.VisibleRune(first) || unicode.In(first, unicode.Mn, unicode.Me, unicode.Co, unicode.Cs):
		return '?', 1, rest
	case first >= 0x1f1e6 && first <= 0x1f1ff: // half of a flag
		return '?', 1, rest
	}
	switch width = uniseg.StringWidth(string(first)); width {
	case 1, 2:
		return first, width, rest
	}
	return '?', 1, rest
}

// Width returns the number of cells of a text, but at most a little more than a line has.
func Width(text string) (n int) {
	for text != "" && n <= maxSide {
		var w int
		_, w, text = Next(text)
		n += w
	}
	return n
}

// Right draws a text that ends before column x, and returns its first column.
func (g *Grid) Right(x, y int, s Style, text string) int {
	from := max(0, x-Width(text))
	g.Text(from, y, x, s, text)
	return from
}

// Fill sets the style of a part of a line, without its characters.
func (g *Grid) Fill(x, y, limit int, s Style) {
	for ; x < min(limit, g.Width); x++ {
		if y >= 0 && y < g.Height && x >= 0 {
			g.cells[y*g.Width+x].Style = s
		}
	}
}

// Wrap breaks a text into lines of at most so many cells, at spaces where there are any. The last line is marked if
// more text follows.
func Wrap(text string, width, lines int) (out []string) {
	const most = 64 << 10 // bytes that are looked at
	text = text[:min(len(text), most)]
	words := strings.Fields(text)
	line, n := "", 0
	for i := 0; i < len(words); i++ {
		word := words[i]
		w := Width(word)
		if n > 0 && n+1+w > width {
			out = append(out, line)
			line, n = "", 0
		}
		if len(out) >= lines {
			return mark(out, width)
		}
		if w > width { // longer than a line: cut it
			head, tail := cutAt(word, width)
			out = append(out, head)
			if len(out) >= lines {
				return mark(out, width)
			}
			words[i] = tail
			i--
			continue
		}
		if n > 0 {
			line, n = line+" ", n+1
		}
		line, n = line+word, n+w
	}
	if n > 0 {
		out = append(out, line)
	}
	if len(out) > lines {
		return mark(out[:lines], width)
	}
	return out
}

// mark adds a mark to the last line.
func mark(out []string, width int) []string {
	if len(out) == 0 {
		return out
	}
	head, _ := cutAt(out[len(out)-1], max(0, width-1))
	if Width(head) >= width {
		head = ""
	}
	out[len(out)-1] = head + "…"
	return out
}

// cutAt splits a text after so many cells.
func cutAt(text string, width int) (head, tail string) {
	rest, n := text, 0
	for rest != "" {
		_, w, next := Next(rest)
		if n+w > width {
			break
		}
		n += w
		rest = next
	}
	if n == 0 && rest != "" { // not even one character fits
		_, _, rest = Next(rest)
	}
	return text[:len(text)-len(rest)], rest
}

// String returns the characters, one line for each line of the screen, without spaces at the ends.
func (g *Grid) String() string {
	var b strings.Builder
	for y := range g.Height {
		var line strings.Builder
		for x := range g.Width {
			if r := g.cells[y*g.Width+x].Rune; r != 0 {
				line.WriteRune(r)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// Plain returns the lines as String does, without the empty lines at the end of the screen's body: the last line follows
// the last line that is not empty.
func (g *Grid) Plain() string {
	lines := strings.SplitAfter(g.String(), "\n")
	last := len(lines) - 2 // the part after the last line end is empty
	if last < 0 {
		return ""
	}
	body := lines[:last]
	for len(body) > 0 && body[len(body)-1] == "\n" {
		body = body[:len(body)-1]
	}
	return strings.Join(body, "") + lines[last]
}
