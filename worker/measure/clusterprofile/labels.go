package clusterprofile

import (
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/worker/pg/state"
)

// The names of the labels.
const (
	LabelPID         = "pid"
	LabelBackendType = "backend_type"
	LabelDatabase    = "database"
	LabelUser        = "user"
	LabelApplication = "application_name"
	LabelQueryID     = "query_id"
	LabelWaitType    = "wait_event_type"
	LabelWaitEvent   = "wait_event"
	LabelState       = "state"
	// LabelOffCPU is "sleeping" or "runnable" for time off the processor: a runnable process waits for a processor.
	LabelOffCPU = "off_cpu"
	// LabelQuery is the text of one execution of the query: see Options.Texts.
	LabelQuery = "query"
	// LabelPhrase describes what the process did, without names of objects; see render.PlainPhrase.
	LabelPhrase = "phrase"
)

// Labels returns the names of all labels.
func Labels() []string {
	return []string{
		LabelPID, LabelBackendType, LabelDatabase, LabelUser, LabelApplication, LabelQueryID, LabelWaitType, LabelWaitEvent,
		LabelState, LabelOffCPU, LabelPhrase, LabelQuery,
	}
}

// identity has the properties of a process that seldom change.
type identity struct {
	pid            int // the process id that the server sees; 0: not known
	backendType    string
	database, user uint32 // OIDs
	application    string
}

// labels are the labels of a sample. A label with a zero or empty value is missing. The state is missing if it is the
// constant absent.
type labels struct {
	identity

	query  uint64
	event  uint32
	state  uint32
	offCPU string
	phrase string // only set by builder.add
}

// absent is the value of labels.state if the state is not known, as while the process was changing its entry.
const absent = ^uint32(0)

// labelsOf returns the labels of a record. If the record has the names of the database and the user, it remembers them.
func (c *collector) labelsOf(p *profiledProcess, r *clusterbpf.Record) labels {
	l := labels{identity: identity{pid: p.serverPID}, event: r.Event, state: absent}
	if r.Flags&clusterbpf.Runnable != 0 {
		l.offCPU = runnable
	} else if r.Kind == clusterbpf.Off || r.Kind == clusterbpf.Sleeper {
		l.offCPU = sleeping
	}
	if r.Flags&clusterbpf.Consistent != 0 || r.Flags&clusterbpf.HasEntry == 0 {
		l.backendType = c.backendType(r)
	}
	if r.Flags&clusterbpf.Consistent == 0 {
		return l
	}
	l.database, l.user, l.application = r.Database, r.User, clean(r.ApplicationName)
	l.state = r.State
	l.query = c.queryOf(r.QueryID, r.State)
	if int(r.State) == c.server.waits.Target.Layout.Running && l.backendType == state.ClientBackend {
		if c.active++; l.query != 0 {
			c.identified++
		}
	}
	if r.Flags&clusterbpf.HasPort != 0 {
		learn(c.databases, r.Database, r.DatabaseName)
		learn(c.users, r.User, r.UserName)
	}
	return l
}

const (
	runnable = "runnable"
	sleeping = "sleeping"
)

// learn stores a name with which a session logged in. If sessions logged in with different names, the role or the database was
// renamed. Its name is then empty: not known.
func learn(names map[uint32]string, oid uint32, name []byte) {
	text := clean(name)
	if oid == 0 || text == "" {
		return
	}
	if old, ok := names[oid]; ok && old != text {
		text = ""
	}
	names[oid] = text
}

// clean returns a text from the server's memory as valid UTF-8, as a profile requires. The server may use another encoding.
func clean(text []byte) string { return strings.ToValidUTF8(string(text), "\uFFFD") }

// backendType returns backend_type as in pg_stat_activity. A background worker chooses its type itself.
func (c *collector) backendType(r *clusterbpf.Record) string {
	if int(r.BackendType) == c.server.worker && len(r.WorkerType) > 0 {
		return clean(r.WorkerType)
	}
	return nameOf(c.server.types, r.BackendType)
}

// queryOf returns the query id if the state is active, else 0: the server keeps the id after the end of the statement.
func (c *collector) queryOf(query uint64, state uint32) uint64 {
	if int(state) != c.server.waits.Target.Layout.Running {
		return 0
	}
	return query
}

// named returns the labels in the form of a pprof profile.
func (c *collector) named(l *labels) map[string][]string {
	m := make(map[string][]string)
	set := func(name, value string) {
		if value != "" {
			m[name] = []string{value}
		}
	}
	if l.pid != 0 {
		set(LabelPID, strconv.Itoa(l.pid))
	}
	set(LabelBackendType, l.backendType)
	set(LabelDatabase, nameOfOID(c.databases, l.database))
	set(LabelUser, nameOfOID(c.users, l.user))
	set(LabelApplication, l.application)
	if l.query != 0 {
		set(LabelQueryID, strconv.FormatInt(int64(l.query), 10))
		if c.log != nil {
			set(LabelQuery, c.log.Texts()[int64(l.query)])
		}
	}
	if l.event != 0 {
		class, event, _ := c.server.waits.Names.Name(l.event)
		set(LabelWaitType, class)
		set(LabelWaitEvent, event)
	}
	if l.state != absent {
		set(LabelState, nameOf(c.server.states, l.state))
	}
	set(LabelOffCPU, l.offCPU)
	set(LabelPhrase, l.phrase)
	return m
}

func nameOfOID(names map[uint32]string, oid uint32) string {
	switch name := names[oid]; {
	case oid == 0:
		return ""
	case name != "":
		return name
	}
	return strconv.FormatUint(uint64(oid), 10)
}

// passes reports whether a sample with these labels is wanted.
func (c *collector) passes(l *labels) bool {
	f := &c.options.Filter
	return (len(f.QueryIDs) == 0 || l.query != 0 && slices.Contains(f.QueryIDs, int64(l.query))) &&
		(len(f.PIDs) == 0 || slices.Contains(f.PIDs, l.pid)) &&
		(len(f.BackendTypes) == 0 || slices.Contains(f.BackendTypes, l.backendType)) &&
		passesOID(f.Databases, c.databases, l.database) && passesOID(f.Users, c.users, l.user)
}

func passesOID(wanted []string, names map[uint32]string, oid uint32) bool {
	if len(wanted) == 0 {
		return true
	}
	name := names[oid]
	return oid != 0 && (name != "" && slices.Contains(wanted, name) ||
		slices.Contains(wanted, strconv.FormatUint(uint64(oid), 10)))
}

// serverPID returns the process id that the server sees. It returns 0 if the server is in another PID namespace and the process
// has ended.
func (c *collector) serverPID(pid int) int {
	if translate := c.server.waits.Target.ServerPID; translate != nil {
		return translate(pid)
	}
	return pid
}
