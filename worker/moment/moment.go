// Package moment has the description of what the processes of a server do at one time. It is pure data: the package must
// not know where the figures come from, or how they are printed.
//
// The JSON form has names in snake case, with the unit at the end where there is one, and times in the form of
// RFC 3339. A member that is not known is absent.
//
// MatchPhrase says in words what a process does (phrases.go). The phrases are data too, in phrases.txt.
package moment

import (
	"slices"
	"time"
)

// Moment is the state of all processes of a server at one time.
type Moment struct {
	// Time is when the server's processes began to be read, and DelayMicroseconds how long this took.
	Time              time.Time `json:"time"`
	DelayMicroseconds int64     `json:"delay_us"`
	// Cluster is the data directory of the server, and Version its major version.
	Cluster string `json:"data_directory"`
	Version int    `json:"server_version"`
	// Method says how the processes were read: "memory of the postmaster", or "recorded" for a moment from a recorder's
	// files.
	Method string `json:"method"`
	// Sessions are in ascending order of process id.
	Sessions []Session `json:"sessions"`
	// Blocking are the processes that block others or wait for a lock, with their waiters below them; nil: not read, or none.
	Blocking []*Node `json:"blocking,omitempty"`
	// Missing says what could not be read.
	Missing []string `json:"missing,omitempty"`
}

// OwnPIDs reports whether the server has other process ids than this host, because it is in another PID namespace, as in a container.
func (m *Moment) OwnPIDs() bool {
	return slices.ContainsFunc(m.Sessions, func(s Session) bool { return s.PID != s.ServerPID })
}

// Session is a process of the server with an entry in pg_stat_activity.
type Session struct {
	// PID is the process id in this process's PID namespace, ServerPID in the server's.
	PID       int `json:"pid"`
	ServerPID int `json:"server_pid"`
	// Started is the start time of the process that the server has recorded; nil: not known. Started and the process id
	// together identify the process.
	Started *time.Time `json:"backend_start,omitempty"`
	// Type is as backend_type in pg_stat_activity.
	Type string `json:"backend_type"`
	// DatabaseOID and UserOID are 0 if the process has none. Database and User are empty if the names are not known.
	DatabaseOID uint32 `json:"database_oid,omitempty"`
	UserOID     uint32 `json:"user_oid,omitempty"`
	Database    string `json:"database,omitempty"`
	User        string `json:"user,omitempty"`
	Application string `json:"application_name,omitempty"`
	// Client is an address, "local" for a Unix socket, or empty. ClientPort is 0 if there is none.
	Client     string `json:"client,omitempty"`
	ClientPort int    `json:"client_port,omitempty"`
	// State is as in pg_stat_activity, and empty for processes without a state.
	State      string     `json:"state,omitempty"`
	XactStart  *time.Time `json:"xact_start,omitempty"`
	QueryStart *time.Time `json:"query_start,omitempty"`
	StateStart *time.Time `json:"state_change,omitempty"`
	// Wait is nil while the process does not wait.
	Wait *Wait `json:"wait,omitempty"`
	// QueryID and Query are of the statement that runs, or of the last statement if none runs. Query is empty unless the
	// reader was asked for texts.
	QueryID int64  `json:"query_id,omitempty,string"`
	Query   string `json:"query,omitempty"`
	// QueryCut is set if the text is as long as track_activity_query_size allows, and so may be cut.
	QueryCut bool `json:"query_cut,omitempty"`
	// PrivateBytes is the resident memory that belongs to the process alone; 0: not read. It may have been read some
	// samples earlier.
	PrivateBytes uint64 `json:"private_bytes,omitempty"`
	// CPUPercent is the share of one processor that the process used in the time before the end of the read: 100 is one
	// processor all the time. nil: not measured.
	CPUPercent *float64 `json:"cpu_percent,omitempty"`
	// Leader is the process id (in the server's PID namespace) of the leader of a parallel worker; 0: none.
	Leader int `json:"leader_pid,omitempty"`
	// Progress is nil unless a command reports its progress.
	Progress *Progress `json:"progress,omitempty"`
	// Blockers are the processes that this one waits for.
	Blockers []Blocker `json:"blockers,omitempty"`
	// BlockersUnknown says why the blockers of a process that waits are not known.
	BlockersUnknown string `json:"blockers_unknown,omitempty"`
	// Phrase says in words what the process does, and Function is the innermost function of a procedural language, with the
	// line.
	Phrase   string `json:"phrase,omitempty"`
	Function string `json:"function,omitempty"`
}

