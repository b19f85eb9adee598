package view

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// load draws the page Load.
func (c *canvas) load(y, end int) {
	const low = 10 // with fewer lines, there is no chart: all lines are for findings and sessions
	switch {
	case c.d.Load == nil:
		y = c.failed(y, c.Width, "load")
	case end-y < low:
	default:
		height := min(max((end-y)*2/5, 5), 20)
		y = c.chart(y, height)
	}
	var r rows
	c.replay(&r)
	c.findings(&r)
	c.sessionRows(&r)
	r.draw(c, y, end)
}

// replay adds a line about the replay of a standby.
func (c *canvas) replay(r *rows) {
	i := c.d.Info
	if i == nil || i.Replay == nil || i.Last == nil {
		return
	}
	text, style := replayText(i.Replay, *i.Last), plain
	if i.Replay.Paused || i.Replay.Since != nil && i.Last.Sub(*i.Replay.Since) >= source.LongReplay {
		style = warn
	}
	for _, line := range Wrap(text, c.Width-2, 2) {
		r.add("", func(y int, _ bool) { c.Text(1, y, c.Width, style, line) })
	}
}

// replayText describes the replay of a standby at the time of a sample.
func replayText(x *source.Replay, at time.Time) string {
	text := "standby: it has received no WAL since its start"
	switch {
	case x.LagBytes == nil:
	case *x.LagBytes == 0:
		text = "standby: all received WAL is replayed"
	default:
		text = "standby: replay is " + units.Size(*x.LagBytes) + " behind the received WAL"
	}
	text += after(", and has not advanced for ", at, x.Since)
	if x.Paused {
		text += "; it is paused"
	}
	return text
}

// top returns the value at the top of an axis, and the distance between the marks of the axis. The value is a round number that
// is not smaller than the parameter most. marks is the wanted number of marks.
func top(most float64, marks int) (float64, float64) {
	step := math.Pow(10, math.Floor(math.Log10(math.Max(most, 1)/float64(marks))))
	step = math.Max(step, 0.1)
	for _, k := range []float64{1, 2, 5, 10, 20, 50} {
		if s := step * k; s*float64(marks) >= most {
			return math.Max(math.Ceil(most/s), 1) * s, s
		}
	}
	return most, most
}

const axisWidth = 7

// chart draws active sessions over time. height is the number of its lines, without headings and axis. It returns the next line.
func (c *canvas) chart(y, height int) int {
	l := c.d.Load
	x := c.Text(1, y, c.Width, bold, "active sessions")
	processors := 0.0
	if i := c.d.Info; i != nil {
		n := &i.Sessions
		if i.Last != nil {
			now := fmt.Sprintf("(now %d; %d idle in transaction, %d idle)", n.Active, n.IdleInTransaction, n.Idle)
			switch {
			case i.Past && c.d.Sessions == nil: // there is no sample of this moment
				now = ""
			case i.Past:
				now = fmt.Sprintf("(at %s: %d; %d idle in transaction)", i.Last.Local().Format("15:04:05"), n.Active, n.IdleInTransaction)
			}
			x = c.Text(x+1, y, c.Width, plain, now)
		}
		if processors = i.Processors; processors > 0 {
			x = c.Text(x+2, y, c.Width, dim, "─ "+plural(processors, "CPU"))
		}
	}
	if note := "column: " + units.Age(time.Duration(l.ColumnSeconds*float64(time.Second))); x+2+len(note) < c.Width {
		c.Right(c.Width-1, y, dim, note)
	}
	y++
	most := processors
	for i := range l.Columns {
		sum := 0.0
		for _, v := range l.Columns[i].Active {
			sum += v
		}
		most = math.Max(most, sum)
	}
	high, step := top(most*1.02, max(2, height/3))
	w := c.Width - axisWidth - 1
	for mark := step; mark <= high+step/2; mark += step {
		row := int(math.Round(mark / high * float64(height)))
		if row < height {
			c.Right(axisWidth-1, y+height-1-row, dim, strconv.FormatFloat(math.Round(10*mark)/10, 'f', -1, 64)) // a step is a multiple of 0.1
			c.Set(axisWidth-1, y+height-1-row, '┤', dim)
		}
	}
	line := -1
	if processors > 0 && processors <= high {
		line = min(height-1, int(math.Round(processors/high*float64(height))))
	}
	from, length := l.From, l.To.Sub(l.From)
	kinds, first := make([]source.Kind, w), -1
	for i := range w {
		at := from.Add(time.Duration((float64(i) + 0.5) / float64(w) * float64(length)))
		k := int(at.Sub(l.Columns[0].Time).Seconds() / l.ColumnSeconds)
		if k < 0 || k >= len(l.Columns) || l.Columns[k].Active == nil {
			continue
		}
		if first < 0 {
			first = i
		}
		kinds[i] = l.Columns[k].Kind
		c.column(axisWidth+i, y, height, high, l.Classes, l.Columns[k].Active)
	}
	if line >= 0 {
		c.line(axisWidth, y+height-1-line, w)
	}
	unsaid := c.gaps(y, height, first, w, y+height-1-line)
	y += height
	c.axis(y, w, from, length, kinds)
	c.markMoment(y, w)
	y = c.legend(y + 2)
	if len(unsaid) > 0 {
		c.Text(1, y, c.Width-1, warn, gapText(unsaid, len(l.Gaps) > len(unsaid)))
		y++
	}
	return y
}

