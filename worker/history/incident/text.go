package incident

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// Text prints the parts of an incident that fit a terminal: the reason, the forest, the stacks of the processes involved,
// and the host.
func Text(out io.Writer, i *Incident) error {
	const layout = "2006-01-02 15:04:05 UTC"
	w := bufio.NewWriter(out)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	p("%s: %s", line(i.ID), line(i.Reason.Summary))
	p("rule %s, noticed %s, began %s or before", line(i.Reason.Rule), i.Time.UTC().Format(layout), i.Reason.Since.UTC().Format(layout))
	p("PostgreSQL %s, %s, system identifier %s, timeline %d", line(i.Server.Version), line(i.Server.DataDir), line(i.Server.SystemID), i.Server.Timeline)
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
	if len(i.Forest) > 0 {
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
	p("\n%d sessions were not idle; %d further ones are left out.", len(i.Sessions), i.SessionsLeftOut)
	for _, s := range i.Stacks {
		if s.Stack == nil {
			p("\nstack of %d: %s", s.PID, line(s.Error))
			continue
		}
		p("\nstack of %d at %s: %s", s.PID, s.Time.UTC().Format(time.TimeOnly), line(s.Stack.Phrase))
		for _, f := range s.Stack.Frames {
			p("    %s", line(f))
		}
	}
	p("\n%s, %d processors, load %s", line(i.Host.Name), i.Host.Processors, line(i.Host.Load))
	for _, d := range i.Host.Disks {
		if d.Error != "" {
			p("%s: %s", line(d.Path), line(d.Error))
			continue
		}
		p("%s: %d MB free of %d MB", line(d.Path), d.Free>>20, d.Size>>20)
	}
	for _, m := range i.Missing {
		p("missing: %s", line(m))
	}
	return w.Flush()
}

// describe returns a node of the forest in one line.
func (v *pageView) describe(n *Node) string {
	s := "prepared transaction"
	if n.PID != 0 {
		s = fmt.Sprint(n.PID)
	}
	if n.Mode != "" {
		s += fmt.Sprintf(" wants %s on %s", line(n.Mode), line(n.Object))
	}
	if row := v.sessions[n.PID]; row != nil {
		s += fmt.Sprintf(" (%s@%s) %s", name(row.User, row.UserID), name(row.Database, row.DatabaseID), line(row.State))
		if row.WaitType != "" {
			s += ", waits for " + waitOf(row)
		}
		if a := age(v.incident.Time, row.WaitStart); a != "" {
			s += " for " + a
		}
		if row.Phrase != "" {
			s += ": " + line(row.Phrase)
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
