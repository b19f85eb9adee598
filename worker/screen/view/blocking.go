package view

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// blocking draws the page Blocking.
func (c *canvas) blocking(y, end int) {
	const panelFrom, panelWidth = 150, 54
	b := c.d.Blocking
	if b == nil {
		c.failed(y, c.Width, "blocking")
		return
	}
	for _, text := range b.Missing {
		c.Text(1, y, c.Width-1, warn, "✗ "+text)
		y++
	}
	if len(b.Nodes) == 0 {
		if len(b.Missing) == 0 {
			c.Text(1, y, c.Width, bold, "no process waits for a lock")
		}
		return
	}
	waits := "processes wait"
	if b.Waiting == 1 {
		waits = "process waits"
	}
	trees := "trees"
	if b.Trees == 1 {
		trees = "tree"
	}
	if onlyLocks(b.Nodes) {
		waits += " for locks"
	}
	c.Text(1, y, c.Width, bold, fmt.Sprintf("%d %s, in %d %s", b.Waiting, waits, b.Trees, trees))
	y++
	limit, below := c.Width, min(8, (end-y)/2)
	panel := c.Width >= panelFrom
	if panel {
		limit, below = c.Width-panelWidth-2, 0
	}
	var r rows
	marks := treeMarks(b.Nodes)
	ageAt, waitAt, textAt := c.blockingColumns(b.Nodes, marks, limit)
	c.Text(3, y, ageAt-1, dim, "process")
	c.Text(ageAt, y, waitAt-1, dim, "for")
	c.Text(waitAt, y, textAt-1, dim, "wait or state")
	c.Text(textAt, y, limit, dim, "object, or activity")
	y++
	for i := range b.Nodes {
		n := &b.Nodes[i]
		r.add(nodeKey(b, i), func(y int, selected bool) {
			style := plain
			if n.Depth == 0 {
				style = bold
			}
			if selected {
				for x := 1; x < limit-1; x++ {
					c.Set(x, y, ' ', chosen)
				}
				c.Set(0, y, '▸', bold)
				style = chosen
			}
			var x int
			if n.Depth == 0 {
				mark := alarm
				if selected {
					mark = chosen
				}
				c.Set(1, y, '▲', mark)
				x = 3
			} else {
				x = c.Text(1, y, ageAt-9, style, marks[i])
			}
			c.Text(x, y, ageAt-1, style, nodeName(n))
			age, wait, text := c.nodeWords(n)
			c.Text(ageAt, y, waitAt-1, style, age)
			c.Text(waitAt, y, textAt-1, style, wait)
			c.Text(textAt, y, limit-1, style, text)
		})
	}
	r.draw(c, y, end-below)
	at := c.s.at(c.s.keys(c.d))
	if at < 0 {
		return
	}
	if panel {
		c.nodePanel(limit+1, y-1, c.Width-1, end, &b.Nodes[at])
	} else {
		c.rule(end-below, c.Width)
		c.nodePanel(1, end-below+1, c.Width-1, end, &b.Nodes[at])
	}
}

// onlyLocks reports whether all waits of the nodes are for locks, and none is for a standby, a buffer pin or the end of
// recovery conflicts.
func onlyLocks(nodes []source.BlockingNode) bool {
	for i := range nodes {
		for k := range nodes[i].Waits {
			s, w := nodes[i].Session, &nodes[i].Waits[k]
			own := s != nil && s.Wait != nil && w.PID == nodes[i].PID // w is not of another process of its group
			if w.Mode == "" || own && s.Wait.Type != source.Lock {
				return false
			}
		}
	}
	return true
}

// blockingColumns returns the first cell of each text of nodeWords in a line of the page: ageAt, waitAt and textAt. Columns are
// as wide as their texts, but at least a quarter of the line is left for the last column.
func (c *canvas) blockingColumns(nodes []source.BlockingNode, marks []string, limit int) (ageAt, waitAt, textAt int) {
	const first, gap = 3, 2 // columns
	name, age, wait := len("process"), len("for"), len("wait or state")
	for i := range nodes {
		n := &nodes[i]
		indent := 0
		if n.Depth > 0 {
			indent = utf8.RuneCountInString(marks[i]) - first + 1
		}
		name = max(name, indent+utf8.RuneCountInString(nodeName(n)))
		a, w, _ := c.nodeWords(n)
		age, wait = max(age, utf8.RuneCountInString(a)), max(wait, utf8.RuneCountInString(w))
	}
	// Leave at least a quarter of the line for the last column.
	room := limit - first - 3*gap - max(limit/4, 19)
	age = min(age, 12)
	name = min(name, max(12, (room-age)*3/5))
	wait = min(wait, max(12, room-age-name))
	ageAt = first + name + gap
	waitAt = ageAt + age + gap
	return ageAt, waitAt, waitAt + wait + gap
}

// treeMarks returns for each node the line characters before its name, which show the tree.
func treeMarks(nodes []source.BlockingNode) []string {
	const deepest = 6
	marks := make([]string, len(nodes))
	open := map[int]bool{} // depths at which another child of the same parent follows; the loop runs from the last node up
	for i := len(nodes) - 1; i >= 0; i-- {
		depth := nodes[i].Depth
		for d := range open {
			if d > depth {
				delete(open, d)
			}
		}
		var m strings.Builder
		for d := max(1, depth-deepest); d < depth; d++ {
			if open[d] {
				m.WriteString("│ ")
			} else {
				m.WriteString("  ")
			}
		}
		if open[depth] {
			m.WriteString("├─")
		} else {
			m.WriteString("└─")
		}
		marks[i] = m.String()
		open[depth] = true
	}
	return marks
}

