package view

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// session draws the page Session.
func (c *canvas) session(y, end int) {
	s := c.d.Session
	if c.d.PID != c.s.PID && s != nil && (s.Now == nil || s.Now.ServerPID != c.s.PID) {
		c.Text(1, y, c.Width, dim, "reading …")
		return
	}
	if s == nil {
		c.Text(1, y, c.Width, bold, strconv.Itoa(c.s.PID))
		c.failed(y+1, c.Width, "session")
		return
	}
	y = c.identity(y, s)
	y = c.strip(y, s)
	if Wide(c.Width) {
		half := c.Width/2 + 2
		c.panel(panelStack, 1, y, half-2, end)
		middle := y + (end-y)/2
		c.panel(panelPlan, half, y, c.Width-1, middle-1)
		c.panel(panelMemory, half, middle, c.Width-1, end)
		return
	}
	c.panel(c.s.Panel, 1, y, c.Width-1, end)
}

// identity draws the process and its statement, and returns the next line.
func (c *canvas) identity(y int, s *source.Session) int {
	n := s.Now
	if n == nil {
		c.Text(1, y, c.Width, alarm, fmt.Sprintf("✗ process %d has ended, or is not in the newest sample", c.s.PID))
		return y + 1
	}
	x := c.Text(1, y, c.Width, bold, strconv.Itoa(n.ServerPID))
	x = c.Text(x+1, y, c.Width, code, cmp.Or(n.Application, n.Type))
	for _, part := range []string{userAt(n), n.Client} {
		if part != "" {
			x = c.Text(x+2, y, c.Width-1, plain, part)
		}
	}
	if m := memoryOf(n); m != "" {
		c.Text(x+2, y, c.Width-1, plain, m+" of private memory")
	}
	y++
	state := cmp.Or(n.State, n.Type)
	if n.StateStart != nil {
		state += " for " + units.Age(s.Time.Sub(*n.StateStart))
	}
	if n.XactStart != nil {
		state += ", transaction " + units.Age(s.Time.Sub(*n.XactStart))
	}
	x = c.Text(1, y, c.Width-1, plain, state)
	if n.Class != "" {
		ink, _ := inkOf(n.Class)
		x = c.Text(x+2, y, c.Width-1, Style{Fg: ink, Bold: true}, waitOf(n))
	}
	if len(n.Blockers) > 0 {
		x = c.Text(x+2, y, c.Width-1, alarm, "blocked by "+blockers(n))
	} else if n.BlockersUnknown != "" {
		x = c.Text(x+2, y, c.Width-1, warn, "blockers: "+n.BlockersUnknown)
	}
	if len(s.Blocked) > 0 {
		c.Text(x+2, y, c.Width-1, alarm, "blocks "+plural(float64(len(s.Blocked)), "session")+" directly")
	}
	y++
	lines := 2
	if c.Height >= tall {
		lines = 4
	}
	text := n.Query
	if n.Class == "" && text != "" {
		text = "last statement: " + text
	}
	if text == "" {
		text = "no statement"
	}
	for _, line := range Wrap(text, c.Width-2, lines) {
		c.Text(1, y, c.Width, plain, line)
		y++
	}
	return y
}

