package state

import (
	"strconv"
	"strings"
	"time"
)

// Bounds of a SessionLog.
const (
	maxLoggedQueries  = 10_000
	maxLoggedText     = 2000 // bytes of a text
	maxLoggedSessions = 100_000
)

// SessionLog collects the texts of statements by query id, and users and databases by process, from repeated reads of the
// server's memory. It must not be used by several goroutines at a time.
type SessionLog struct {
	reader   *Reader
	interval time.Duration
	last     time.Time
	texts    map[int64]string
	sessions map[int]loggedSession
}

// loggedSession has the names and the backend type of the process with an id. ambiguous is set if two processes have had the id.
type loggedSession struct {
	SessionNames

	kind      string
	started   time.Time
	ambiguous bool
}

// SessionNames are the user and the database of a process. A name is empty if it is not known, and an oid is 0 if the
// process has none.
type SessionNames struct {
	User, Database       string
	UserOID, DatabaseOID uint32
}

// NewSessionLog makes an empty log. Look reads the server at most once in the interval.
func NewSessionLog(r *Reader, interval time.Duration) *SessionLog {
	return &SessionLog{reader: r, interval: interval, texts: map[int64]string{}, sessions: map[int]loggedSession{}}
}

// Look reads what the processes do now, unless the last read was less than the interval ago. After a failed read the log
// keeps its earlier content.
func (l *SessionLog) Look() {
	if time.Since(l.last) < l.interval {
		return
	}
	m, err := l.reader.Read(Options{Texts: true})
	l.last = time.Now()
	if err != nil {
		return
	}
	for i := range m.Sessions {
		s := &m.Sessions[i]
		l.note(s.PID, s.Started, s.Type, SessionNames{s.User, s.Database, s.UserOID, s.DatabaseOID})
		l.add(s.QueryID, s.Query)
	}
}

// note stores the names and the type of a process, in place of those of earlier reads: a process that is still starting may not have
// its user yet.
func (l *SessionLog) note(pid int, started *time.Time, kind string, names SessionNames) {
	old, ok := l.sessions[pid]
	if !ok && len(l.sessions) >= maxLoggedSessions {
		return
	}
	now := loggedSession{SessionNames: names, kind: kind, ambiguous: old.ambiguous}
	if started != nil {
		now.started = *started
	}
	now.ambiguous = now.ambiguous || ok && !old.started.Equal(now.started)
	l.sessions[pid] = now
}

// add keeps the first text of a query, so that a text does not change within a measurement.
func (l *SessionLog) add(id int64, text string) {
	if id == 0 || text == "" || l.texts[id] != "" || len(l.texts) >= maxLoggedQueries {
		return
	}
	if len(text) > maxLoggedText {
		text = strings.ToValidUTF8(text[:maxLoggedText], "") + "..."
	}
	l.texts[id] = text
}

// Texts returns the text of one execution of each query that was seen, by query id.
func (l *SessionLog) Texts() map[int64]string { return l.texts }

// Session returns the names of a process; false if no read has seen it, or if two processes have had its id. A missing
// name is added if another process with the same oid has shown it.
func (l *SessionLog) Session(pid int) (SessionNames, bool) {
	s, ok := l.sessions[pid]
	if !ok || s.ambiguous {
		return SessionNames{}, false
	}
	if s.User == "" {
		s.User = l.reader.users.of(s.UserOID)
	}
	if s.Database == "" {
		s.Database = l.reader.databases.of(s.DatabaseOID)
	}
	return s.SessionNames, true
}

// BackendType returns the backend type of a process; empty if Session has no names of it.
func (l *SessionLog) BackendType(pid int) string {
	if s := l.sessions[pid]; !s.ambiguous {
		return s.kind
	}
	return ""
}

// Is reports whether a process has one of the users and one of the databases. A word is a name or an oid. An empty list
// selects every process.
func (n SessionNames) Is(users, databases []string) bool {
	return isOne(users, n.User, n.UserOID) && isOne(databases, n.Database, n.DatabaseOID)
}

func isOne(words []string, name string, oid uint32) bool {
	for _, word := range words {
		if oid != 0 && (word == name && name != "" || word == strconv.FormatUint(uint64(oid), 10)) {
			return true
		}
	}
	return len(words) == 0
}