// gapText describes gaps whose reason has no room in the chart. more is set if the chart has other gaps, with their reasons.
func gapText(gaps []source.Gap, more bool) string {
	all := time.Duration(0)
	for i := range gaps {
		all += gaps[i].To.Sub(gaps[i].From)
	}
	length, which := units.Age(all), "gaps"
	if more {
		length, which = "another "+length, "short gaps"
	}
	text := "░ no data for " + length + ": " + gaps[0].Reason
	if len(gaps) > 1 {
		text = fmt.Sprintf("░ no data for %s in %d %s, the last: %s", length, len(gaps), which, gaps[len(gaps)-1].Reason)
	}
	return text
}

// gaps marks the parts without data, and draws the reason in each part that has room for it. It returns the gaps whose reason it
// has not drawn. first is the first column with data, w the width, and line the screen line that shows the number of processors.
func (c *canvas) gaps(y, height, first, w, line int) (unsaid []source.Gap) {
	l := c.d.Load
	list := l.Gaps
	if c.s.Live() && (len(list) == 0 || !list[0].From.After(l.From)) && !c.sampledBefore(l.From) {
		c.gap(y, height, first, w, line)
		list = list[min(1, len(list)):]
	}
	position := func(t time.Time) int {
		return min(max(int(math.Round(float64(t.Sub(l.From))/float64(l.To.Sub(l.From))*float64(w))), 0), w)
	}
	for i := range list {
		a, b := position(list[i].From), position(list[i].To)
		if a == b {
			b = min(a+1, w)
		}
		for x := a; x < b; x++ {
			if c.At(axisWidth+x, y+height-1).Rune == ' ' {
				c.Set(axisWidth+x, y+height-1, '░', dim)
			}
		}
		lines := Wrap(list[i].Reason, b-a-2, 3)
		fits := b-a > 12 && height > len(lines)+2
		for _, text := range lines {
			fits = fits && Width(text) <= b-a-2
		}
		if !fits {
			unsaid = append(unsaid, list[i])
			continue
		}
		at := y + height/2 - 1
		if line >= at && line < at+len(lines) { // do not cover the line of the processors
			at = max(y, line-len(lines))
		}
		for k, text := range lines {
			c.Text(axisWidth+a+1, at+k, axisWidth+b, dim, text)
		}
	}
	return unsaid
}

// sampledBefore reports whether there are samples from before the time t. If so, a gap that begins at t is marked like any other
// gap.
func (c *canvas) sampledBefore(t time.Time) bool {
	return c.d.Info != nil && c.d.Info.First != nil && c.d.Info.First.Before(t)
}

// markMoment marks on the axis the moment whose sessions the page shows. It draws nothing on a live screen.
func (c *canvas) markMoment(y, w int) {
	l := c.d.Load
	if c.s.Live() || !l.To.After(l.From) {
		return
	}
	i := int(float64(c.s.moment().Sub(l.From)) / float64(l.To.Sub(l.From)) * float64(w))
	c.Set(axisWidth+min(max(i, 0), w-1), y, '▲', alarm)
}

