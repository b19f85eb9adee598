package view

import (
	"slices"
	"strings"
	"unicode"

	"github.com/rivo/uniseg"

	"pg_stat_backtrace/worker/report/render"
)

// Ink is a colour. Plain is the terminal's own colour.
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

// Style is how a cell looks. A terminal without colours shows only the attributes, such as Bold.
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
	keys  map[int]string // keys of the selectable rows, by line
}

// Selectable notes that the line y shows the row with this key, so that a click can select it.
func (g *Grid) Selectable(y int, key string) {
	if g.keys == nil {
		g.keys = map[int]string{}
	}
	g.keys[y] = key
}

// KeyAt returns the key of the row at a line; empty: the line cannot be selected.
func (g *Grid) KeyAt(y int) string { return g.keys[y] }

// maxSide is the largest width and height of a Grid.
const maxSide = 2000

// NewGrid returns a screen of spaces. Sizes outside of 0 to maxSide are limited to this range.
func NewGrid(width, height int) *Grid {
	width, height = min(max(width, 0), maxSide), min(max(height, 0), maxSide)
	g := &Grid{Width: width, Height: height, cells: make([]Cell, width*height)}
	for i := range g.cells {
		g.cells[i].Rune = ' '
	}
	return g
}

// At returns a cell. Outside of the screen, it returns the zero Cell.
func (g *Grid) At(x, y int) Cell {
	if x < 0 || y < 0 || x >= g.Width || y >= g.Height {
		return Cell{}
	}
	return g.cells[y*g.Width+x]
}

// Set draws one character, which must have the width of one cell. It does nothing outside of the screen. On an ASCII screen, it
// draws an ASCII character instead; see plainGlyph.
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

// plainGlyph returns the ASCII character for a line or block character that this program draws, or a question mark.
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

// Text draws a text on one line, before column limit, and returns the column after the text. A text that is too long is cut and
// ends with "…". Control and format characters become question marks, combining characters are left out, and line ends and
// tabs become spaces.
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

// Next returns the first character of a text in the form that a screen may show, its width in cells (1 or 2), and the rest of the
// text. Of characters that combine, it returns only the first, because terminals disagree about the width of the others. The
// text must not be empty.
func Next(text string) (r rune, width int, rest string) {
	if c := text[0]; c >= ' ' && c < 0x7f && (len(text) == 1 || text[1] < 0x80) {
		return rune(c), 1, text[1:]
	}
	const longest = 256 // bytes in which the end of a grapheme cluster is searched
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
	case first >= 0x1f1e6 && first <= 0x1f1ff: // a regional indicator, half of a flag
		return '?', 1, rest
	}
	switch width = uniseg.StringWidth(string(first)); width {
	case 1, 2:
		return first, width, rest
	}
	return '?', 1, rest
}

// Width returns the number of cells of a text. It stops counting after maxSide.
func Width(text string) (n int) {
	for text != "" && n <= maxSide {
		var w int
		_, w, text = Next(text)
		n += w
	}
	return n
}

// Right draws a text that ends before column x, and returns the text's first column.
func (g *Grid) Right(x, y int, s Style, text string) int {
	from := max(0, x-Width(text))
	g.Text(from, y, x, s, text)
	return from
}

// Fill sets the style of the cells of line y from column x to before limit. The characters stay.
func (g *Grid) Fill(x, y, limit int, s Style) {
	for ; x < min(limit, g.Width); x++ {
		if y >= 0 && y < g.Height && x >= 0 {
			g.cells[y*g.Width+x].Style = s
		}
	}
}

// Wrap breaks a text into lines of at most width cells, at spaces if possible. The parameter lines is the largest number of
// lines. The last line ends with "…" if the text has more.
func Wrap(text string, width, lines int) (out []string) {
	const most = 64 << 10 // the rest of a longer text is ignored
	text = text[:min(len(text), most)]
	words := whole(strings.Fields(text))
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
		if w > width { // a word that is longer than a line: cut it
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

// whole joins a number and its unit to one word, and the parts of a duration such as "17 min 51 s".
func whole(words []string) []string {
	joined := words[:0:0]
	for i := 0; i < len(words); i++ {
		word := words[i]
		for i+1 < len(words) && belongs(words[i], words[i+1]) {
			word += " " + words[i+1]
			i++
		}
		joined = append(joined, word)
	}
	return joined
}

// belongs reports whether a line must not end between two words: they are a number and its unit, or a unit of time and a number
// of a smaller unit.
func belongs(a, b string) bool {
	unit := strings.TrimRight(b, ".,;:)")
	if strings.TrimLeft(a, "(≥<0123456789.") == "" && a != "" && strings.ContainsAny(a, "0123456789") {
		return slices.Contains([]string{"ms", "s", "min", "h", "d", "%", "bytes", "kB", "MB", "GB", "TB", "PB"}, unit)
	}
	return slices.Contains([]string{"min", "h", "d"}, a) && unit == b && strings.Trim(b, "0123456789") == "" || strings.HasSuffix(a, "≥")
}

// mark adds "…" to the last line, and cuts it if it would be wider than width.
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

// cutAt splits a text after at most width cells, but at least after one character.
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
	if n == 0 && rest != "" { // the first character is wider than width
		_, _, rest = Next(rest)
	}
	return text[:len(text)-len(rest)], rest
}

// String returns the characters, one line for each line of the screen, without spaces at the ends of lines.
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

// Plain returns the lines of String, but without the empty lines directly above the last line of the screen.
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
