package view

import (
	"fmt"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// Styles by their role.
var (
	plain  = Style{}                          //nolint:gochecknoglobals // a constant
	bold   = Style{Bold: true}                //nolint:gochecknoglobals // a constant
	dim    = Style{Dim: true}                 //nolint:gochecknoglobals // a constant
	bar    = Style{Reverse: true, Bold: true} //nolint:gochecknoglobals // a constant
	chosen = Style{Reverse: true}             //nolint:gochecknoglobals // a constant
	alarm  = Style{Fg: Red, Bold: true}       //nolint:gochecknoglobals // a constant
	warn   = Style{Fg: Gold, Bold: true}      //nolint:gochecknoglobals // a constant
	code   = Style{Fg: Blue, Bold: true}      //nolint:gochecknoglobals // a constant
	live   = Style{Reverse: true}             //nolint:gochecknoglobals // a constant
)

// inkOf returns the colour and the letter of a wait class. The letter is drawn where the terminal has no colours.
func inkOf(class string) (Ink, rune) {
	switch class {
	case source.CPU:
		return Green, 'C'
	case source.IO:
		return Blue, 'I'
	case source.LWLock:
		return Pink, 'W'
	case source.Lock:
		return Red, 'L'
	case source.BufferPin:
		return Teal, 'B'
	case source.IPC:
		return Purple, 'P'
	case source.Client:
		return Orange, 'N'
	case source.Timeout:
		return Gold, 'T'
	case source.Extension:
		return Brown, 'E'
	case source.Injection:
		return Orchid, 'J'
	}
	return Gray, 'O'
}

// Sizes of the screen.
const (
	headLines = 2
	footLines = 1
	wideFrom  = 120 // columns from which panels stand side by side
	// memoryFrom is the number of columns from which the list of sessions has their memory.
	memoryFrom = 140
	smallest   = 40 // columns
	narrow     = 64 // columns; in narrower screens, only the chosen page has its name in the heading
	fewest     = 10 // lines
	tall       = 34 // lines from which rows have more text
)

// Wide reports whether a screen of this width shows all panels of the page Session.
func Wide(width int) bool { return width >= wideFrom }

// canvas is the state of the drawing functions.
type canvas struct {
	*Grid

	s   *State
	d   *Data
	now time.Time

	reasons map[string]bool // reasons for missing data that were already drawn on this page
}

// Draw draws the chosen page at the time now. d is nil before the first answer.
func Draw(g *Grid, s *State, d *Data, now time.Time) {
	c := &canvas{Grid: g, s: s, d: d, now: now}
	if g.Width < smallest || g.Height < fewest {
		g.Text(0, 0, g.Width, plain, fmt.Sprintf("too small: %dx%d, needs %dx%d", g.Width, g.Height, smallest, fewest))
		return
	}
	c.header()
	c.tabs()
	y, end := headLines, g.Height-footLines
	if d != nil && d.Info != nil {
		y = c.problems(y)
	}
	switch {
	case s.Help:
		c.help(y)
	case s.Result != nil:
		c.result(y, end)
	case d == nil || d.page != s.Page && !d.has(s.Page):
		g.Text(1, y, g.Width, dim, "reading …")
	case s.Page == PageLoad:
		c.load(y, end)
	case s.Page == PageWho:
		c.shareTable(y, end)
	case s.Page == PageBlocking:
		c.blocking(y, end)
	case s.Page == PageSession:
		c.session(y, end)
	case s.Page == PageFlame:
		c.flame(y, end)
	}
	c.footer()
}

// DrawWaiting draws the screen before there is any data. doing says what the program does, such as "looking for servers", and
// took is how long it has done that.
func DrawWaiting(g *Grid, doing string, took time.Duration) {
	for x := range g.Width {
		g.Set(x, 0, ' ', bar)
	}
	g.Text(1, 0, g.Width, bar, "pg_stat_backtrace top")
	text := doing + " …"
	if took >= time.Second {
		text += " " + units.Age(took.Truncate(time.Second))
	}
	g.Text(1, 2, g.Width, plain, text)
	x := g.Text(1, g.Height-1, g.Width, bold, "q")
	g.Text(x+1, g.Height-1, g.Width, dim, "quit")
}

// has reports whether d has the data that a page shows.
func (d *Data) has(p Page) bool {
	switch p {
	case PageLoad:
		return d.Load != nil
	case PageWho:
		return d.Who != nil || d.Comparison != nil
	case PageBlocking:
		return d.Blocking != nil
	case PageFlame:
		return d.Flame != nil
	case PageSession, numPages:
	}
	return d.Session != nil
}

// header draws the server and the age of the data.
func (c *canvas) header() {
	c.Fill(0, 0, c.Width, bar)
	for x := range c.Width {
		c.Set(x, 0, ' ', bar)
	}
	right := c.Width - 1
	if c.d != nil && c.d.Info != nil {
		right = c.age(right)
	}
	x := c.Text(1, 0, right-1, bar, "pg_stat_backtrace top")
	if c.d == nil || c.d.Info == nil {
		return
	}
	i := c.d.Info
	if i.Version > 0 {
		x = c.Text(x+2, 0, right-1, bar, "PostgreSQL "+strconv.Itoa(i.Version))
		if i.Port > 0 {
			x = c.Text(x, 0, right-1, live, ", port "+strconv.Itoa(i.Port))
		}
	}
	if i.Standby != nil && *i.Standby {
		x = c.Text(x, 0, right-1, live, ", standby")
	}
	if i.OwnPIDs {
		c.Text(x, 0, right-1, live, ", own process ids")
	}
}

// age draws the time and the age of the data, so that this text ends before the column right. It returns the text's first
// column.
func (c *canvas) age(right int) int {
	i := c.d.Info
	text := "no data yet"
	if !c.s.Live() {
		text = "◀ " + c.s.moment().Local().Format("2006-01-02 15:04:05 MST")
		if i.Last != nil && i.Past {
			text = "◀ recorded " + i.Last.Local().Format("2006-01-02 15:04:05 MST")
			if i.Recorded == "" {
				text = "◀ sampled " + i.Last.Local().Format("2006-01-02 15:04:05 MST")
			}
		}
		return c.Right(right, 0, bar, text)
	}
	if i.Last != nil {
		at := *i.Last
		if c.d.page == c.s.Page || c.s.Paused {
			at = earlier(at, c.d.Time)
		}
		old := c.now.Sub(at)
		clock := at.Local().Format("15:04:05 MST")
		switch {
		case c.s.Paused:
			text = "❚❚ stopped, data of " + clock
		case i.Error != "" || old > 3*time.Duration(i.IntervalSeconds*float64(time.Second))+time.Second:
			text = "✗ " + units.Age(old) + " old, " + clock
		default:
			text = "● live " + clock
			if c.s.Page == PageSession && c.s.Held {
				text = "❚ stack kept, the rest live " + clock
			}
		}
	}
	return c.Right(right, 0, bar, text)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// tabs draws the names of the pages.
func (c *canvas) tabs() {
	x := 0
	for i, name := range []string{"Load", "Who", "Blocking", "Session", "Flame"} {
		style := plain
		if Page(i) == c.s.Page {
			style = bar
		}
		text := fmt.Sprintf(" %d %s ", i+1, name)
		if c.Width < narrow && Page(i) != c.s.Page {
			text = fmt.Sprintf(" %d ", i+1)
		}
		x = c.Text(x, 1, c.Width, style, text)
		if Page(i) == PageBlocking && c.d != nil && c.d.Info != nil && c.d.Info.Sessions.Waiting > 0 {
			x = c.Text(x, 1, c.Width, alarm, "▲"+strconv.Itoa(c.d.Info.Sessions.Waiting))
		}
		x++
	}
	const help = "? help"
	if x+len(help) >= c.Width-1 {
		return
	}
	right := c.Right(c.Width-1, 1, dim, help)
	note := "last " + span(c.s.Window())
	if !c.s.Live() {
		note = spanText(c.s.Span, c.now)
		if x+len(note) > right-3 {
			note = span(c.s.Window())
		}
	}
	if x+Width(note) < right-2 {
		c.Right(right-2, 1, dim, note)
	}
}

// span returns a round duration in words.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	case d >= time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d >= time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}

// problems draws why data is missing, and the filter. It returns the next line.
func (c *canvas) problems(y int) int {
	i := c.d.Info
	if i.Error != "" {
		text := i.Error
		if i.Ended {
			text = "the server does not run: " + text
		}
		for _, line := range Wrap("✗ "+text, c.Width-2, 2) {
			c.Text(1, y, c.Width, alarm, line)
			y++
		}
	}
	if n := len(i.Missing); n > 0 {
		text := "✗ not read: " + i.Missing[0]
		if n > 1 {
			text += fmt.Sprintf(", and %d more", n-1)
		}
		c.Text(1, y, c.Width-1, warn, text)
		y++
	}
	if len(c.s.Filter) > 0 {
		lead, keys := "only", "(Backspace: wider, r: all)"
		if c.s.Page == PageBlocking || c.s.Page == PageSession { // these show all processes
			lead, keys = "filter of Load, Who and Flame:", "(r removes it)"
		}
		x := c.Text(1, y, c.Width, bold, lead)
		for _, f := range c.s.Filter {
			x = c.Text(x+1, y, c.Width-1, dim, string(f.By)+" =")
			name := f.Name
			if name == "" {
				name = f.Key
			}
			x = c.Text(x+1, y, min(c.Width-1, x+30), code, name)
		}
		c.Text(x+2, y, c.Width-1, dim, keys)
		y++
	}
	return y
}

// failed draws the reason why the data called name is missing, and returns the next line.
func (c *canvas) failed(y, limit int, name string) int {
	const x = 1
	text := c.d.Errors[name]
	if text == "" {
		text = "no data"
	}
	if c.reasons == nil {
		c.reasons = map[string]bool{}
	}
	if c.reasons[text] && text != "no data" {
		text = "no data: see above"
	}
	c.reasons[text] = true
	for _, line := range Wrap("✗ "+text, limit-x-1, 4) {
		c.Text(x, y, limit, alarm, line)
		y++
	}
	return y
}

// footer draws the last line: the text that the user types, or the message, or the keys and the cost of this program.
func (c *canvas) footer() {
	y := c.Height - 1
	switch {
	case c.s.typing != typingNothing:
		lead, hint := "/", ""
		switch c.s.typing {
		case typingTime:
			lead, hint = "time: ", "03:00, yesterday 03:00, 03:00..03:15, -2h; empty: live"
		case typingCompare:
			lead, hint = "compare with: ", "yesterday 03:00, -24h; empty: the time before"
		case typingSearch, typingNothing:
		}
		x := c.Text(1, y, c.Width-1, bold, lead+c.s.typed)
		c.Text(x, y, c.Width-1, chosen, " ")
		c.Text(x+3, y, c.Width-1, dim, hint)
		return
	case c.s.Message != "":
		lines := Wrap(c.s.Message, c.Width-2, 4)
		for i, line := range lines {
			at := c.Height - len(lines) + i
			for x := range c.Width {
				c.Set(x, at, ' ', plain)
			}
			c.Text(1, at, c.Width, bold, line)
		}
		return
	}
	right := c.Width - 1
	if c.d != nil && c.d.Info != nil && c.d.Info.CostPercent != nil {
		right = c.Right(right, y, dim, fmt.Sprintf("costs %.1f %% of a CPU", *c.d.Info.CostPercent)) - 1
	}
	x := 1
	keys := c.keys()
	if !c.s.Live() && c.s.Result == nil {
		keys = append([][2]string{{"0", "live"}, {"[]", "moment"}, {"<>", "earlier, later"}}, keys...)
	}
	for _, k := range keys {
		if x+Width(k[0])+1+Width(k[1]) > right {
			break
		}
		x = c.Text(x, y, right, bold, k[0])
		x = c.Text(x+1, y, right, dim, k[1]) + 2
	}
}

// keys returns the keys of the page and a word for the effect of each, the most useful first.
func (c *canvas) keys() [][2]string {
	if r := c.s.Result; r != nil {
		if r.runs() && !r.canceled {
			return [][2]string{{"Esc", "end it"}, {"↑↓", "scroll"}, {"y", "command"}}
		}
		return [][2]string{{"Esc", "close"}, {"↑↓", "scroll"}, {"/", "search"}, {"y", "command"}}
	}
	switch c.s.Page {
	case PageLoad:
		return [][2]string{{"↑↓", "select"}, {"Enter", "open"}, {"+-", "zoom"}, {"t", "time"},
			{"space", "stop"}, {"q", c.quits()}, {"y", "command"}, {"/", "search"}}
	case PageWho:
		return [][2]string{{"Tab", "by"}, {"Enter", "filter"}, {"Backspace", "back"},
			{"q", c.quits()}, {"v", "compare"}, {"+-", "zoom"}, {"y", "command"}, {"/", "search"}}
	case PageBlocking:
		return [][2]string{{"↑↓", "select"}, {"Enter", "session"}, {"space", "stop"}, {"q", c.quits()}, {"y", "command"}, {"/", "search"}}
	case PageFlame:
		return [][2]string{{"Tab", "on/off CPU"}, {"↑↓", "select"}, {"Backspace", "back"},
			{"+-", "zoom"}, {"q", c.quits()}, {"y", "command"}, {"/", "search"}}
	case PageSession, numPages:
	}
	if c.s.Held {
		return [][2]string{
			{"Esc", "live stack"}, {"c", "capture again"}, {"Tab", "panel"}, {"↑↓", "scroll"}, {"q", c.quits()}, {"y", "command"},
		}
	}
	return [][2]string{{"Tab", "panel"}, {"↑↓", "scroll"}, {"c", "capture now"}, {"Backspace", "back"}, {"q", c.quits()},
		{"p", "profile"}, {"w", "waits"}, {"y", "command"}}
}

// quits returns the word for the effect of the key q: back to the list of servers, or quit.
func (c *canvas) quits() string {
	if c.s.Listed {
		return "list"
	}
	return "quit"
}

// help draws all keys.
func (c *canvas) help(y int) {
	rows := [][2]string{
		{"1 2 3 4 5", "Load, Who, Blocking, Session, Flame"},
		{"↑ ↓ j k PgUp PgDn", "select a row, or scroll; also Home, End"},
		{"Enter", "open a finding or a session; in Who: filter by the row"},
		{"Backspace Esc", "back: remove the last filter, leave the session"},
		{"Tab ← →", "in Who: a property; in Session: a panel; in Flame: a side"},
		{"+ -", "a shorter or longer time: 1 min to 7 days"},
		{"t", "go to a time: 03:00, yesterday 03:00, 03:00..03:15, -2h"},
		{"← → [ ]", "in Load and Blocking (or in all views): another moment"},
		{"< > 0", "the time before; the time after; live"},
		{"space c", "stop the picture; in Session: capture, keep it until Esc"},
		{"p w i", "profile of 10 s; waits of a session; an incident"},
		{"v", "in Who: compare with another time, and end that"},
		{"/ n N", "search; next and previous match"},
		{"r y", "remove all filters; copy the command of this page"},
		{
			"m Ctrl-L Ctrl-Z q",
			"the mouse on or off; draw again, suspend, " + map[bool]string{false: "quit", true: "back to the list of servers"}[c.s.Listed],
		},
	}
	c.Text(1, y, c.Width, bold, "Keys")
	y++
	for _, r := range rows {
		c.Text(2, y, 22, bold, r[0])
		c.Text(23, y, c.Width, plain, r[1])
		y++
	}
	if c.Height > fewest+len(rows)+4 {
		y++
	}
	for _, note := range []string{
		"Active sessions are means over time. DB time is the time of all active sessions. CPU: the session has no wait event. It runs, " +
			"waits for a processor, or waits in code without a wait event.",
		"The line in the chart is the number of processors of the server. ┄ sampled by this program, ━ recorded, ═ means over minutes, ░ no data.", //nolint:lll // a text
	} {
		for _, line := range Wrap(note, c.Width-4, 3) {
			if y >= c.Height-footLines {
				return
			}
			c.Text(2, y, c.Width, dim, line)
			y++
		}
	}
}

// rows is a list of lines. It is drawn so that the selected line is visible.
type rows struct {
	lines []rowLine
}

// rowLine is a line; the key is empty for a line that cannot be selected.
type rowLine struct {
	key  string
	draw func(y int, selected bool)
}

func (r *rows) add(key string, draw func(y int, selected bool)) {
	r.lines = append(r.lines, rowLine{key, draw})
}

// draw draws as many lines as there is room for from line y to before line end.
func (r *rows) draw(c *canvas, y, end int) {
	selected := c.s.selected(c.d)
	at := 0
	for i := range r.lines {
		if r.lines[i].key != "" && r.lines[i].key == selected {
			at = i
			break
		}
	}
	height := end - y
	if height <= 0 {
		return
	}
	first := min(max(0, at-height+2), max(0, len(r.lines)-height))
	for i := first; i < len(r.lines) && i-first < height; i++ {
		line := &r.lines[i]
		if line.key != "" {
			c.Selectable(y+i-first, line.key)
		}
		line.draw(y+i-first, line.key != "" && line.key == selected)
	}
	if rest := len(r.lines) - first - height; rest > 0 {
		c.Right(c.Width-1, end-1, Style{Dim: true}, " ↓ "+units.Count(rest+1, "more line"))
	}
}

// pick marks line y as selected if selected is set. It returns the style for the text of the line; if the line is not
// selected, this is s.
func (c *canvas) pick(y int, selected bool, s Style) Style {
	if !selected {
		return s
	}
	for x := 1; x < c.Width; x++ {
		c.Set(x, y, ' ', chosen)
	}
	c.Set(0, y, '▸', bold)
	return chosen
}
