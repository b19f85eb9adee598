package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// frame is a screen and how long it is shown.
type frame struct {
	x    *screen
	hold time.Duration
}

// Sizes and colours of the pictures.
const (
	cellWidth, cellHeight = 8.4, 17.0
	margin                = 10.0
	background            = "#14171c"
	foreground            = "#d5d9e0"
)

// sheet has the lines of all frames. A line that stands in several frames is written once.
type sheet struct {
	lines map[string]int
	defs  strings.Builder
}

// picture returns one screen as SVG.
func picture(x *screen) string {
	return svg([]frame{{x, 0}})
}

// animation returns the frames as SVG, which repeats them. A reader that wants no motion sees the longest one.
func animation(frames []frame) string { return svg(frames) }

func svg(frames []frame) string {
	s := &sheet{lines: map[string]int{}}
	var body, css strings.Builder
	total, longest := time.Duration(0), 0
	for i, f := range frames {
		total += f.hold
		if f.hold > frames[longest].hold {
			longest = i
		}
	}
	at := time.Duration(0)
	for i, f := range frames {
		class := ""
		if len(frames) > 1 {
			class = fmt.Sprintf(` class="f" id="f%d"`, i)
			from, to := percentOf(at, total), percentOf(at+f.hold, total)
			fmt.Fprintf(&css, "@keyframes k%d{0%%{visibility:hidden}%s%%{visibility:visible}%s%%{visibility:hidden}}\n", i, from, to)
			if i == 0 {
				css.Reset()
				fmt.Fprintf(&css, "@keyframes k0{0%%{visibility:visible}%s%%{visibility:hidden}}\n", to)
			}
			fmt.Fprintf(&css, "#f%d{animation-name:k%d}\n", i, i)
		}
		fmt.Fprintf(&body, "<g%s>\n", class)
		for y := range f.x.lines {
			if n := s.line(f.x, y); n >= 0 {
				fmt.Fprintf(&body, `<use href="#l%d" y="%g"/>`, n, float64(y)*cellHeight)
			}
		}
		body.WriteString("</g>\n")
		at += f.hold
	}
	x := frames[0].x
	w, h := float64(x.columns)*cellWidth+2*margin, float64(x.lines)*cellHeight+2*margin
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img">`+"\n", w, h, w, h)
	out.WriteString("<title>pg_stat_backtrace top in a terminal</title>\n<style>\n")
	fmt.Fprintf(&out, "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;fill:%s;white-space:pre}\n", foreground) //nolint:lll // a text
	out.WriteString(".b{font-weight:bold}.d{opacity:.62}.u{text-decoration:underline}\n")
	if len(frames) > 1 {
		fmt.Fprintf(&out, ".f{visibility:hidden;animation:%.1fs step-end infinite}\n%s", total.Seconds(), css.String())
		fmt.Fprintf(&out, "@media (prefers-reduced-motion:reduce){.f{animation:none}#f%d{visibility:visible}}\n", longest)
	}
	fmt.Fprintf(&out, "</style>\n<defs>\n%s</defs>\n", s.defs.String())
	fmt.Fprintf(&out, `<rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", background)
	fmt.Fprintf(&out, "<g transform=\"translate(%g %g)\">\n%s</g>\n</svg>\n", margin, margin, body.String())
	return out.String()
}

func percentOf(d, total time.Duration) string {
	return fmt.Sprintf("%.3f", 100*float64(d)/float64(total))
}

// line returns the number of a line in the definitions; -1: it is empty.
func (s *sheet) line(x *screen, y int) int {
	text := lineSVG(x.cells[y*x.columns : (y+1)*x.columns])
	if text == "" {
		return -1
	}
	n, ok := s.lines[text]
	if !ok {
		n = len(s.lines)
		s.lines[text] = n
		fmt.Fprintf(&s.defs, "<g id=\"l%d\">%s</g>\n", n, text)
	}
	return n
}

// lineSVG draws the runs of cells with the same style. Parts of a chart are rectangles, so that they touch each other.
func lineSVG(cells []cell) string {
	var b strings.Builder
	for from := 0; from < len(cells); {
		to := from + 1
		for to < len(cells) && cells[to].s == cells[from].s && (eighths(cells[to].r) > 0) == (eighths(cells[from].r) > 0) {
			to++
		}
		run(&b, from, cells[from:to])
		from = to
	}
	return b.String()
}

// run draws cells with the same style from a column.
func run(b *strings.Builder, column int, cells []cell) {
	s := cells[0].s
	fg, bg := s.fg, s.bg
	if s.reverse {
		fg, bg = or(bg, background), or(fg, foreground)
	}
	x, width := float64(column)*cellWidth, float64(len(cells))*cellWidth
	if bg != "" {
		fmt.Fprintf(b, `<rect x="%.5g" width="%.5g" height="%g" fill="%s"/>`, x, width, cellHeight, bg)
	}
	if eighths(cells[0].r) > 0 {
		bars(b, x, cells, or(fg, foreground))
		return
	}
	text := make([]rune, len(cells))
	for i, c := range cells {
		text[i] = c.r
		if c.r == 0 {
			text[i] = ' '
		}
	}
	for len(text) > 0 && text[0] == ' ' {
		text, x = text[1:], x+cellWidth
	}
	shown := strings.TrimRight(string(text), " ")
	if shown == "" {
		return
	}
	attributes := ""
	if fg != "" {
		attributes = fmt.Sprintf(` style="fill:%s"`, fg)
	}
	class := strings.TrimSpace(mark(s.bold, "b ") + mark(s.dim, "d ") + mark(s.underline, "u"))
	if class != "" {
		attributes += fmt.Sprintf(` class="%s"`, class)
	}
	fmt.Fprintf(b, `<text x="%.5g" y="13" textLength="%.5g"%s>%s</text>`, x, float64(len([]rune(shown)))*cellWidth, attributes,
		html.EscapeString(shown))
}

// eighths returns the height of a part of a chart in eighths of a cell; 0: the character is none.
func eighths(r rune) int {
	if r >= '▁' && r <= '█' {
		return int(r - '▁' + 1)
	}
	return 0
}

// bars draws parts of a chart. Neighbours with the same height are one rectangle.
func bars(b *strings.Builder, x float64, cells []cell, color string) {
	for from := 0; from < len(cells); {
		to := from + 1
		for to < len(cells) && cells[to].r == cells[from].r {
			to++
		}
		h := cellHeight * float64(eighths(cells[from].r)) / 8
		fmt.Fprintf(b, `<rect x="%.5g" y="%.4g" width="%.5g" height="%.4g" fill="%s"/>`,
			x+float64(from)*cellWidth, cellHeight-h, float64(to-from)*cellWidth+0.2, h+0.2, color)
		from = to
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func mark(set bool, class string) string {
	if set {
		return class
	}
	return ""
}
