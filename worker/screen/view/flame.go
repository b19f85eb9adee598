package view

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// flame draws the page Flame: the functions as a tree. Each has its part of the time of all stacks, and its mean sessions.
func (c *canvas) flame(y, end int) {
	x := 1
	for _, side := range source.Sides() {
		style := plain
		if side == c.s.Side {
			style = bar
		}
		x = c.Text(x, y, c.Width-1, style, " "+string(side)+" ") + 1
	}
	f := c.d.Flame
	if f == nil {
		c.failed(y+1, c.Width, "flame")
		return
	}
	c.Right(c.Width-1, y, dim, fmt.Sprintf("on CPU %s, off CPU %s sessions", figure(f.OnCPU), figure(f.OffCPU)))
	y++
	c.Text(1, y, c.Width-1, dim, flameOrigin(f))
	y++
	if len(f.Nodes) == 0 {
		for _, line := range Wrap(flameEmpty(f, len(c.s.Filter) > 0), c.Width-2, 3) {
			c.Text(1, y, c.Width-1, plain, line)
			y++
		}
		return
	}
	barWidth := min(24, max(8, c.Width/7))
	const share, active, barAt = 8, 17, 19
	name := barAt + barWidth + 1
	c.Right(share, y, dim, "%")
	c.Right(active, y, dim, "sessions")
	x = c.Text(barAt, y, name-1, Style{Fg: Green}, "on")
	c.Text(x+1, y, name-1, Style{Fg: Purple}, "off")
	c.Text(name, y, c.Width-1, dim, "function, outermost first; › joins a chain")
	y++
	all := f.Nodes[0].Active
	var r rows
	keys := flameKeys(f)
	for i := range f.Nodes {
		n := &f.Nodes[i]
		r.add(keys[i], func(y int, selected bool) {
			style := c.pick(y, selected, plain)
			c.Right(share, y, style, percent(100*n.Active/all))
			c.Right(active, y, style, figure(n.Active))
			c.flameBar(barAt, y, barWidth, n, all)
			at := name + min(n.Depth, max(0, (c.Width-name)/3))
			c.Text(at, y, c.Width-1, style, flameName(n))
		})
	}
	if f.LeftOut > 0 {
		r.add("", func(y int, _ bool) {
			c.Text(name, y, c.Width-1, dim, fmt.Sprintf("(%s too small to be shown)", plural(float64(f.LeftOut), "part")))
		})
	}
	below := 4
	if end-y < 12 {
		below = 3
	}
	r.draw(c, y, end-below)
	c.rule(end-below, c.Width)
	selected := c.s.selected(c.d)
	for i := range f.Nodes {
		if keys[i] != selected {
			continue
		}
		n := &f.Nodes[i]
		text := "Select a function: its whole chain stands here."
		if len(n.Functions) > 0 {
			text = "self " + percent(100*n.Self/all) + ": " + strings.Join(n.Functions, " › ")
		}
		for k, line := range Wrap(text, c.Width-2, below-1) {
			c.Text(1, end-below+1+k, c.Width, plain, line)
		}
	}
}

// flameBar draws the part of a node as a bar: first the sessions on the CPU, then the others. all is the number of sessions of a
// full bar.
func (c *canvas) flameBar(x, y, width int, n *source.FlameNode, all float64) {
	if all <= 0 {
		return
	}
	cells := func(v float64) int { return min(width, int(math.Round(v/all*float64(width)))) }
	on, whole := cells(n.OnCPU), cells(n.Active)
	for i := range whole {
		ink, letter := Purple, 'o'
		if i < on {
			ink, letter = Green, 'C'
		}
		glyph := '█'
		if c.Mono || c.ASCII {
			glyph = letter
		}
		c.Set(x+i, y, glyph, Style{Fg: ink})
	}
	if whole == 0 {
		c.Set(x, y, '·', dim)
	}
}

// flameName returns the chain of functions of a node on one line. Of more than two functions, it names the first and the last, and
// the number of functions between them.
func flameName(n *source.FlameNode) string {
	switch k := len(n.Functions); {
	case n.Depth == 0 || k == 0:
		return "all stacks"
	case k <= 2:
		return strings.Join(n.Functions, " › ")
	default:
		return n.Functions[0] + " › … " + strconv.Itoa(k-2) + " … › " + n.Functions[k-1]
	}
}

// flameOrigin says how many stacks were sampled and recorded, and for how much of the span there are stacks.
func flameOrigin(f *source.Flame) string {
	var from []string
	if f.Sampled > 0 {
		from = append(from, plural(float64(f.Sampled), "sampled stack"))
	}
	if f.Recorded > 0 {
		from = append(from, plural(float64(f.Recorded), "recorded stack"))
	}
	if len(from) == 0 {
		from = []string{"no stacks"}
	}
	return fmt.Sprintf("estimated from %s, for %s of %s", strings.Join(from, " and "),
		units.Age(time.Duration(f.Seconds*float64(time.Second))), units.Age(f.To.Sub(f.From)))
}

// flameEmpty says why a flame graph has no stacks.
func flameEmpty(f *source.Flame, filtered bool) string {
	switch {
	case f.Seconds == 0:
		return "No stack has been taken in this time. Stacks are taken once a second while a screen shows this view or phrases, " +
			"and by a worker that records stacks."
	case filtered:
		return "No stack passes the filter on this side."
	}
	return "No session was active on this side when stacks were taken."
}

// flameKeys returns a key for each node: the first functions of the nodes from the root to this node.
func flameKeys(f *source.Flame) []string {
	keys, path := make([]string, len(f.Nodes)), []string{"flame:"}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		path = path[:min(max(n.Depth, 0), len(path))]
		before, name := "flame:", ""
		if len(path) > 0 {
			before = path[len(path)-1]
		}
		if len(n.Functions) > 0 {
			name = n.Functions[0]
		}
		keys[i] = before + "\x00" + name
		path = append(path, keys[i])
	}
	return keys
}