// Wait is a wait event.
type Wait struct {
	Type  string `json:"wait_event_type"`
	Event string `json:"wait_event"`
	// Since is when the wait began; nil: not known.
	Since *time.Time `json:"wait_start,omitempty"`
}

// Progress is the progress that a command reports, with the numbers of PostgreSQL's progress.h.
type Progress struct {
	Command   int       `json:"command"`
	TargetOID uint32    `json:"target_oid,omitempty"`
	Params    [20]int64 `json:"params"`
}

// Blocker is a process for which another one waits.
type Blocker struct {
	// PID is in the server's PID namespace; 0: a prepared transaction, with GID if its name could be read.
	PID int    `json:"pid"`
	XID uint32 `json:"xid,omitempty"`
	GID string `json:"gid,omitempty"`
	// Lock and Object are the lock, and Mode is the mode in which the waiting process wants it. Object is written with
	// numbers, such as 5/16384: first the database, if the lock belongs to one.
	Lock   string `json:"lock,omitempty"`
	Mode   string `json:"mode,omitempty"`
	Object string `json:"object,omitempty"`
	// Relation is the name of the relation to which the lock belongs, without its schema, if the name is certain.
	Relation string     `json:"relation,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	// Held are the modes in which the blocker holds the lock, separated by commas. Queued is set if the blocker does not hold
	// the lock, but is ahead of the waiting process in the lock's queue.
	Held   string `json:"held,omitempty"`
	Queued bool   `json:"queued,omitempty"`
	// Behind is how many bytes of WAL, up to the end of the waiting commit, a synchronous standby has not confirmed. The
	// blocker is then the process that sends WAL to the standby. 0: the wait is not for a standby.
	Behind uint64 `json:"behind_bytes,omitempty"`
}

// Node is a process, a group of parallel processes or a prepared transaction in the forest of waits for locks.
type Node struct {
	// PID is the process, or the leader of the group, in the server's PID namespace; 0: a prepared transaction.
	PID int    `json:"pid"`
	XID uint32 `json:"xid,omitempty"`
	GID string `json:"gid,omitempty"`
	// Waits are the waits of the process or of all processes of its group.
	Waits []LockWait `json:"waits,omitempty"`
	// Deadlock is set if the node waits, directly or not, for itself.
	Deadlock bool `json:"deadlock,omitempty"`
	// Repeated is set if the forest has this node at another place too, and its waiters only there.
	Repeated bool    `json:"repeated,omitempty"`
	Blocked  []*Node `json:"blocked,omitempty"`
}

// LockWait is a wait of a process for a lock or for other processes.
type LockWait struct {
	PID    int    `json:"pid"`
	Lock   string `json:"lock"`
	Mode   string `json:"mode,omitempty"`
	Object string `json:"object,omitempty"`
	// Relation is the name of the relation to which the lock belongs, without its schema, if the name is certain.
	Relation string     `json:"relation,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	// Row is the row for which the process waits, in words. It is set if the lock belongs to the transaction that has
	// changed the row.
	Row string `json:"row,omitempty"`
	// Unknown says why the holders of the lock are not known. It is empty if they are.
	Unknown string `json:"holders_unknown,omitempty"`
	// Candidates are the ids of processes, one of which may hold the buffer pin; nil: none are known.
	Candidates []int `json:"may_hold,omitempty"`
	// MoreCandidates is the number of candidates that are not in Candidates.
	MoreCandidates int `json:"more_candidates,omitempty"`
}
