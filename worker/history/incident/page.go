package incident

import (
	"cmp"
	_ "embed" // page.css
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// line returns a text from outside this program as one line. It replaces invisible characters, see render.VisibleLine.
func line(text string) string { return render.VisibleLine(strings.Join(strings.Fields(text), " ")) }

// name returns a name, or the OID if the name is empty, or "-" if both are unknown.
func name(text string, oid uint32) string {
	if text == "" && oid != 0 {
		return "oid " + strconv.FormatUint(uint64(oid), 10)
	}
	return cmp.Or(line(text), "-")
}

func waitOf(s *Session) string {
	if s.WaitType == "" {
		return ""
	}
	return line(s.WaitType + ":" + s.WaitEvent)
}

// age returns the time from since to now as text; empty: since is not known, or in the future because the server's clock differs.
func age(now time.Time, since *time.Time) string {
	if since == nil || units.Ahead(now, *since) {
		return ""
	}
	return units.Age(now.Sub(*since))
}

// pageView writes the page of an incident.
type pageView struct {
	pageWriter

	incident *Incident
	bars     []bar
	keys     []colorKey // the classes of wait events in the diagram
	width    int        // of the diagram, in seconds
	most     int        // the greatest number of sessions in a second
	sessions map[int32]*Session
}

// bar is a rectangle of the diagram: the sessions of one class of wait events in one second.
type bar struct {
	x, y, height string
	color        markup
}

type colorKey struct {
	name  string
	color markup
}

// colors are the colors of the classes of wait events, in the order of the bars of a second from the bottom.
//
//nolint:gochecknoglobals // read only
var colors = []colorKey{
	{"running", "#3a3"}, {"IO", "#36c"}, {"Lock", "#c33"}, {"LWLock", "#e80"}, {"BufferPin", "#a0a"}, {"Buffer", "#a0a"}, {"IPC", "#0aa"},
	{"Client", "#999"}, {"other", "#666"},
}

// pageStyle is the style of the page.
//
//go:embed page.css
var pageStyle markup

// Page returns the incident as an HTML page. The page has no script and loads no other files.
func Page(i *Incident) []byte {
	v := &pageView{incident: i, sessions: map[int32]*Session{}}
	for j := range i.Sessions {
		v.sessions[i.Sessions[j].PID] = &i.Sessions[j]
	}
	v.begin()
	v.blockers()
	v.sessionTable()
	v.stackList()
	v.parts()
	v.profile()
	v.before()
	v.serverAndHost()
	return []byte(v.b.String())
}

// begin writes the begin of the page, up to and with the table of the server.
func (v *pageView) begin() {
	i := v.incident
	ended := ""
	if i.Ended != nil {
		ended = ", and ended " + date(*i.Ended)
	}
	v.put(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Incident {}</title>
<style>
`, i.ID)
	v.raw(pageStyle)
	v.put(`</style>
</head>
<body>
<h1>Incident {}</h1>
<p class="why"><b>{}</b>: {}<br>
<span class="dim">{}; it began {} or before{}. All times are in UTC.</span></p>
<table>
`, i.ID, i.Reason.Rule, i.Headline(), date(i.Time), date(i.Reason.Since), ended)
	s := i.Server
	v.put("<tr><td>Server</td><td>PostgreSQL {}, data directory {}, system identifier {}, timeline {}, postmaster {}</td></tr>\n",
		s.Version, s.DataDir, s.SystemID, number(s.Timeline), number(s.Postmaster))
	if s.Position != "" {
		v.put("<tr><td>WAL position</td><td>{}, by IDENTIFY_SYSTEM</td></tr>", s.Position)
	}
	if s.Slots != 0 {
		v.put("<tr><td>Connections</td><td>{} of {} slots for ordinary roles</td></tr>", number(s.Clients), number(s.Slots))
	}
	v.put("\n<tr><td>Host</td><td>{}, Linux {}, {} processors; load {}</td></tr>\n</table>\n",
		i.Host.Name, i.Host.Kernel, number(i.Host.Processors), i.Host.Load)
}

// blockers writes the forest of the processes that block others.
func (v *pageView) blockers() {
	v.raw("\n<h2>Which process blocks which</h2>\n")
	unknown := v.unknownHolders()
	if len(v.incident.Forest) == 0 && len(unknown) == 0 {
		v.raw("<p>No process blocked another one.</p>\n")
		return
	}
	v.raw(`<ul class="forest">`)
	for _, n := range v.incident.Forest {
		v.node(n)
	}
	for _, n := range unknown {
		v.node(n)
	}
	v.raw("</ul>\n")
}

// unknownHolders returns the processes that wait but are not in the forest, because their blockers are not known.
func (v *pageView) unknownHolders() (list []*Node) {
	inForest := map[int32]bool{}
	var walk func(list []*Node)
	walk = func(list []*Node) {
		for _, n := range list {
			inForest[n.PID] = true
			walk(n.Blocked)
		}
	}
	walk(v.incident.Forest)
	for i := range v.incident.Sessions {
		if s := &v.incident.Sessions[i]; s.HoldersUnknown != "" && !inForest[s.PID] && len(list) < maxNodes {
			list = append(list, &Node{PID: s.PID})
		}
	}
	return list
}

// node writes a process of the forest with the processes below it.
func (v *pageView) node(n *Node) {
	v.raw("<li><b>")
	if n.PID != 0 {
		v.put("{}", number(n.PID))
	} else {
		v.raw("prepared transaction")
	}
	v.raw("</b>")
	if n.Queued {
		v.raw(` <span class="dim">(behind it in the queue)</span>`)
	}
	if n.Mode != "" {
		v.put(" wants {} on {}", n.Mode, n.Object)
	}
	if s := v.sessions[n.PID]; s != nil {
		v.put(` <span class="dim">{}`, owner(s))
		v.optional(" {}", s.App)
		v.put(`</span> {}`, s.State)
		if s.WaitType != "" {
			v.put(", waits for {}", waitOf(s))
		}
		v.optional(" for {}", age(v.incident.Time, s.WaitStart))
		v.optional(": {}", s.Phrase)
		v.optional("; {}", s.HoldersUnknown)
		v.optional("<br><code>{}</code>", s.Query)
	}
	if n.Again {
		v.raw(` <span class="dim">(see above)</span>`)
	}
	v.raw("\n")
	if len(n.Blocked) > 0 {
		v.raw("<ul>")
		for _, b := range n.Blocked {
			v.node(b)
		}
		v.raw("</ul>")
	}
	v.raw("</li>")
}

func (v *pageView) sessionTable() {
	i := v.incident
	v.raw(`
<h2>Sessions</h2>
<div class="scroll"><table>
<tr><th>pid</th><th>type</th><th>user@database</th><th>application</th><th>client</th><th>state</th><th>waits for</th><th>transaction</th><th>query</th></tr>
`)
	for j := range i.Sessions {
		s := &i.Sessions[j]
		v.put("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}", number(s.PID), s.Type, owner(s), s.App, s.Client, s.State)
		v.optional(` <span class="dim">{}</span>`, s.Process)
		v.put("</td><td>{}", waitOf(s))
		v.optional(" {}", age(i.Time, s.WaitStart))
		v.put("</td><td>{}</td>", age(i.Time, s.XactStart))
		v.query(s)
	}
	v.raw("</table></div>\n")
	if i.SessionsLeftOut > 0 {
		v.put("<p>{} further sessions are left out.</p>\n", number(i.SessionsLeftOut))
	}
}

// query writes the last cell of a row: the phrase for what the session did, and the query text.
func (v *pageView) query(s *Session) {
	v.raw(`<td class="q">`)
	v.optional(`<span class="dim">{}</span><br>`, s.Phrase)
	v.put("{}</td></tr>\n", s.Query)
}

func (v *pageView) stackList() {
	v.raw(`
<h2>Stacks</h2>
<p class="dim">They were taken without stopping a process, a moment after the incident was noticed. The innermost function comes first.</p>
`)
	for j := range v.incident.Stacks {
		p := &v.incident.Stacks[j]
		v.put(`<details><summary>{} <span class="dim">{}</span> `, number(p.PID), date(p.Time))
		if s := p.Stack; s != nil {
			v.put("{}</summary>\n", s.Phrase)
			v.optional("<p>{}</p>", s.Advice)
			v.raw("<pre>")
			for _, frame := range s.Frames {
				v.put("{}\n", frame)
			}
			v.optional("({})\n", s.Cut)
			v.raw("</pre>")
		} else {
			v.put("{}</summary>", p.Error)
		}
		v.raw("</details>\n")
	}
	if len(v.incident.Stacks) == 0 {
		v.raw("<p>No stacks were taken.</p>\n")
	}
}

// parts writes plans, memory and positions of WAL.
func (v *pageView) parts() {
	i := v.incident
	if len(i.Plans) > 0 {
		v.raw("\n<h2>Plans</h2>\n")
	}
	for j := range i.Plans {
		p := &i.Plans[j]
		v.put("<p>{} {}</p>", number(p.PID), p.Error)
		v.optional("<p>{}</p>", p.unproven())
		for _, n := range p.Statements {
			v.raw("<pre>")
			v.plan(n, "")
			v.raw("</pre>")
		}
		if p.LeftOut > 0 {
			v.put("<p>{}</p>", units.Plural(p.LeftOut, "%d further {node is|nodes are} left out."))
		}
		v.raw("\n")
	}
	if len(i.Memory) > 0 {
		v.raw("\n<h2>Memory of the largest processes</h2>\n<table><tr><th>pid</th><th>type</th><th>own memory</th><th>in contexts</th><th>largest contexts</th></tr>") //nolint:lll // a line of HTML
	}
	for j := range i.Memory {
		m := &i.Memory[j]
		v.put("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>", number(m.PID), m.Type, units.Size(m.Anonymous+m.Swapped),
			units.Size(uint64(m.Contexts)))
		for _, s := range m.Largest {
			v.put("{} {}<br>", s.Name, units.Size(uint64(s.Bytes)))
		}
		v.put("{}</td></tr>\n", m.Error)
	}
	if len(i.Memory) > 0 {
		v.raw("</table>\n")
	}
	if w := i.WAL; w != nil {
		v.raw("\n<h2>WAL</h2>\n<p>")
		v.optional("last checkpoint {} ", w.Checkpoint)
		v.optional("end {} ", w.End)
		v.optional("replayed {} ", w.Replayed)
		if w.Paused {
			v.raw("replay is paused ")
		}
		v.put("{}</p>\n", w.Error)
		for _, s := range w.Senders {
			v.put("<p>WAL sender {}: sent {}, write {}, flush {}, apply {}</p>\n", number(s.PID), s.Sent, s.Write, s.Flush, s.Apply)
		}
	}
}

// profile writes the stacks in which the sessions spent most time.
func (v *pageView) profile() {
	l := v.incident.Profile
	if l == nil {
		return
	}
	v.put("\n<h2>{}</h2>\n", l.title())
	v.put(`<p class="dim">Time on and off the processor. Idle sessions do not count. Method: {}; {} s of processor time.</p>`+"\n",
		l.Method, strconv.FormatFloat(l.Cost, 'f', 2, 64))
	v.optional("<p>{}</p>\n", l.Error)
	for j := range l.Stacks {
		s := &l.Stacks[j]
		v.put("<details><summary>{}</summary>\n<pre>", s.title())
		for _, f := range s.Frames {
			v.put("{}\n", f)
		}
		v.raw("</pre></details>\n")
	}
	if l.LeftOut > 0 {
		v.put("<p>{} further stacks are left out.</p>\n", number(l.LeftOut))
	}
}

// plan writes a node of a plan with the nodes below it.
func (v *pageView) plan(n *PlanNode, indent string) {
	if n == nil || len(indent) > 2*deepestNode {
		return
	}
	for range len(indent) {
		v.raw(" ")
	}
	v.put("{}", cmp.Or(n.Title, n.Type)+n.mark())
	v.raw("\n")
	for _, c := range n.Children {
		v.plan(c, indent+"  ")
	}
}

// before writes the history before the incident.
func (v *pageView) before() {
	history := &v.incident.History
	v.raw("\n<h2>The minutes before</h2>\n")
	v.measure()
	if len(v.bars) == 0 {
		v.raw("<p>The worker has recorded nothing in these minutes.</p>\n")
		return
	}
	v.draw()
	v.put(`
<p class="dim">{} to {}; at most {} sessions.</p>
<div class="scroll"><table>
<tr><th>from</th><th>to</th><th>pid</th><th>user@database</th><th>state</th><th>waits for</th><th>blocked by</th><th>query</th></tr>
`, date(history.Since), date(history.Until), number(v.most))
	for j := range history.Spans {
		span := &history.Spans[j]
		s := &span.Session
		state := s.State
		if s.Ended {
			state = "ended"
		}
		v.put("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>",
			clock(span.From), clock(span.To), number(s.PID), owner(s), state, waitOf(s))
		for k := range s.BlockedBy {
			v.put("{} ", number(s.BlockedBy[k].PID))
		}
		v.raw("</td>")
		v.query(s)
	}
	v.raw("</table></div>\n")
	if history.LeftOut > 0 {
		v.put("<p>{} further rows are left out.</p>\n", number(history.LeftOut))
	}
}

// draw writes the diagram and the legend of its colors.
func (v *pageView) draw() {
	v.raw("<p>Sessions that were not idle, by the class of their wait event:")
	for _, k := range v.keys {
		v.raw(`<span class="key" style="background:`)
		v.raw(k.color)
		v.put(`"></span>{}`, k.name)
	}
	v.put("</p>\n"+`<svg viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" aria-label="sessions by second">`, number(v.width))
	for _, b := range v.bars {
		v.put(`<rect x="{}" y="{}" width="1" height="{}" fill="`, b.x, b.y, b.height)
		v.raw(b.color)
		v.raw(`"></rect>`)
	}
	v.raw("</svg>")
}

// serverAndHost writes the rest of the page: settings, host and missing parts.
func (v *pageView) serverAndHost() {
	i := v.incident
	v.raw("\n<h2>Settings</h2>\n" + `<p class="dim">The postmaster's values. A session can have others.</p>` + "\n<table>")
	for _, s := range i.Settings {
		v.put("<tr><td>{}</td><td>{} {}</td></tr>", s.Name, number(s.Value), s.Unit)
	}
	v.raw("</table>\n\n<h2>Host</h2>\n<table>\n")
	for _, kind := range slices.Sorted(maps.Keys(i.Host.Pressure)) {
		v.put("<tr><td>pressure, {}</td><td>", kind)
		for _, text := range i.Host.Pressure[kind] {
			v.put("{}<br>", text)
		}
		v.raw("</td></tr>")
	}
	v.raw("\n")
	for _, kind := range slices.Sorted(maps.Keys(i.Host.Memory)) {
		v.put("<tr><td>{}</td><td>{} kB</td></tr>", kind, number(i.Host.Memory[kind]))
	}
	v.raw("\n")
	for _, d := range i.Host.Disks {
		v.put("<tr><td>{}</td><td>", d.Path)
		if d.Error != "" {
			v.put("{}", d.Error)
		} else {
			v.put("{} free of {}", units.Size(d.Free), units.Size(d.Size))
		}
		v.raw("</td></tr>")
	}
	v.raw("\n</table>\n")
	if len(i.Missing) > 0 {
		v.raw("<h2>Missing parts</h2><ul>")
		for _, text := range i.Missing {
			v.put("<li>{}</li>", text)
		}
		v.raw("</ul>")
	}
	v.put("\n"+`<p class="dim">pg_stat_backtrace {}, schema version {}</p>`+"\n</body>\n</html>\n", i.Program, number(i.Schema))
}

func number[T ~int | ~int32 | ~int64 | ~uint32 | ~uint64](n T) string { return fmt.Sprint(n) }

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") }

func clock(t time.Time) string { return t.UTC().Format("15:04:05.0") }

// owner returns the user and the database of a session.
func owner(s *Session) string { return name(s.User, s.UserID) + "@" + name(s.Database, s.DatabaseID) }

// measure computes the bars of the diagram, one for each second and class of wait events, and its width and legend.
func (v *pageView) measure() {
	const most = 1000 // seconds
	list := v.incident.History.Seconds
	list = list[max(0, len(list)-most):]
	if len(list) == 0 {
		return
	}
	first := list[0].Time
	for _, s := range list {
		sum := 0
		for _, n := range s.Counts {
			sum += max(0, n)
		}
		v.most = max(v.most, sum)
	}
	used := map[string]bool{}
	for _, s := range list {
		x := int(s.Time.Sub(first) / time.Second)
		if x < 0 || x >= most {
			continue // the clock was set back or far forward
		}
		v.width = max(v.width, x+1)
		counts := map[string]int{}
		for class, n := range s.Counts {
			if !slices.ContainsFunc(colors, func(k colorKey) bool { return k.name == class }) {
				class = "other"
			}
			counts[class] += max(0, n)
		}
		const whole = 100.0
		y := whole
		for _, k := range colors {
			if n := counts[k.name]; n > 0 {
				h := whole * float64(n) / float64(v.most)
				y -= h
				used[k.name] = true
				v.bars = append(v.bars, bar{strconv.Itoa(x), strconv.FormatFloat(y, 'f', 1, 64), strconv.FormatFloat(h, 'f', 1, 64), k.color})
			}
		}
	}
	for _, k := range colors {
		if used[k.name] {
			v.keys = append(v.keys, k)
		}
	}
}
