package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
)

// runServer captures all processes of a server except the postmaster.
func (f *captureFlags) runServer(ctx context.Context, stdout, stderr io.Writer) error {
	server, err := cluster.ByDataDir(f.dataDir)
	if err != nil {
		return err
	}
	members, err := server.Members()
	if err != nil {
		return err
	}
	f.titles = make(map[int]string, len(members))
	targets := make([]process.Target, 0, len(members))
	for _, m := range members {
		target, err := server.Contains(m.PID)
		if errors.Is(err, process.ErrNotPermitted) {
			console.Tellf(stderr, "%s", console.Explain(m.Local, err))
			continue
		}
		if err != nil {
			continue // the process has ended
		}
		f.titles[m.Local] = m.Title
		targets = append(targets, target)
	}
	if len(targets) == 0 {
		return fmt.Errorf("%s has no processes", server)
	}
	if slices.Contains([]string{console.FormatText, console.FormatBrief, console.FormatShort, console.FormatJSON}, f.format) && !f.stats {
		f.server = openSessions(server, stderr)
	}
	return f.run(ctx, targets, stdout, stderr)
}

// sessions has the sessions of the processes that one round captures, from the server's memory. A process runs on during the
// round, so the memory is read before the round and after it. Only facts that are the same both times are used.
type sessions struct {
	reader        *state.Reader // nil: the memory cannot be read
	before, after *moment.Moment
	traces        []*backtrace.Trace
}

// openSessions prepares to read a server's memory. If the memory cannot be read, openSessions reports the reason on stderr, and
// the captures have no data of sessions.
func openSessions(server cluster.Cluster, stderr io.Writer) *sessions {
	reader, err := state.Open(server)
	if err != nil {
		console.Tellf(stderr, "databases, users and states are missing: %v", err)
	}
	return &sessions{reader: reader}
}

// printSession prints the trace of a process that the user has named. The server's memory gives the holder of a lock, and the
// session if it is idle or in a transaction. Nothing else about the session is printed. If s has no data of the process, only the
// trace is printed.
func (r *rounds) printSession(s *sessions, t *backtrace.Trace, began time.Time) error {
	t.Session = &backtrace.Session{Time: began}
	s.traces = []*backtrace.Trace{t}
	s.end(nil)
	if known := t.Session; known.State == "" || known.State == "active" {
		known.Time, known.Database, known.User, known.State = time.Time{}, "", "", ""
	}
	return r.print(t)
}

// sessionsOf prepares to read the memory of the server that has the first of the processes. It returns nil if they belong to no
// server, if the memory cannot be read, or if the chosen output has no data of sessions.
func (f *captureFlags) sessionsOf(targets []process.Target) *sessions {
	if f.repeat > 1 || f.stats || f.goroutines || f.noContext || f.format != console.FormatText && !f.isBrief() {
		return nil // many rounds are a measurement, so they read nothing else
	}
	server, err := cluster.ByProcess(targets[0].PID)
	if err != nil {
		return nil
	}
	reader, err := state.Open(server)
	if err != nil {
		return nil
	}
	return &sessions{reader: reader}
}

// read returns what all sessions do now; nil: the memory could not be read.
func (s *sessions) read() *moment.Moment {
	if s.reader == nil {
		return nil
	}
	m, err := s.reader.Read(state.Options{Texts: true})
	if err != nil {
		return nil // the server has ended or is ending
	}
	s.reader.Blocking(m)
	return m
}

// begin starts a round: it reads the sessions.
func (s *sessions) begin() { s.before, s.traces = s.read(), nil }

// end reads the sessions again, and adds session and title to each trace of the round.
func (s *sessions) end(titles map[int]string) {
	s.after = s.read()
	for _, t := range s.traces {
		t.Session.Title = titles[t.PID]
		x, y := sessionOf(s.before, t.PID), sessionOf(s.after, t.PID)
		if y == nil {
			y = x // the process has ended, or reading failed the second time
		}
		if x == nil || x.ServerPID != y.ServerPID || !sameTime(x.Started, y.Started) {
			continue
		}
		t.Session.Type, t.Session.Major = y.Type, s.before.Version
		t.Session.Database, t.Session.User = console.NameOrOID(y.Database, y.DatabaseOID), console.NameOrOID(y.User, y.UserOID)
		if x.State == y.State && sameTime(x.StateStart, y.StateStart) {
			t.Session.State = x.State
		}
		if s.after != nil {
			s.addHolder(t, x, y)
		}
	}
}