func plural(n float64, noun string) string {
	text := strconv.FormatFloat(n, 'f', -1, 64) + " " + noun
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"):
		text += "es"
	default:
		text += "s"
	}
	return text
}

// gap draws why the left part of the chart, before the first column with data, is empty.
func (c *canvas) gap(y, height, first, w, line int) {
	if first < 0 {
		first = w
	}
	text := "no data before the first sample"
	if c.d.Info != nil && c.d.Info.First != nil {
		text = "no data before " + c.d.Info.First.Local().Format("15:04:05")
	}
	why := "a recorder (worker --record-dir) keeps it"
	if c.s.Connect != "" {
		why = "the worker takes samples while a screen is open"
	}
	if gaps := c.d.Load.Gaps; c.d.Info != nil && c.d.Info.Recorded != "" && len(gaps) > 0 {
		why = gaps[0].Reason
	}
	if first > len(text)+3 && height > 4 {
		at := y + height/2 - 1
		if line == at || line == at+1 { // do not cover the line of the processors
			at = line + 1 - 3*boolInt(line > y+height/2)
		}
		c.Text(axisWidth+1, at, axisWidth+first, dim, text)
		if first > len(why)+3 {
			c.Text(axisWidth+1, at+1, axisWidth+first, dim, why)
		}
	}
}

// column draws one column of the chart: the wait classes, one above the other, in eighths of a cell. high is the number of
// sessions at the top.
func (c *canvas) column(x, y, height int, high float64, classes []string, active []float64) {
	const parts = 8
	blocks := []rune(" ▁▂▃▄▅▆▇█")
	ends := make([]int, len(active)) // upper end of each class, in eighths of a cell
	sum := 0.0
	for i, v := range active {
		sum += v
		ends[i] = int(math.Round(sum / high * float64(height*parts)))
	}
	for row := range height {
		low := row * parts
		var size [2]int // sizes of the lowest two classes in this cell
		var ink [2]Ink
		var letter [2]rune
		n, at := 0, low
		for i, end := range ends {
			part := min(end, low+parts) - at
			if part <= 0 {
				continue
			}
			color, l := inkOf(classes[i])
			switch {
			case n < 2:
				size[n], ink[n], letter[n] = part, color, l
				n++
			case part > size[1]:
				size[1], ink[1], letter[1] = size[1]+part, color, l
			default:
				size[1] += part
			}
			at = min(end, low+parts)
		}
		if n == 0 {
			continue
		}
		all := size[0] + size[1]
		cellY := y + height - 1 - row
		big := 0
		if size[1] > size[0] {
			big = 1
		}
		switch {
		case c.Mono || c.ASCII:
			if all >= parts/2 || row == 0 {
				c.Set(x, cellY, letter[big], Style{Fg: ink[big]})
			}
		case all < parts: // the cell is not full: one colour on the background of the screen
			c.Set(x, cellY, blocks[max(1, all)], Style{Fg: ink[big]})
		case n == 1:
			c.Set(x, cellY, '█', Style{Fg: ink[0]})
		default:
			c.Set(x, cellY, blocks[size[0]], Style{Fg: ink[0], Bg: ink[1]})
		}
	}
}

// line draws the line that shows the number of processors.
func (c *canvas) line(x, y, w int) {
	for i := range w {
		cell := c.At(x+i, y)
		switch {
		case cell.Rune == ' ':
			c.Set(x+i, y, '─', dim)
		case c.Mono || c.ASCII:
			cell.Style.Underline = true
			c.Set(x+i, y, cell.Rune, cell.Style)
		case cell.Rune == '█':
			c.Set(x+i, y, '─', Style{Bg: cell.Style.Fg, Bold: true})
		case cell.Style.Bg != Plain:
			c.Set(x+i, y, '─', Style{Bg: cell.Style.Bg, Bold: true})
		}
	}
}

