package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
)

// forest prints the trees of blocking processes and the processes that wait for them. Each node has a line, and more lines for its
// waits, its phrase and its query.
func (f *activityFlags) forest(out io.Writer, m *moment.Moment) error {
	const deepest = 20 // levels of indentation
	sessions := make(map[int]*moment.Session, len(m.Sessions))
	for i := range m.Sessions {
		sessions[m.Sessions[i].ServerPID] = &m.Sessions[i]
	}
	type entry struct {
		node  *moment.Node
		depth int
	}
	var todo []entry
	push := func(nodes []*moment.Node, depth int) {
		for i := range nodes {
			todo = append(todo, entry{nodes[len(nodes)-1-i], depth})
		}
	}
	var s strings.Builder
	s.WriteString(f.title(m))
	if f.standbys != "" {
		fmt.Fprintf(&s, "synchronous_standby_names is %q\n", f.standbys)
	}
	push(m.Blocking, 0)
	switch {
	case len(todo) > 0 || lacksLocks(m):
	case len(f.pids) > 0:
		s.WriteString("none of these processes waits for a lock or blocks another process\n")
	default:
		s.WriteString("no process waits for a lock\n")
	}
	for len(todo) > 0 {
		e := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		indent := strings.Repeat("    ", min(e.depth, deepest))
		for i, line := range f.describe(m, e.node, sessions[e.node.PID]) {
			if i == 1 {
				indent += "  "
			}
			fmt.Fprintf(&s, "%s%s\n", indent, unfolded(line))
		}
		push(e.node.Blocked, e.depth+1)
	}
	for _, missing := range m.Missing {
		fmt.Fprintf(&s, "missing: %s\n", unfolded(missing))
	}
	_, err := io.WriteString(out, s.String())
	return err
}

// unfolded returns a text as one line without control characters.
func unfolded(text string) string { return render.VisibleLine(strings.Join(strings.Fields(text), " ")) }

// lacksLocks reports whether the locks could not be read.
func lacksLocks(m *moment.Moment) bool {
	for _, missing := range m.Missing {
		if strings.HasPrefix(missing, "locks: ") {
			return true
		}
	}
	return false
}

// nodeName returns the process id. For a prepared transaction (pid 0), it returns 0 and the transaction's name or number.
func nodeName(pid int, xid uint32, gid string) string {
	switch {
	case pid != 0:
		return strconv.Itoa(pid)
	case gid != "":
		return fmt.Sprintf("0 (prepared transaction %q)", gid)
	}
	return fmt.Sprintf("0 (prepared transaction %d)", xid)
}

// hostPID returns the process id on this host, if the server has another one for the process.
func hostPID(s *moment.Session) string {
	if s.PID == s.ServerPID {
		return ""
	}
	return fmt.Sprintf(" (host_pid %d)", s.PID)
}

// identity returns the user, database, application, state, times and client of a session, after a space.
func identity(m *moment.Moment, s *moment.Session) (text string) {
	for _, part := range []string{
		console.NameOrOID(s.User, s.UserOID) + "@" + console.NameOrOID(s.Database, s.DatabaseOID), s.Application, s.State,
	} {
		if part != "" && part != "@" {
			text += " " + part
		}
	}
	if s.State == "" || s.Type != state.ClientBackend {
		text += " " + s.Type
	}
	if age := ageOf(m, s.XactStart); age != "" {
		text += ", transaction " + age
	}
	if age := ageOf(m, s.StateStart); age != "" {
		text += ", state " + age
	}
	if s.Client != "" && s.Client != "local" {
		text += ", client " + s.Client
	}
	return text
}

// query returns the query of a session as one line, of at most the width that the user wants.
func (f *activityFlags) query(s *moment.Session) string {
	query := []rune(unfolded(s.Query))
	if len(query) > f.width {
		query = append(query[:f.width:f.width], []rune("...")...)
	}
	return string(query)
}

// candidates returns two lines for each process that may hold the buffer pin: the process and its query.
func (f *activityFlags) candidates(m *moment.Moment, w *moment.LockWait) (lines []string) {
	const most = 5 // as many as the line of the wait names
	pids := slices.Sorted(slices.Values(w.Candidates))
	for _, pid := range pids[:min(most, len(pids))] {
		s := byServerPID(m, pid)
		if s == nil {
			continue
		}
		lines = append(lines, fmt.Sprintf("may hold it: %d%s%s", pid, hostPID(s), identity(m, s)))
		if s.Query != "" {
			lines = append(lines, "its query: "+f.query(s))
		}
	}
	return lines
}

// describe returns the lines of a node: the process, its waits, its phrase, and its query.
func (f *activityFlags) describe(m *moment.Moment, n *moment.Node, s *moment.Session) []string {
	first := nodeName(n.PID, n.XID, n.GID)
	if s != nil {
		first += hostPID(s) + identity(m, s)
	}
	if n.Deadlock {
		first += " (deadlock)"
	}
	if n.Repeated {
		return []string{first + " (see above)"}
	}
	lines := []string{first}
	for i := range n.Waits {
		lines = append(append(lines, waitLine(m, n, &n.Waits[i])), f.candidates(m, &n.Waits[i])...)
	}
	if s != nil && s.Phrase != "" && !f.repeatsWait(n, s) {
		lines = append(lines, unfolded(s.Phrase))
	}
	if s != nil && s.Query != "" {
		lines = append(lines, f.query(s))
	}
	return lines
}

// repeatsWait reports whether the phrase of a session says no more than the line of its wait, and its place in the tree.
func (f *activityFlags) repeatsWait(n *moment.Node, s *moment.Session) bool {
	i := slices.IndexFunc(n.Waits, func(w moment.LockWait) bool { return w.PID == s.ServerPID })
	if i < 0 {
		return false
	}
	switch f.lockPhrases[s.ServerPID] {
	case "lock-relation", "lock-row-queue", "lock-advisory":
		return true
	case "lock-row":
		return n.Waits[i].Row != ""
	}
	return false
}

// behind returns the first blocker of a process if none of its blockers holds the lock, because all of them wait for the lock
// before it in the queue. Otherwise it returns 0.
func behind(m *moment.Moment, pid int) int {
	s := byServerPID(m, pid)
	if s == nil || len(s.Blockers) == 0 || slices.ContainsFunc(s.Blockers, func(b moment.Blocker) bool { return !b.Queued }) {
		return 0
	}
	return s.Blockers[0].PID
}

func waitLine(m *moment.Moment, n *moment.Node, w *moment.LockWait) string {
	lock, database := moment.LockWords(w.Lock, w.Object, w.Relation)
	line := "waits for " + lock
	if w.PID != n.PID {
		line = fmt.Sprintf("process %d waits for %s", w.PID, lock)
	}
	if database != "" && database != "0" {
		line += " of database " + database
	}
	if w.Mode != "" {
		line += " " + w.Mode
	}
	if w.Row != "" {
		line += ", for " + w.Row
	}
	if first := behind(m, w.PID); first != 0 {
		line += fmt.Sprintf(", behind the waiting %d", first)
	}
	if age := ageOf(m, w.Since); age != "" {
		line += ", " + age
	}
	if w.Unknown != "" {
		unknown := w.Unknown
		if strings.HasPrefix(unknown, "unknown: ") {
			unknown = "holders " + unknown
		}
		line += " (" + unknown + ")"
	}
	return line
}
