package incident

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
)

// Text prints the parts of an incident that fit a terminal: the reason, the forest of waits, the stacks, plans, memory, positions
// in the WAL, the profile, and the host.
func Text(out io.Writer, i *Incident) error {
	const layout = "2006-01-02 15:04:05 UTC"
	w := bufio.NewWriter(out)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	p("%s: %s", line(i.ID), line(i.Headline()))
	ended := "no end seen"
	if i.Ended != nil {
		ended = "ended " + i.Ended.UTC().Format(layout)
	}
	p("rule %s, noticed %s, began %s or before, %s", line(i.Reason.Rule), i.Time.UTC().Format(layout),
		i.Reason.Since.UTC().Format(layout), ended)
	p("PostgreSQL %s, %s, system identifier %s, timeline %d",
		line(i.Server.Version), line(i.Server.DataDir), line(i.Server.SystemID), i.Server.Timeline)
	if i.Server.Position != "" {
		p("WAL position %s, by IDENTIFY_SYSTEM", line(i.Server.Position))
	}
	if i.Server.Slots > 0 {
		p("%d of %d connection slots in use", i.Server.Clients, i.Server.Slots)
	}
	v := &pageView{incident: i, sessions: map[int32]*Session{}}
	for j := range i.Sessions {
		v.sessions[i.Sessions[j].PID] = &i.Sessions[j]
	}
	unknown := v.unknownHolders()
	if len(i.Forest)+len(unknown) > 0 {
		p("\nWhich process blocks which:")
	}
	var walk func(list []*Node, depth int)
	walk = func(list []*Node, depth int) {
		for _, n := range list {
			p("%s%s", strings.Repeat("  ", 1+min(depth, 20)), v.describe(n))
			walk(n.Blocked, depth+1)
		}
	}
	walk(i.Forest, 0)
	walk(unknown, 0)
	p("\n%s.", units.Plural(len(i.Sessions), "%d {session was|sessions were} not idle")+leftOut(i.SessionsLeftOut))
	i.stackTexts(p)
	i.textParts(p)
	if i.Profile != nil {
		i.Profile.text(p)
	}
	p("\n%s, %s, load %s", line(i.Host.Name), units.Count(i.Host.Processors, "processor"), line(i.Host.Load))
	for _, d := range i.Host.Disks {
		if d.Error != "" {
			p("%s: %s", line(d.Path), line(d.Error))
			continue
		}
		p("%s: %s free of %s", line(d.Path), units.Size(d.Free), units.Size(d.Size))
	}
	for _, m := range i.Missing {
		p("missing: %s", line(m))
	}
	return w.Flush()
}

// Headline returns the reason. If it names the process that blocks others, its application, user and database follow.
func (i *Incident) Headline() string {
	text := i.Reason.Summary
	root := fmt.Sprintf("process %d", i.Reason.Root)
	at := slices.IndexFunc(i.Sessions, func(s Session) bool { return i.Reason.Root > 0 && s.PID == i.Reason.Root })
	before, after, named := strings.Cut(text, root)
	if at < 0 || !named || len(after) > 0 && after[0] >= '0' && after[0] <= '9' {
		return text
	}
	identity := i.Sessions[at].identity()
	return before + root + " (" + identity + ")" + after
}

// identity returns the application, user and database of a session, or the type of a process that has none.
func (s *Session) identity() string {
	if s.User == "" && s.UserID == 0 && s.Database == "" && s.DatabaseID == 0 {
		return strings.TrimSpace(line(s.Type) + " " + line(s.App))
	}
	return strings.TrimSpace(line(s.App) + " " + owner(s))
}

// stackTexts prints the stacks. Processes with the same frames are printed together, in the order of their first processes.
func (i *Incident) stackTexts(p func(format string, args ...any)) {
	same := map[string][]*ProcessStack{}
	var order []string
	for j := range i.Stacks {
		s := &i.Stacks[j]
		key := fmt.Sprint("error of ", s.PID)
		if s.Stack != nil {
			key = strings.Join(s.Stack.Frames, "\n")
		}
		if same[key] == nil {
			order = append(order, key)
		}
		same[key] = append(same[key], s)
	}
	for _, key := range order {
		group := same[key]
		first := group[0]
		switch {
		case first.Stack == nil:
			p("\nstack of %d: %s", first.PID, line(first.Error))
			continue
		case len(group) == 1:
			p("\nstack of %d at %s: %s", first.PID, first.Time.UTC().Format(time.TimeOnly), line(first.Stack.Phrase))
		default:
			p("\n%d processes with the same stack:", len(group))
			for _, s := range group {
				p("  %d at %s: %s", s.PID, s.Time.UTC().Format(time.TimeOnly), line(s.Stack.Phrase))
			}
		}
		for _, f := range first.Stack.Frames {
			p("    %s", line(f))
		}
	}
}

// leftOut returns the end of a sentence about sessions; empty: none of them is left out.
func leftOut(n int) string {
	if n == 0 {
		return ""
	}
	return units.Plural(n, "; %d further {one is|ones are} left out")
}

