package incident

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// Bundle writes a zip file with an incident that can be given to others: without names of objects and texts of statements. The file
// has the JSON form, the HTML page, and a list of the removed parts.
func Bundle(out io.Writer, i *Incident) error {
	clean, removed := Anonymous(i)
	text, err := json.MarshalIndent(clean, "", " ")
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	z := zip.NewWriter(out)
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"REMOVED.txt", []byte(strings.Join(removed, "\n") + "\n")}, {"incident.json", append(render.VisibleJSON(text), '\n')},
		{"incident.html", Page(clean)},
	} {
		w, err := z.Create(f.name)
		if err == nil {
			_, err = w.Write(f.data)
		}
		if err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	return nil
}

// cleaner replaces names by numbers. Equal names of one kind get equal numbers.
type cleaner struct {
	numbers map[string]map[string]int // by kind and name
	removed map[string]int            // number of removed texts, by kind
}

// Anonymous returns a copy of an incident without names of objects and texts of statements, and a list of the removed parts. It
// copies only members that have no such names, or from which it has removed them. All other members stay empty.
func Anonymous(i *Incident) (*Incident, []string) {
	c := &cleaner{numbers: map[string]map[string]int{}, removed: map[string]int{}}
	out := &Incident{
		Schema: i.Schema, ID: safeID(i.ID), Time: i.Time, Program: identifier(i.Program),
		Reason: rules.Finding{
			Rule: ruleName(i.Reason.Rule), Since: i.Reason.Since, Processes: slices.Clone(i.Reason.Processes), Root: i.Reason.Root,
		},
		Server: Server{
			SystemID: identifier(i.Server.SystemID), Timeline: i.Server.Timeline, Version: identifier(i.Server.Version),
			Position: position(i.Server.Position), Postmaster: i.Server.Postmaster, Clients: i.Server.Clients, Slots: i.Server.Slots,
		},
		SessionsLeftOut: i.SessionsLeftOut, Sessions: []Session{}, Stacks: []ProcessStack{}, Settings: []Setting{}, Forest: nodes(i.Forest),
		History: History{Since: i.History.Since, Until: i.History.Until, LeftOut: i.History.LeftOut, Seconds: []Second{}, Spans: []Span{}},
		Host: Host{
			Kernel: identifier(i.Host.Kernel), Processors: i.Host.Processors, Uptime: i.Host.Uptime, Load: numbersOnly(i.Host.Load),
			Memory: map[string]int64{}, Pressure: map[string][]string{},
		},
	}
	out.Reason.Summary = c.summary(&i.Reason)
	c.remove("data directory", i.Server.DataDir)
	c.remove("host name", i.Host.Name)
	for j := range i.Sessions {
		out.Sessions = append(out.Sessions, c.session(&i.Sessions[j]))
	}
	for j := range i.Stacks {
		out.Stacks = append(out.Stacks, c.stack(&i.Stacks[j]))
	}
	for _, s := range i.History.Seconds {
		counts := map[string]int{}
		for class, n := range s.Counts {
			counts[identifier(class)] += n
		}
		out.History.Seconds = append(out.History.Seconds, Second{Time: s.Time, Counts: counts})
	}
	for j := range i.History.Spans {
		s := &i.History.Spans[j]
		out.History.Spans = append(out.History.Spans, Span{From: s.From, To: s.To, Sweeps: s.Sweeps, Session: c.session(&s.Session)})
	}
	for _, s := range i.Settings {
		out.Settings = append(out.Settings, Setting{identifier(s.Name), s.Value, identifier(s.Unit)})
	}
	for name, n := range i.Host.Memory {
		out.Host.Memory[identifier(name)] = n
	}
	for what, lines := range i.Host.Pressure {
		for _, l := range lines {
			out.Host.Pressure[identifier(what)] = append(out.Host.Pressure[identifier(what)], pressureLine(l))
		}
	}
	for j, d := range i.Host.Disks {
		c.remove("path of a file system", d.Path)
		clean := Disk{Path: fmt.Sprintf("file system %d", j+1), Free: d.Free, Size: d.Size}
		if d.Error != "" {
			clean.Error = "not read"
		}
		out.Host.Disks = append(out.Host.Disks, clean)
	}
	c.parts(out, i)
	out.Profile = c.profile(i.Profile)
	for _, m := range i.Missing {
		c.remove("message about a missing part", m)
	}
	return out, c.list()
}