func nodeName(n *source.BlockingNode) string {
	switch {
	case n.PID != 0 && n.Session != nil && n.Session.Application != "":
		return strconv.Itoa(n.PID) + " " + n.Session.Application
	case n.PID != 0 && n.Session != nil:
		return strconv.Itoa(n.PID) + " " + n.Session.Type
	case n.PID != 0:
		return strconv.Itoa(n.PID)
	case n.GID != "":
		return "prepared " + strconv.Quote(n.GID)
	case n.XID == 0:
		return "prepared transaction"
	}
	return "prepared " + strconv.FormatUint(uint64(n.XID), 10)
}

// nodeWords returns the texts about a node that waits: age is how long it has waited, wait is the lock, and text is the locked
// object. For a node that does not wait, age is the age of its statement or state, wait is its wait event or state, and text
// describes its activity.
func (c *canvas) nodeWords(n *source.BlockingNode) (age, wait, text string) {
	mark := ""
	if n.Deadlock {
		mark = "deadlock: "
	}
	if len(n.Waits) > 0 {
		w := &n.Waits[0]
		age = after("", c.d.Blocking.Time, w.Since)
		wait = mark + strings.TrimSpace(w.Lock+" "+strings.TrimSuffix(w.Mode, "Lock"))
		if text = w.Object; w.Relation != "" || w.Lock == "advisory" {
			text, _ = moment.LockWords(w.Lock, w.Object, w.Relation)
		}
		if w.Row != "" {
			text = w.Row
		}
		if n.MoreBlockers > 0 {
			text += fmt.Sprintf(" (+%s)", plural(float64(n.MoreBlockers), "blocker"))
		}
		if len(n.Waits) > 1 {
			text += " (+" + units.Count(len(n.Waits)-1, "wait") + ")"
		}
		if w.Unknown != "" {
			text += " (" + w.Unknown + ")"
		}
		return age, wait, text
	}
	s := n.Session
	if s == nil {
		return "", "", ""
	}
	text = oneLine(s.Query)
	if s.Class != "" {
		age = after("", c.d.Blocking.Time, s.QueryStart)
		if s.Phrase != "" {
			text = s.Phrase
		}
	} else {
		age = after("", c.d.Blocking.Time, s.StateStart)
	}
	return age, waitOf(s), text
}

// nodePanel draws all that is known about a node.
func (c *canvas) nodePanel(x, y, limit, end int, n *source.BlockingNode) {
	put := func(s Style, text string, lines int) {
		for _, line := range Wrap(text, limit-x, lines) {
			if y < end {
				c.Text(x, y, limit, s, line)
				y++
			}
		}
	}
	title := nodeName(n)
	if s := n.Session; s != nil {
		if u := userAt(s); u != "" {
			title += "  " + u
		}
		if s.Client != "" {
			title += "  from " + s.Client
		}
	}
	put(bold, title, 2)
	at := c.d.Blocking.Time
	if n.Blocks > 0 {
		put(plain, fmt.Sprintf("blocks %s, %d directly", plural(float64(n.Blocks), "session"), n.Directly), 1)
	}
	if n.MoreBlockers > 0 {
		put(plain, fmt.Sprintf("waits for %s beside the process above it", plural(float64(n.MoreBlockers), "other process")), 1)
	}
	for i := range n.Waits {
		put(plain, waitLine(c.d, n, &n.Waits[i]), 2)
	}
	s := n.Session
	if s == nil {
		return
	}
	state := s.State
	if state != "" {
		state += after(" for ", at, s.StateStart)
	}
	state += after(", transaction open for ", at, s.XactStart)
	if state != "" {
		put(plain, state, 2)
	}
	if s.Phrase != "" {
		put(code, s.Phrase, 3)
	}
	if s.Query != "" {
		label := ""
		if s.Class == "" {
			label = "last statement: "
		}
		put(dim, label+s.Query, max(1, end-y))
	}
}

// waitLine describes the wait w of the node n in one line.
func waitLine(d *Data, n *source.BlockingNode, w *moment.LockWait) string {
	line := "waits"
	if w.PID != n.PID {
		line = fmt.Sprintf("process %d waits", w.PID)
	}
	m := &moment.Moment{}
	if d.Blocking != nil {
		for i := range d.Blocking.Nodes {
			if s := d.Blocking.Nodes[i].Session; s != nil {
				m.Sessions = append(m.Sessions, s.Session)
			}
		}
	}
	line += after(" for ", d.Blocking.Time, w.Since)
	line += " to lock " + source.LockName(m, w.Lock, w.Object, w.Relation)
	switch w.Lock {
	case "transactionid":
		line = strings.Replace(line, "to lock transactionid", "for the end of transaction", 1)
	case "relation", "tuple", "page", "extend", "advisory", "object", "virtualxid":
	default:
		line = strings.Replace(line, "to lock ", "for ", 1)
	}
	if w.Mode != "" && w.Lock != "transactionid" {
		line += " in mode " + w.Mode
	}
	if w.Row != "" {
		line += ", which has changed " + w.Row
	}
	if w.Unknown != "" {
		line += ": " + w.Unknown
	}
	return line
}