func (i *Incident) textParts(p func(format string, args ...any)) {
	for j := range i.Plans {
		l := &i.Plans[j]
		p("\n%s", strings.TrimRight("plan of "+number(l.PID)+": "+line(l.Error), ": "))
		if remark := l.unproven(); remark != "" {
			p("  %s", remark)
		}
		for _, n := range l.Statements {
			n.text(p, 2)
		}
		if l.LeftOut > 0 {
			p("    %s", units.Plural(l.LeftOut, "%d further {node is|nodes are} left out"))
		}
	}
	if len(i.Memory) > 0 {
		p("\nMemory of the largest processes:")
	}
	for j := range i.Memory {
		m := &i.Memory[j]
		text := fmt.Sprintf("  %d (%s): %s of its own", m.PID, line(m.Type), units.Size(m.Anonymous+m.Swapped))
		if m.Swapped > 0 {
			text += ", of it " + units.Size(m.Swapped) + " swapped out"
		}
		if m.Contexts > 0 {
			text += ", " + units.Size(uint64(m.Contexts)) + " in memory contexts:"
			for _, c := range m.Largest {
				text += " " + line(c.Name) + " " + units.Size(uint64(c.Bytes))
			}
		}
		if m.Error != "" {
			text += "; " + line(m.Error)
		}
		p("%s", text)
	}
	if i.WAL != nil {
		i.WAL.text(p)
	}
}

// text prints a node with the nodes below it.
func (n *PlanNode) text(p func(format string, args ...any), depth int) {
	if n == nil || depth > deepestNode {
		return
	}
	p("%s%s%s", strings.Repeat("  ", depth), line(cmp.Or(n.Title, n.Type)), n.mark())
	for _, c := range n.Children {
		c.text(p, depth+1)
	}
}

// deepestNode is the greatest depth of a plan's nodes that are kept and printed.
const deepestNode = 100

// mark returns a remark for a node in which the process was; empty for other nodes.
func (n *PlanNode) mark() string {
	switch {
	case n.RunningBelow:
		return " (this node, or one below it, was running)"
	case n.Running:
		return " (was running)"
	}
	return ""
}

// text prints the stacks in which the sessions spent most time.
func (l *Profile) text(p func(format string, args ...any)) {
	const most, innermost = 10, 8
	p("\n%s:", l.title())
	if l.Error != "" {
		p("  %s", line(l.Error))
	}
	for i := range l.Stacks[:min(most, len(l.Stacks))] {
		s := &l.Stacks[i]
		p("  %s: %s", s.title(), line(strings.Join(s.Frames[:min(innermost, len(s.Frames))], " < ")))
	}
	if n := len(l.Stacks) + l.LeftOut - most; n > 0 {
		p("  %s", units.Plural(n, "%d further {stack is|stacks are} left out"))
	}
}

// title returns the heading of the profile.
func (l *Profile) title() string {
	text := fmt.Sprintf("Where the time went from %s on, for %.1f s", clock(l.Since), l.Seconds)
	if l.Stopped {
		text += " (ended early, because it cost too much)"
	}
	return text
}

// title describes the time and the processes of the stack in one line.
func (s *ProfileStack) title() string {
	text := fmt.Sprintf("%.2f s of %d ", s.Seconds, s.Processes)
	if s.Processes == 1 {
		text += "process"
	} else {
		text += "processes"
	}
	if s.Type != "" {
		text += " (" + line(s.Type) + ")"
	}
	if s.Wait != "" {
		text += ", waiting for " + line(s.Wait)
	}
	return text
}

// text prints the known positions.
func (w *WAL) text(p func(format string, args ...any)) {
	text := "\nWAL:"
	for _, part := range [][2]string{{"last checkpoint", w.Checkpoint}, {"end", w.End}, {"replayed", w.Replayed}, {"", w.Error}} {
		if part[1] != "" {
			text += strings.TrimRight(" "+part[0], " ") + " " + line(part[1]) + ","
		}
	}
	if w.Paused {
		text += " replay is paused,"
	}
	p("%s", strings.TrimRight(text, ",:"))
	for _, s := range w.Senders {
		p("  WAL sender %d: sent %s, write %s, flush %s, apply %s", s.PID, line(s.Sent), line(s.Write), line(s.Flush), line(s.Apply))
	}
}

// describe returns a node of the forest in one line.
func (v *pageView) describe(n *Node) string {
	s := "prepared transaction"
	if n.PID != 0 {
		s = strconv.Itoa(int(n.PID))
	}
	if n.Mode != "" {
		s += fmt.Sprintf(" wants %s on %s", line(n.Mode), line(n.Object))
	}
	if row := v.sessions[n.PID]; row != nil {
		s += strings.TrimRight(" "+row.identity()+" "+line(row.State), " ")
		if row.WaitType != "" {
			s += ", waits for " + waitOf(row)
		}
		if a := age(v.incident.Time, row.WaitStart); a != "" {
			s += " for " + a
		}
		if row.Phrase != "" {
			s += ": " + line(row.Phrase)
		}
		if row.HoldersUnknown != "" {
			s += "; " + line(row.HoldersUnknown)
		}
		if row.Query != "" {
			s += "  " + line(bounded(row.Query))
		}
	}
	if n.Again {
		s += " (see above)"
	}
	return s
}