// parts copies memory, plans and WAL: figures and types of nodes, without names and messages.
func (c *cleaner) parts(out, i *Incident) {
	for _, m := range i.Memory {
		c.remove("message about a missing part", m.Error)
		for _, s := range m.Largest {
			c.remove("name of a memory context", s.Name)
		}
		out.Memory = append(out.Memory, ProcessMemory{
			PID: m.PID, Type: c.backendType(m.Type), Anonymous: m.Anonymous, Swapped: m.Swapped, Contexts: m.Contexts})
	}
	for _, p := range i.Plans {
		c.remove("message about a missing part", p.Error)
		out.Plans = append(out.Plans, ProcessPlan{
			PID: p.PID, Time: p.Time, Proven: p.Proven, Statements: c.plan(p.Statements), LeftOut: p.LeftOut,
		})
	}
	if w := i.WAL; w != nil {
		c.remove("message about a missing part", w.Error)
		out.WAL = &WAL{
			Checkpoint: position(w.Checkpoint), Recovery: w.Recovery, End: position(w.End), Replayed: position(w.Replayed),
			Paused: w.Paused,
		}
		for _, s := range w.Senders {
			out.WAL.Senders = append(out.WAL.Senders, Receiver{
				PID: s.PID, Logical: s.Logical, Sent: position(s.Sent), Write: position(s.Write), Flush: position(s.Flush),
				Apply: position(s.Apply),
			})
		}
	}
}

func (c *cleaner) plan(list []*PlanNode) []*PlanNode {
	out := []*PlanNode{}
	for _, n := range list {
		if n == nil {
			continue
		}
		c.remove("name in a plan", n.Name)
		c.remove("title in a plan", n.Title)
		out = append(out, &PlanNode{
			Type: words(n.Type), Rows: n.Rows, Cost: n.Cost, Running: n.Running, RunningBelow: n.RunningBelow, Children: c.plan(n.Children),
		})
	}
	return out
}

// position keeps the characters of a position in the WAL.
func position(text string) string { return keep(text, "/") }

// list returns the lines of REMOVED.txt.
func (c *cleaner) list() []string {
	list := []string{"Removed, or replaced by a number:"}
	var kinds []string
	for kind := range c.removed {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		list = append(list, fmt.Sprintf("  %s: %s", kind, units.Count(c.removed[kind], "time")))
	}
	return append(list, "",
		"Kept: process ids, object ids, query ids, times, figures, functions of C and modules in stacks, names of standard wait events,",
		"settings, system identifier, versions.")
}

func (c *cleaner) remove(kind, text string) {
	if text != "" {
		c.removed[kind]++
	}
}

// number returns a replacement for a name, such as "user_1".
func (c *cleaner) number(kind, text string) string {
	if text == "" {
		return ""
	}
	c.removed[kind]++
	m := c.numbers[kind]
	if m == nil {
		m = map[string]int{}
		c.numbers[kind] = m
	}
	if m[text] == 0 {
		m[text] = len(m) + 1
	}
	return fmt.Sprintf("%s_%d", kind, m[text])
}

func (c *cleaner) session(s *Session) Session {
	out := *s
	out.Database, out.User, out.App = c.number("database", s.Database), c.number("user", s.User), c.number("application", s.App)
	if out.Client = s.Client; s.Client != "local" {
		out.Client = c.number("client", s.Client)
	}
	c.remove("query text", s.Query)
	out.Query = ""
	out.Type, out.WaitType, out.WaitEvent = c.backendType(s.Type), identifier(s.WaitType), identifier(s.WaitEvent)
	if s.WaitType == "Extension" || s.WaitType == "InjectionPoint" { // an extension chooses the name
		c.remove("wait event of an extension", s.WaitEvent)
		out.WaitEvent = s.WaitType
	}
	out.State, out.Process = c.state(s.State), identifier(s.Process)
	out.PhraseKey, out.Phrase = c.phrase(s.PhraseKey, s.Phrase)
	c.remove("reason for unknown holders", s.HoldersUnknown) // the reason may contain the name of a relation
	out.BlockedBy, out.HoldersUnknown = nil, ""
	for _, b := range s.BlockedBy {
		out.BlockedBy = append(out.BlockedBy, store.Blocker{
			PID: b.PID, Lock: words(b.Lock), Mode: identifier(b.Mode), Object: words(moment.WithoutName(b.Object)), Soft: b.Soft})
	}
	return out
}

// versionOfNames is a major version of PostgreSQL that has all names of backend types and states.
const versionOfNames = 18

func (c *cleaner) backendType(text string) string {
	if text == "" || slices.Contains(state.BackendTypes(versionOfNames), text) || text == state.ParallelWorker || text == state.ClientBackend {
		return text
	}
	c.removed["type of a background worker"]++
	return state.BackgroundWorker
}