// axis draws the axis of time. The characters of the axis show the kind of data of each column.
func (c *canvas) axis(y, w int, from time.Time, length time.Duration, kinds []source.Kind) {
	c.Right(axisWidth-1, y, dim, "0")
	for i, k := range kinds {
		glyph := map[source.Kind]rune{source.KindNone: ' ', source.KindSampled: '┄', source.KindRecorded: '━', source.KindMinute: '═'}[k]
		c.Set(axisWidth+i, y, glyph, dim)
	}
	note := ""
	for i, k := range []source.Kind{source.KindSampled, source.KindRecorded, source.KindMinute} {
		if slices.Contains(kinds, k) {
			note += []string{" ┄ sampled", " ━ recorded", " ═ minutes"}[i]
		}
	}
	right := axisWidth + w
	if note != "" {
		right = c.Right(right, y+1, dim, note)
	}
	layout := clockLayout(length)
	clock := len(layout)
	marks := max(1, w/20)
	for m := range marks {
		i := m * w / marks
		at := from.Add(time.Duration(float64(i) / float64(w) * float64(length)))
		c.Set(axisWidth+i, y, '┬', dim)
		if axisWidth+i+clock < right {
			c.Text(axisWidth+i, y+1, axisWidth+w, dim, at.Local().Format(layout))
		}
	}
}

