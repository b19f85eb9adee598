package view

import (
	"math"

	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// shareTable draws the page `Who`.
func (c *canvas) shareTable(y, end int) {
	x := c.Text(1, y, c.Width, bold, "by")
	for _, by := range source.Properties() {
		style := plain
		if by == c.s.By {
			style = bar
		}
		x = c.Text(x+1, y, c.Width-1, style, " "+string(by)+" ")
	}
	y++
	if !c.s.Compare.IsZero() {
		c.changes(y, end)
		return
	}
	w := c.d.Who
	if w == nil {
		c.failed(y, c.Width, "who")
		return
	}
	const share, active, barAt = 11, 21, 23
	barWidth := min(30, max(8, c.Width/6))
	name := barAt + barWidth + 1
	c.Right(share, y, dim, "% DB time")
	c.Right(active, y, dim, "sessions")
	c.Text(barAt, y, name-1, dim, "by wait class")
	c.Text(name, y, c.Width, dim, string(w.By))
	c.Right(c.Width-1, y, dim, "average "+figure(w.Active))
	y++
	if len(w.Rows) == 0 {
		text := "no session was active"
		if len(c.s.Filter) > 0 {
			text += " that passes the filter"
		}
		c.Text(1, y, c.Width, dim, text)
		return
	}
	var r rows
	row := func(x *source.WhoRow, title string) func(int, bool) {
		return func(y int, selected bool) {
			style := c.pick(y, selected, plain)
			c.Right(share, y, style, percent(x.Share))
			c.Right(active, y, style, figure(x.Active))
			c.shares(barAt, y, barWidth, x, w.Active)
			c.Text(name, y, c.Width-1, style, oneLine(title))
		}
	}
	for i := range w.Rows {
		r.add("who:"+w.Rows[i].Key, row(&w.Rows[i], w.Rows[i].Name))
	}
	if w.Others != nil {
		r.add("", row(w.Others, "("+units.Count(w.Others.Count, "other")+")"))
	}
	below := 4
	if end-y < 12 {
		below = 3
	}
	r.draw(c, y, end-below)
	selected := c.s.selected(c.d)
	for i := range w.Rows {
		if "who:"+w.Rows[i].Key != selected {
			continue
		}
		c.rule(end-below, c.Width)
		for k, line := range Wrap(w.Rows[i].Name, c.Width-2, below-1) {
			c.Text(1, end-below+1+k, c.Width, plain, line)
		}
	}
}

// rule draws a horizontal line.
func (c *canvas) rule(y, limit int) {
	for x := range limit {
		c.Set(x, y, '─', dim)
	}
}

// shares draws the classes of a row, side by side. The whole width is the database time of all rows.
func (c *canvas) shares(x, y, width int, r *source.WhoRow, all float64) {
	if all <= 0 {
		return
	}
	sum, at := 0.0, 0
	for _, class := range source.Classes() {
		v := r.ByClass[class]
		if v == 0 {
			continue
		}
		sum += v
		ink, letter := inkOf(class)
		end := min(width, int(math.Round(sum/all*float64(width))))
		for ; at < end; at++ {
			glyph := '█'
			if c.Mono || c.ASCII {
				glyph = letter
			}
			c.Set(x+at, y, glyph, Style{Fg: ink})
		}
	}
	if at == 0 && sum > 0 {
		c.Set(x, y, '·', dim)
	}
}