func (c *cleaner) state(text string) string {
	if text == "" || slices.Contains(state.States(versionOfNames), text) {
		return text
	}
	return "other"
}

// phrase returns the key and the general text of a phrase, in which names of fields stand instead of names of objects. Both results
// are empty for an unknown key.
func (c *cleaner) phrase(key, text string) (string, string) {
	for _, e := range moment.PhraseEntries() {
		if e.Key == key {
			if e.Text != text {
				c.remove("name in a phrase", text)
			}
			return key, e.Text
		}
	}
	c.remove("name in a phrase", text)
	return "", ""
}

func (c *cleaner) stack(s *ProcessStack) ProcessStack {
	out := ProcessStack{PID: s.PID, Time: s.Time}
	if s.Error != "" {
		out.Error = "no stack"
	}
	if s.Stack == nil {
		return out
	}
	k := *s.Stack
	k.PhraseKey, k.Phrase = c.phrase(k.PhraseKey, k.Phrase)
	k.Advice, k.Page, k.Method, k.Cut = "", identifier(k.Page), words(k.Method), ""
	k.Function = c.number("function", k.Function)
	k.Frames = c.frames(s.Stack.Frames)
	out.Stack = &k
	return out
}

// frames replaces the names of functions of procedural languages and of code compiled at run time. Before the former, a profile by the
// kernel has the kind of the level, other stacks have recorder.Procedural.
func (c *cleaner) frames(list []string) (out []string) {
	for _, f := range list {
		for _, prefix := range []string{
			recorder.Procedural, recorder.Generated, string(backtrace.PLpgSQL) + ":", string(backtrace.SQL) + ":", string(backtrace.PLPerl) + ":",
			string(backtrace.PLPython) + ":",
		} {
			if name, ok := strings.CutPrefix(f, prefix); ok {
				f = prefix + c.number("function", name)
				break
			}
		}
		out = append(out, f)
	}
	return out
}

// profile copies a profile without names that users have chosen. nil stays nil.
func (c *cleaner) profile(l *Profile) *Profile {
	if l == nil {
		return nil
	}
	c.remove("message about a missing part", l.Error)
	out := &Profile{
		Since: l.Since, Seconds: l.Seconds, Method: words(l.Method), Cost: l.Cost, Stopped: l.Stopped, LeftOut: l.LeftOut,
		Stacks: []ProfileStack{},
	}
	for i := range l.Stacks {
		s := &l.Stacks[i]
		wait, event, _ := strings.Cut(s.Wait, ":")
		if wait = identifier(wait); event != "" {
			wait += ":" + identifier(event)
		}
		out.Stacks = append(out.Stacks, ProfileStack{
			Seconds: s.Seconds, Processes: s.Processes, Type: c.backendType(s.Type), Wait: wait, Frames: c.frames(s.Frames),
		})
	}
	return out
}

func nodes(list []*Node) []*Node {
	out := []*Node{}
	for _, n := range list {
		out = append(out, &Node{
			PID: n.PID, Mode: identifier(n.Mode), Object: words(moment.WithoutName(n.Object)), Queued: n.Queued,
			Again: n.Again, Blocked: nodes(n.Blocked)})
	}
	return out
}

// ruleName returns text if it is the name of a rule or Manual, else "".
func ruleName(text string) string {
	builtIn := rules.Default()
	if text == Manual || builtIn.Rule(text) != nil {
		return text
	}
	return ""
}

// summary keeps the sentence of a rule, and removes the note of a person, which may contain names.
func (c *cleaner) summary(f *rules.Finding) string {
	switch text, ok := strings.CutPrefix(f.Summary, note); {
	case ok:
		c.remove("note", text)
		return strings.TrimSuffix(note, ": ")
	case ruleName(f.Rule) == "":
		c.remove("summary", f.Summary)
		return ""
	}
	return keep(f.Summary, " ,:.%-()")
}

// note is the begin of the summary of an incident that a person has requested. The person's text follows it.
const note = "taken by a person: "

// The following functions keep only the characters that a kind of text needs, and remove all others.

func keep(text, allowed string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune(allowed, r) {
			return r
		}
		return -1
	}, text)
}

func identifier(text string) string { return keep(text, "_-.+") }
func words(text string) string      { return keep(text, "_-.+ (),/") }
func numbersOnly(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' || r == '/' || r == ' ' {
			return r
		}
		return -1
	}, text)
}
func pressureLine(text string) string { return keep(text, " =.") }

func safeID(id string) string {
	if validID(id) {
		return id
	}
	return "incident"
}
