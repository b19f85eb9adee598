package view

import (
	"cmp"
	"fmt"
	"slices"
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
	parts := []panelLine{{text: strconv.Itoa(n.ServerPID), style: bold}, {text: cmp.Or(n.Application, n.Type), style: code}}
	if n.PID != n.ServerPID {
		parts = slices.Insert(parts, 1, panelLine{text: fmt.Sprintf("host_pid %d", n.PID)})
	}
	for _, text := range []string{userAt(n), n.Client} {
		if text != "" {
			parts = append(parts, panelLine{text: text})
		}
	}
	if m := memoryOf(n); m != "" {
		parts = append(parts, panelLine{text: m + " of private memory"})
	}
	for _, text := range usedBy(s.Used) {
		parts = append(parts, panelLine{text: text})
	}
	y = c.flow(y, parts)
	state := cmp.Or(n.State, n.Type)
	state += after(" for ", s.Time, n.StateStart)
	parts = []panelLine{{text: state}}
	if open := after("transaction open for ", s.Time, n.XactStart); open != "" {
		parts = append(parts, panelLine{text: open})
	}
	if n.Class != "" {
		ink, _ := inkOf(n.Class)
		parts = append(parts, panelLine{text: waitOf(n), style: Style{Fg: ink, Bold: true}})
	}
	y = c.flow(y, parts)
	style, relations := alarm, ""
	switch {
	case len(n.Blockers) > 0:
		relations = "blocked by " + cmp.Or(s.Blocker, blockers(n))
	case n.BlockersUnknown != "":
		style, relations = warn, "blockers: "+n.BlockersUnknown
	}
	if len(s.Blocked) > 0 {
		relations += "; blocks " + plural(float64(len(s.Blocked)), "session") + " directly"
	}
	for _, line := range Wrap(strings.TrimPrefix(relations, "; "), c.Width-2, 2) {
		c.Text(1, y, c.Width, style, line)
		y++
	}
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

// usedBy describes what a process used of processors and disks; nil: nothing is known.
func usedBy(u *source.Used) (parts []string) {
	if u == nil {
		return nil
	}
	if p := u.ProcessorPercent; p != nil {
		parts = append(parts, fmt.Sprintf("%.0f %% of a processor", *p))
	}
	if u.ReadBytes != nil && u.WrittenBytes != nil {
		parts = append(parts, fmt.Sprintf("disk: reads %s/s, writes %s/s", units.Size(int64(*u.ReadBytes)), units.Size(int64(*u.WrittenBytes))))
	}
	return parts
}

// flow draws parts beside each other, and on the next line the parts for which there is no room. It returns the line after them.
func (c *canvas) flow(y int, parts []panelLine) int {
	const gap = 2
	x := 1
	for i := range parts {
		if x > 1 && x+Width(parts[i].text) > c.Width-1 {
			x, y = 1, y+1
		}
		x = c.Text(x, y, c.Width-1, parts[i].style, parts[i].text) + gap
	}
	return y + 1
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
	// sentence is set for a text in words, which continues on the next lines if it is too long.
	sentence bool
}

// broken returns the lines for a panel of this width.
func broken(lines []panelLine, width int) (list []panelLine) {
	const most = 4
	for _, line := range lines {
		parts := []string{line.text}
		if line.sentence {
			parts = Wrap(line.text, max(1, width-Width(line.lead)), most)
		}
		for i, text := range parts {
			lead := line.lead
			if i > 0 {
				lead = strings.Repeat(" ", Width(lead))
			}
			list = append(list, panelLine{lead: lead, text: text, style: line.style})
		}
	}
	return list
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
			note = k.Time.Local().Format("15:04:05") + ", " + held + " (" + engineWords(k.Engine) + ")"
		}
	case panelPlan:
		title = "Plan"
		if p := c.d.Plan; p != nil && len(p.Levels) == 0 && p.Progress != nil {
			note = p.Progress.Time.Local().Format("15:04:05") + ", " + p.Progress.View
		} else if p != nil && p.Engine != "" {
			note = p.Time.Local().Format("15:04:05") + ", " + held + " (" + engineWords(p.Engine) + ")"
		}
	case panelMemory:
		title = "Memory contexts"
		if m := c.d.Memory; m != nil {
			note = m.Time.Local().Format("15:04:05") + ", " + units.Size(max(0, m.TotalBytes)) + ", " +
				units.Size(max(0, m.FreeBytes)) + " of it free"
			if m.ResidentBytes != nil {
				note += ", resident " + units.Size(max(0, *m.ResidentBytes))
			}
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
	lines := broken(panelLines(panel, c.d), limit-x)
	if current {
		c.s.panelWidth = limit - x
	}
	first := 0
	if current {
		first = min(c.s.Scroll, max(0, len(lines)-1))
	}
	for i := first; i < len(lines) && y < end; i++ {
		if y == end-1 && i < len(lines)-1 {
			c.Text(x, y, limit, dim, "↓ "+units.Count(len(lines)-i, "more line"))
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
	add := func(s Style, lead, text string) {
		// Sentences are in these styles; code without a prefix is a phrase.
		phrase := s == code && !strings.HasPrefix(text, "=>") && !strings.HasPrefix(text, " ")
		sentence := s == alarm || s == warn || lead == "" && (s == dim || phrase)
		list = append(list, panelLine{lead, text, s, sentence})
	}
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
	if x := p.Progress; x != nil {
		add(code, "", x.Text)
		for _, c := range x.Columns {
			add(plain, "  "+c.Name+": ", c.Value)
		}
	} else if len(p.Levels) == 0 {
		add(dim, "", "The process executes no plan now: it is idle, plans, starts or ends a statement, or runs a command without progress.")
	}
	if p.Phrase != "" {
		add(code, "", p.Phrase)
	}
	if p.Unproven && len(p.Levels) > 0 && p.Engine != "" {
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
	if !p.Whole && len(p.Levels) > 0 && p.Engine != "" {
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