func blockers(n *source.SessionLine) string {
	const most = 4
	var names []string
	for i := range n.Blockers {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(n.Blockers)-most))
			break
		}
		name := strconv.Itoa(n.Blockers[i].PID)
		if n.Blockers[i].PID == 0 {
			name = cmp.Or(n.Blockers[i].GID, "a prepared transaction")
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// strip draws the waits of the process over time, and returns the next line.
func (c *canvas) strip(y int, s *source.Session) int {
	w := c.Width - 2
	shown := c.s.SpanAt(s.Time)
	from, length := shown.From, c.s.Window()
	seconds := map[string]time.Duration{}
	for i := range w {
		at := from.Add(time.Duration((float64(i) + 0.5) / float64(w) * float64(length)))
		for k := range s.Waits {
			x := &s.Waits[k]
			if at.Before(x.From) || !at.Before(x.To) {
				continue
			}
			ink, letter := inkOf(x.Class)
			glyph := '█'
			if x.Class == "" { // only idle in a transaction, as samples have no other sessions without a class
				ink, letter, glyph = Gray, '-', '▁'
			}
			if c.Mono || c.ASCII {
				glyph = letter
			}
			c.Set(1+i, y, glyph, Style{Fg: ink})
			break
		}
	}
	for k := range s.Waits {
		x := &s.Waits[k]
		seconds[x.Event] += x.To.Sub(x.From)
	}
	y++
	x := c.Text(1, y, c.Width, dim, from.Local().Format("15:04:05"))
	var events []string
	for event := range seconds {
		events = append(events, event)
	}
	sortBy(events, func(e string) time.Duration { return seconds[e] })
	for _, event := range events {
		text := event + " " + units.Age(seconds[event])
		if x+3+len(text) > c.Width-10 {
			break
		}
		x = c.Text(x+3, y, c.Width-10, plain, text)
	}
	if len(events) == 0 {
		c.Text(x+3, y, c.Width-10, dim, "not active in these samples")
	}
	c.Right(c.Width-1, y, dim, shown.To.Local().Format("15:04:05"))
	return y + 1
}

// sortBy sorts names, the longest time first.
func sortBy(names []string, of func(string) time.Duration) {
	for i := range names { // an insertion sort, as there are few values
		for j := i; j > 0 && (of(names[j]) > of(names[j-1]) || of(names[j]) == of(names[j-1]) && names[j] < names[j-1]); j-- {
			names[j], names[j-1] = names[j-1], names[j]
		}
	}
}

// panelLine is a line of a panel: a dim prefix (lead), and a text in a style.
type panelLine struct {
	lead  string
	text  string
	style Style
}

// panelTitle returns the name of a panel, and a note about its data, such as the time.
func (c *canvas) panelTitle(panel int) (title, note string) {
	held := "live, not stopped"
	switch {
	case !c.s.Live():
		held = "not live"
	case c.s.Held:
		held = "held, not stopped"
	}
	switch panel {
	case panelStack:
		title = "Stack"
		if k := c.d.Stack; k != nil {
			note = held + " (" + engineWords(k.Engine) + "), " + k.Time.Local().Format("15:04:05")
		}
	case panelPlan:
		title = "Plan"
		if p := c.d.Plan; p != nil {
			note = held + " (" + engineWords(p.Engine) + "), " + p.Time.Local().Format("15:04:05")
		}
	case panelMemory:
		title = "Memory contexts"
		if m := c.d.Memory; m != nil {
			note = units.Size(max(0, m.TotalBytes)) + ", " + units.Size(max(0, m.FreeBytes)) + " of it free"
			if m.ResidentBytes != nil {
				note += ", resident " + units.Size(max(0, *m.ResidentBytes))
			}
			note += ", " + m.Time.Local().Format("15:04:05")
		}
	}
	return title, note
}

// engineWords returns the method by which memory was copied, in words. The word "blocked" alone could be taken for the
// state of the session.
func engineWords(engine string) string {
	if engine == "blocked" {
		return "it sleeps in a system call"
	}
	return engine
}

// panel draws one of the panels Stack, Plan and Memory into a part of the screen.
func (c *canvas) panel(panel, x, y, limit, end int) {
	if y >= end {
		return
	}
	current := panel == c.s.Panel
	style := bold
	if current {
		style.Underline = true
	}
	title, note := c.panelTitle(panel)
	at := c.Text(x, y, limit, style, title)
	at = c.Text(at+2, y, limit, dim, note)
	if !Wide(c.Width) {
		others := ""
		for p := range numPanels {
			if p != panel {
				name, _ := c.panelTitle(p)
				others += "  " + name
			}
		}
		if at+len(others) < limit {
			c.Right(limit, y, dim, "Tab:"+others)
		}
	}
	y++
	lines := panelLines(panel, c.d)
	first := 0
	if current {
		first = min(c.s.Scroll, max(0, len(lines)-1))
	}
	for i := first; i < len(lines) && y < end; i++ {
		if y == end-1 && i < len(lines)-1 {
			c.Text(x, y, limit, dim, fmt.Sprintf("↓ %d more lines", len(lines)-i))
			return
		}
		at := c.Text(x, y, limit, dim, lines[i].lead)
		c.Text(at, y, limit, lines[i].style, lines[i].text)
		y++
	}
}

// panelLines returns the lines of a panel.
func panelLines(panel int, d *Data) (list []panelLine) {
	if d == nil {
		return nil
	}
	name := []string{"stack", "plan", "memory"}[panel]
	add := func(s Style, lead, text string) { list = append(list, panelLine{lead, text, s}) }
	if text := d.Errors[name]; text != "" {
		for _, line := range strings.SplitN(text, "\n", 5) {
			add(alarm, "✗ ", line)
		}
		return list
	}
	switch {
	case panel == panelStack && d.Stack != nil:
		stackLines(d.Stack, add)
	case panel == panelPlan && d.Plan != nil:
		planLines(d.Plan, add)
	case panel == panelMemory && d.Memory != nil:
		memoryLines(d.Memory, add)
	default:
		add(dim, "", "reading …")
	}
	return list
}

func stackLines(k *source.Stack, add func(Style, string, string)) {
	if k.Phrase != "" {
		add(code, "", k.Phrase)
	}
	if k.Advice != "" {
		add(dim, "", k.Advice)
	}
	for _, f := range k.Kernel {
		add(warn, "  kernel ", f)
	}
	for i := range k.Frames {
		f := &k.Frames[i]
		text, style := f.Function, plain
		if !f.Named {
			style = dim
		}
		if f.Place != "" {
			text += " " + f.Place
		}
		add(style, fmt.Sprintf("%3s ", "#"+strconv.Itoa(i)), text)
		for _, level := range f.Levels {
			add(code, "      ", oneLine(level))
		}
	}
	if k.Stop != "" {
		add(warn, "✗ ", "the stack ends here: "+k.Stop)
	}
}

func planLines(p *source.Plan, add func(Style, string, string)) {
	if len(p.Levels) == 0 {
		add(dim, "", "The process executes no plan now: it is idle, plans, starts or ends a statement, or runs a utility command.")
	}
	if p.Phrase != "" {
		add(code, "", p.Phrase)
	}
	if p.Unproven && len(p.Levels) > 0 {
		add(dim, "", "The layout of this build is unproven: plan --calibrate compares it with EXPLAIN.")
	}
	for i := range p.Levels {
		l := &p.Levels[i]
		if i > 0 || len(p.Levels) > 1 {
			add(bold, fmt.Sprintf("level %d: ", i+1), oneLine(l.Statement))
		}
		for line := range strings.Lines(l.Text) {
			style := plain
			if strings.HasPrefix(strings.TrimSpace(line), "=>") {
				style = code
			}
			add(style, "", strings.TrimRight(line, "\n"))
		}
		if l.Reason != "" {
			add(warn, "✗ ", l.Reason)
		}
	}
	if !p.Whole && len(p.Levels) > 0 {
		add(warn, "✗ ", "The stack could not be followed to its end: outer statements may be missing.")
	}
}

func memoryLines(m *source.Memory, add func(Style, string, string)) {
	if m.Inexact != "" {
		add(warn, "✗ ", m.Inexact)
	}
	for i := range m.Contexts {
		x := &m.Contexts[i]
		text := x.Name
		if x.Contexts > 1 {
			text += " ×" + strconv.Itoa(x.Contexts)
		}
		add(plain, fmt.Sprintf("%9s  ", units.Size(max(0, x.TotalBytes))), text)
	}
}