// addHolder adds to a trace the mode of the lock for which the process waits, the relation that is locked, and the process that
// holds this lock or waits in front. x and y are the session before and after the capture. If the wait is not the same in both,
// addHolder adds nothing.
func (s *sessions) addHolder(t *backtrace.Trace, x, y *moment.Session) {
	held := func(b moment.Blocker) bool { return b.Held != "" && !b.Queued }
	i := slices.IndexFunc(y.Blockers, held)
	if i < 0 && len(y.Blockers) > 0 {
		i = 0 // all blockers wait for the lock too: take the first
	}
	if i < 0 || t.Wait.Class != "Lock" || t.Wait.Event != y.Blockers[i].Lock {
		return
	}
	b := &y.Blockers[i]
	if b.Since == nil || !slices.ContainsFunc(x.Blockers, func(a moment.Blocker) bool {
		return held(a) == held(*b) && a.PID == b.PID && a.XID == b.XID && a.Lock == b.Lock && a.Object == b.Object && sameTime(a.Since, b.Since)
	}) {
		return
	}
	t.Session.Mode = b.Mode
	if b.Lock == "relation" {
		t.Session.Relation = render.VisibleLine(b.Relation)
	}
	if !held(*b) {
		t.Session.Ahead = nodeName(b.PID, b.XID, b.GID)
		if h := byServerPID(s.after, b.PID); b.PID != 0 && h != nil {
			t.Session.Ahead += hostPID(h)
		}
		return
	}
	holder := nodeName(b.PID, b.XID, b.GID)
	if h := byServerPID(s.after, b.PID); b.PID != 0 && h != nil && h.State != "" {
		holder += hostPID(h) + " (" + h.State
		if age := ageOf(s.after, h.StateStart); age != "" {
			holder += " for " + age
		}
		holder += ")"
	}
	others := -1
	for _, b := range y.Blockers {
		if held(b) {
			others++
		}
	}
	if others > 0 {
		holder += fmt.Sprintf(" and %d more", others)
	}
	t.Session.Holder = render.VisibleLine(holder)
}

// sessionOf returns the session with a process id of this program's namespace; nil: there is none.
func sessionOf(m *moment.Moment, pid int) *moment.Session {
	return findSession(m, func(s *moment.Session) bool { return s.PID == pid })
}

func byServerPID(m *moment.Moment, pid int) *moment.Session {
	return findSession(m, func(s *moment.Session) bool { return s.ServerPID == pid })
}

func findSession(m *moment.Moment, is func(*moment.Session) bool) *moment.Session {
	if m == nil {
		return nil
	}
	for i := range m.Sessions {
		if is(&m.Sessions[i]) {
			return &m.Sessions[i]
		}
	}
	return nil
}

func sameTime(a, b *time.Time) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(*b)
}

// printServer prints the traces of a round. Processes with the same stack are printed together, even if their queries differ. The
// groups are in the order of their first processes.
func (r *rounds) printServer() error {
	r.server.end(r.titles)
	if r.format == console.FormatJSON {
		for _, t := range r.server.traces {
			if err := render.JSON(r.stdout, t); err != nil {
				return err
			}
		}
		return nil
	}
	groups := map[string][]*backtrace.Trace{}
	var order []string
	for _, t := range r.server.traces {
		stack := *t
		stack.Query = ""
		text := r.body(&stack)
		if groups[text] == nil {
			order = append(order, text)
		}
		groups[text] = append(groups[text], t)
	}
	for _, text := range order {
		if err := r.printGroup(groups[text], text); err != nil {
			return err
		}
	}
	return nil
}

// printGroup prints traces with the same stack. text is this stack, without a query.
func (r *rounds) printGroup(group []*backtrace.Trace, text string) error {
	var s strings.Builder
	same := !slices.ContainsFunc(group, func(t *backtrace.Trace) bool {
		return t.Query != group[0].Query || t.QueryCut != group[0].QueryCut
	})
	if same {
		text = r.body(group[0])
	}
	if len(group) > 1 {
		pids := make([]string, len(group))
		for i, t := range group {
			pids[i] = strconv.Itoa(t.PID)
		}
		fmt.Fprintf(&s, "%s\n", r.heading(fmt.Sprintf("%d processes: %s", len(group), strings.Join(pids, ", "))))
	}
	for _, t := range group {
		line := r.title(t)
		if len(group) == 1 {
			line = r.heading(line)
		}
		fmt.Fprintf(&s, "%s\n", line)
		if query := render.Query(t); !same && query != "" {
			fmt.Fprintf(&s, "  query: %s\n", query)
		}
	}
	s.WriteString(text)
	s.WriteByte('\n')
	_, err := io.WriteString(r.stdout, s.String())
	return err
}