// legend draws the mean active sessions of each wait class, the largest first. It returns the next line.
func (c *canvas) legend(y int) int {
	l := c.d.Load
	if l.Seconds == 0 {
		return y
	}
	sum := 0.0
	order := make([]int, len(l.Active))
	for i, v := range l.Active {
		sum += v
		order[i] = i
	}
	for i := range order { // an insertion sort, as there are few values
		for j := i; j > 0 && l.Active[order[j]] > l.Active[order[j-1]]; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	x := c.Text(1, y, c.Width, bold, "average "+figure(sum))
	for _, i := range order {
		ink, letter := inkOf(l.Classes[i])
		text := l.Classes[i] + " " + figure(l.Active[i])
		if x+4+len(text) > c.Width {
			c.Text(x+1, y, c.Width, dim, "…")
			break
		}
		if c.Mono || c.ASCII {
			c.Set(x+2, y, letter, bold)
		} else {
			c.Set(x+2, y, '■', Style{Fg: ink})
		}
		x = c.Text(x+4, y, c.Width, plain, text)
	}
	if sum == 0 {
		c.Text(x+2, y, c.Width, dim, "no session was active")
	}
	return y + 1
}

// figure formats a mean number of sessions.
func figure(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.05:
		return "<0.1"
	case v < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// percent formats a share in percent.
func percent(v float64) string {
	if v > 0 && v < 0.5 {
		return "<1 %"
	}
	return fmt.Sprintf("%.0f %%", v)
}

// findings adds the findings to the rows.
func (c *canvas) findings(r *rows) {
	f := c.d.Findings
	if f == nil {
		r.add("", func(y int, _ bool) { c.failed(y, c.Width, "findings") })
		return
	}
	r.add("", func(y int, _ bool) {
		if len(f.Findings) == 0 {
			x := c.Text(1, y, c.Width, bold, "no findings")
			if i := c.d.Info; i != nil && i.First != nil && !i.Past {
				if sampled := f.Time.Sub(*i.First); sampled < source.RulesNeed {
					c.Text(x+2, y, c.Width, warn, fmt.Sprintf("some rules need %s of samples, %s so far",
						units.Age(source.RulesNeed), units.Age(sampled)))
				}
			}
			return
		}
		x := c.Text(1, y, c.Width, bold, "findings "+strconv.Itoa(len(f.Findings)))
		c.Text(x+2, y, c.Width, dim, "the worst first")
		c.Right(c.Width-1, y, dim, "for       % DB time")
	})
	selected := c.s.selected(c.d)
	for i := range f.Findings {
		x := &f.Findings[i]
		key := "finding:" + x.Key
		lines := []string{x.Text}
		if roomy := c.Height >= tall; strings.TrimSpace(x.Text) != "" && (roomy || selected == key) {
			lines = c.findingLines(x.Text)
		}
		r.add(key, func(y int, selected bool) {
			mark := alarm
			if x.Severity != source.Critical {
				mark = warn
			}
			style := c.pick(y, selected, bold)
			if selected {
				mark = chosen
			}
			c.Set(1, y, '▲', mark)
			age := after("", f.Time, &x.Since)
			if x.AtLeast && age != "" {
				age = "≥ " + age
				if c.ASCII {
					age = ">" + age[len("≥"):]
				}
			}
			share := ""
			if x.Share != nil {
				share = percent(*x.Share)
			}
			c.Right(c.Width-1, y, style, share)
			c.Right(c.Width-8, y, style, age)
			c.Text(3, y, c.findingEnd(), style, lines[0])
		})
		for _, line := range lines[1:] {
			r.add("", func(y int, _ bool) { c.Text(3, y, c.Width-1, bold, line) })
		}
		if x.Detail != "" && c.Height >= tall || selected == key {
			r.add("", func(y int, _ bool) {
				c.Text(5, y, c.Width-1, dim, strings.TrimSuffix(sinceClock(x, f.Time)+"; "+x.Detail, "; "))
			})
		}
	}
	for _, text := range f.Unknown {
		r.add("", func(y int, _ bool) { c.Text(1, y, c.Width-1, warn, "✗ "+text) })
	}
}

// findingLines breaks the text of a finding into at most three lines. Only the first one has figures beside it.
func (c *canvas) findingLines(text string) []string {
	words := strings.Join(strings.Fields(oneLine(text)), " ")
	first := Wrap(words, c.findingEnd()-3, len(words))
	if len(first) < 2 { //nolint:mnd // a second line
		return first
	}
	return append(first[:1], Wrap(strings.TrimPrefix(words, first[0]), c.Width-4, 2)...)
}

// sinceClock says when a finding began, in local time. The date is added if it is not the date of now, the time of the sample.
func sinceClock(x *source.Finding, now time.Time) string {
	layout, before := "15:04:05 MST", ""
	if since := x.Since.Local(); since.YearDay() != now.Local().YearDay() || since.Year() != now.Local().Year() {
		layout = "2006-01-02 " + layout
	}
	if x.AtLeast {
		before = "or before"
	}
	return strings.TrimSpace("since " + x.Since.Local().Format(layout) + " " + before)
}

// findingEnd returns the column before which the text of a finding ends.
func (c *canvas) findingEnd() int { return c.Width - 20 }

// sessionRows adds the sessions of the newest sample to the rows.
func (c *canvas) sessionRows(r *rows) {
	list := c.d.Sessions
	if list == nil {
		r.add("", func(y int, _ bool) { c.failed(y, c.Width, "sessions") })
		return
	}
	heads := []string{"sessions", "application", "for", "wait or state", "phrase, statement"}
	columns := []int{3, 10, 24, 35, 54}
	wide := c.Width >= wideFrom
	if wide {
		heads = slices.Insert(heads, 2, "user@database")
		columns = []int{3, 11, 29, 53, 66, 89}
	}
	memory := c.Width >= memoryFrom && slices.ContainsFunc(list.Sessions, func(s source.SessionLine) bool { return s.PrivateBytes > 0 })
	if memory {
		heads = slices.Insert(heads, 4, "memory")
		columns = []int{3, 11, 29, 53, 65, 75, 98}
	}
	cells := func(s *source.SessionLine) []string {
		list := []string{strconv.Itoa(s.ServerPID), cmp.Or(s.Application, s.Type), age(list.Time, s), waitOf(s)}
		if wide {
			list = slices.Insert(list, 2, userAt(s))
		}
		if memory {
			list = slices.Insert(list, 4, memoryOf(s))
		}
		return list
	}
	c.fitSessions(columns, list.Sessions, cells)
	r.add("", func(y int, _ bool) {
		for i, h := range heads {
			limit := c.Width
			if i+1 < len(columns) {
				limit = columns[i+1] - 1
			}
			c.Text(columns[i]-2*boolInt(i == 0), y, limit, heading(i == 0), h)
		}
	})
	for i := range list.Sessions {
		s := &list.Sessions[i]
		r.add(sessionKey(s), func(y int, selected bool) {
			style := plain
			if s.Class == "" {
				style = dim
			}
			style = c.pick(y, selected, style)
			row := cells(s)
			for i, text := range row {
				cs := style
				if i == len(row)-1 && s.Class != "" && !selected {
					ink, _ := inkOf(s.Class)
					cs = Style{Fg: ink}
				}
				c.Text(columns[i], y, columns[i+1]-1, cs, text)
			}
			x := columns[len(row)]
			if s.Own {
				x = c.Text(x, y, c.Width-1, style, "(of pg_stat_backtrace, by its name)") + 2
			}
			if s.Phrase != "" {
				ts := style
				if !selected {
					ts = code
				}
				x = c.Text(x, y, c.Width-1, ts, oneLine(s.Phrase)) + 2
			}
			if x < c.Width-1 {
				c.Text(x, y, c.Width-1, style, oneLine(s.Query))
			}
		})
	}
	if list.More > 0 {
		r.add("", func(y int, _ bool) { c.Text(3, y, c.Width, dim, "and "+units.Count(list.More, "more session")) })
	}
	if len(list.Sessions) == 0 {
		r.add("", func(y int, _ bool) { c.Text(3, y, c.Width, dim, "no session") })
	}
}

// fitSessions moves the columns of the list of sessions, so that times, memory and waits are whole. For that, first the user and
// then the application get less room, but they get more if the phrases need none. columns has the first cell of each column and of
// the phrase.
func (c *canvas) fitSessions(columns []int, sessions []source.SessionLine, cells func(*source.SessionLine) []string) {
	const least, phrase, application = 9, 20, 1 // cells of a name with its gap, and of a phrase; the column of the application
	n := len(columns) - 1
	widths, natural := make([]int, n), make([]int, n)
	for k := range n {
		widths[k] = columns[k+1] - columns[k]
	}
	for i := range sessions {
		for k, text := range cells(&sessions[i]) {
			natural[k] = max(natural[k], Width(text)+1)
		}
	}
	names := 1 // or 2: application and user
	if n > 4 { //nolint:mnd // process, application, user, time, wait
		names = 2
	}
	rest := c.Width - 1 - columns[0]
	for k := range widths {
		if k > names {
			widths[k] = max(widths[k], natural[k])
		}
		rest -= widths[k]
	}
	for k := names; k >= application; k-- {
		if less := min(phrase-rest, widths[k]-min(least, natural[k])); less > 0 {
			widths[k], rest = widths[k]-less, rest+less
		}
	}
	for k := application; k <= names; k++ {
		if more := min(rest-phrase, natural[k]-widths[k]); more > 0 {
			widths[k], rest = widths[k]+more, rest-more
		}
	}
	for k := range widths {
		columns[k+1] = columns[k] + widths[k]
	}
}

// memoryOf returns the private memory of a process; empty: not known.
func memoryOf(s *source.SessionLine) string {
	if s.PrivateBytes == 0 {
		return ""
	}
	return units.Size(s.PrivateBytes)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func heading(first bool) Style {
	if first {
		return bold
	}
	return dim
}

// oneLine returns the first 2,000 bytes of a text on one line.
func oneLine(text string) string {
	const most = 2000
	return strings.Join(strings.Fields(text[:min(len(text), most)]), " ")
}

// userAt names the user and the database.
func userAt(s *source.SessionLine) string {
	user, database := nameOr(s.User, s.UserOID), nameOr(s.Database, s.DatabaseOID)
	switch {
	case user == "" && database == "":
		return ""
	case database == "":
		return user
	}
	return user + "@" + database
}

func nameOr(name string, oid uint32) string {
	if name == "" && oid != 0 {
		return "oid " + strconv.FormatUint(uint64(oid), 10)
	}
	return name
}

// age returns how long the statement of an active session has run, or how long another session has had its state.
func age(at time.Time, s *source.SessionLine) string {
	t := s.QueryStart
	if s.Class == "" || t == nil {
		t = s.StateStart
	}
	return after("", at, t)
}

// after returns a text and the time from since to at; "": since is nil, or in the future because the clocks differ.
func after(text string, at time.Time, since *time.Time) string {
	if since == nil || units.Ahead(at, *since) {
		return ""
	}
	return text + units.Age(at.Sub(*since))
}

// waitOf returns the wait event of an active session, otherwise the state.
func waitOf(s *source.SessionLine) string {
	switch {
	case s.Class == "":
		return s.State
	case s.Wait == nil:
		return source.CPU
	}
	return s.Wait.Type + ":" + s.Wait.Event
}
