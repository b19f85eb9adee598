// Package source has the data of the incident screens: the load of a server over time, its sessions, the processes that
// block others, and findings. The screens know only the interface Source, so they work with live samples and with the
// files of a recorder. Each answer is plain data, which the browser page gets as JSON.
//
// Rules for all answers:
//
//   - Members have names in snake case. Numbers have their unit in the name. Times are in the form of RFC 3339. A member whose
//     value is not known is absent.
//   - "Active sessions" are means over time: 2.5 means that 2.5 sessions were active on average. Their sum over a second is
//     database time.
//   - Users of the server choose the texts and names: a screen must escape each text that it shows.
//   - Process ids are as the server sees them, in its namespace.
//
// The package must not know how a screen shows the data.
package source

import (
	"context"
	"errors"
	"strings"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// Source gives the data of one server. It may be used by several goroutines at a time.
type Source interface {
	// Info returns a description of the server, and of the data that the source has.
	Info(ctx context.Context) (*Info, error)
	// Watch makes the source take samples until end is called. A live source reads the server only while there is such a watcher.
	// The channel receives a value after each sample. A receiver that is late gets one value for several samples.
	Watch() (changed <-chan struct{}, end func())
	// Load returns the active sessions by wait class over time. The number of columns is approximate.
	Load(ctx context.Context, q Query, columns int) (*Load, error)
	// `Who` returns the share of each value of the property by (such as each user) in the database time, the largest first.
	// Values beyond limit are added up in Others; 0: no limit.
	Who(ctx context.Context, q Query, by By, limit int) (*Who, error)
	// Findings returns the findings of the newest sample, the worst first. Their shares are parts of the database time of the
	// span.
	Findings(ctx context.Context, s Span) (*Findings, error)
	// Sessions returns the sessions of the newest sample that pass the filter: first active sessions, then open transactions,
	// then idle sessions; at most limit, 0: all.
	Sessions(ctx context.Context, f Filter, limit int) (*Sessions, error)
	// Blocking returns the processes that wait for a lock in the newest sample. They stand below the processes that block them.
	Blocking(ctx context.Context) (*Blocking, error)
	// Session returns one process: its state in the newest sample, and its waits in the span. The error is ErrNoSession if
	// the process is not in the newest sample and in no sample of the span.
	Session(ctx context.Context, pid int, s Span) (*Session, error)
}

// Prober returns stack, plan and memory of a process. A live source reads the process at the time of the call, without a stop.
// The answers have texts of statements, so call the methods only for readers with the right to see texts.
type Prober interface {
	Stack(ctx context.Context, pid int) (*Stack, error)
	Plan(ctx context.Context, pid int) (*Plan, error)
	Memory(ctx context.Context, pid int) (*Memory, error)
}

// The errors of a source.
var (
	// ErrNoSession means that the server has no such process.
	ErrNoSession = errors.New("the server has no process with this id")
	// ErrNoSample means that no sample has been taken yet.
	ErrNoSample = errors.New("no sample has been taken yet")
)

// Span is the time from From until before To.
type Span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Query selects the sessions of an answer: by time and by their properties.
type Query struct {
	Span

	Filter Filter `json:"filter,omitempty"`
}

// By is a property of an active session, by which answers are grouped.
type By string

// The properties.
const (
	ByQuery       By = "query"
	ByEvent       By = "event"
	ByUser        By = "user"
	ByDatabase    By = "database"
	ByApplication By = "application"
	ByPhrase      By = "phrase"
	BySession     By = "session"
	ByType        By = "type"
	ByClass       By = "class"
)

// Properties returns the properties by which the screens group processes, in the order of the screens. ByClass is not among them.
func Properties() []By {
	return []By{ByQuery, ByEvent, ByUser, ByApplication, ByDatabase, ByPhrase, BySession, ByType}
}

// Condition is a property and a value that sessions must have. Key is the value in the form of WhoRow.Key.
type Condition struct {
	By  By     `json:"by"`
	Key string `json:"key"`
	// Name is the text that a screen shows for the key.
	Name string `json:"name,omitempty"`
}

// Local reports whether the key is valid only in the process that made it. It is the key of a statement without a query id.
func (c *Condition) Local() bool { return c.By == ByQuery && strings.HasPrefix(c.Key, textKey) }

// Filter is a list of conditions. A session passes if it meets all of them. All sessions pass an empty filter.
type Filter []Condition

// Info describes a server and the data about it.
type Info struct {
	DataDir string     `json:"data_directory"`
	Version int        `json:"server_version"`
	Port    int        `json:"port,omitempty"`
	Started *time.Time `json:"started,omitempty"`
	// Ended is set if the server does not run any more.
	Ended bool `json:"ended,omitempty"`
	// Standby is true while the server replays WAL. It is absent if this is not known.
	Standby *bool `json:"standby,omitempty"`
	// Replay is present on a standby if its replay of WAL is known.
	Replay *Replay `json:"replay,omitempty"`
	// OwnPIDs is set if the server has other process ids than its host, as in a container.
	OwnPIDs bool `json:"own_process_ids,omitempty"`
	// Processors is the number of processors that the server may use. It is absent if the number is not known.
	Processors float64 `json:"processors,omitempty"`
	// MaxConnections is the parameter max_connections. It is absent if it is not known.
	MaxConnections int `json:"max_connections,omitempty"`
	// IntervalSeconds is the time between two samples.
	IntervalSeconds float64 `json:"interval_seconds"`
	// First and Last are the times of the oldest and the newest sample.
	First *time.Time `json:"first,omitempty"`
	Last  *time.Time `json:"last,omitempty"`
	// Recorded is the directory of the recorder's files that the source also reads; empty: none.
	Recorded string `json:"recorded,omitempty"`
	// Past is set for an earlier time, whose data does not change.
	Past bool `json:"past,omitempty"`
	// Texts is set if the source has the texts of statements.
	Texts bool `json:"texts"`
	// CostPercent is the processor time of this program, in percent of one processor.
	CostPercent *float64 `json:"cost_percent_of_a_processor,omitempty"`
	// Error says why the last attempt to sample failed. It is absent after a success.
	Error string `json:"error,omitempty"`
	// Missing says which data of the newest sample could not be read, and why.
	Missing []string `json:"missing,omitempty"`
	// Sessions counts the sessions of the newest sample.
	Sessions Counts `json:"sessions"`
}

// Counts are numbers of sessions by state.
type Counts struct {
	Active            int `json:"active"`
	IdleInTransaction int `json:"idle_in_transaction"`
	Idle              int `json:"idle"`
	// Waiting is the number of processes that wait for a lock.
	Waiting int `json:"waiting_for_locks"`
	// Clients is the number of client backends. They share max_connections.
	Clients int `json:"client_backends"`
}

// Load is the number of active sessions over time, in columns of equal length.
type Load struct {
	Span

	// ColumnSeconds is the length of a column. Columns begin at multiples of this length.
	ColumnSeconds float64 `json:"column_seconds"`
	// Classes are the wait classes that occur, in the order of Classes.
	Classes []string `json:"classes"`
	Columns []Column `json:"columns"`
	// Active has the mean active sessions of the whole span for each of the Classes.
	Active []float64 `json:"active_sessions"`
	// Seconds is the time of the span with samples.
	Seconds float64 `json:"sampled_seconds"`
	// Gaps are the parts without data.
	Gaps []Gap `json:"gaps,omitempty"`
}

// Kind is the origin of samples, and of the data of a column.
type Kind string

// The kinds. A column without data has KindNone.
const (
	KindNone     Kind = ""
	KindSampled  Kind = "sampled"
	KindRecorded Kind = "recorded"
	// KindMinute are means over minutes: sums in the recorder's files, or old samples that were added up.
	KindMinute Kind = "minutes"
)

// Column is a part of a Load.
type Column struct {
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind,omitempty"`
	// Active has the mean active sessions for each of the Classes; nil: no data.
	Active []float64 `json:"active_sessions,omitempty"`
}

// `Who` is a table with the share of each value of a property in the database time.
type Who struct {
	Span

	By   By       `json:"by"`
	Rows []WhoRow `json:"rows"`
	// Others is the sum of the rows beyond the limit; absent: there are no more rows.
	Others *WhoRow `json:"others,omitempty"`
	// Active is the mean number of active sessions that pass the filter.
	Active  float64 `json:"active_sessions"`
	Seconds float64 `json:"sampled_seconds"`
}

// WhoRow is the share of one value of a property.
type WhoRow struct {
	// Key is the value for a Condition. It has no text of a statement.
	Key  string `json:"key"`
	Name string `json:"name"`
	// Count is set only in the row named Others, which stands for all values without a row of their own: it is the number of
	// these values.
	Count  int     `json:"count,omitempty"`
	Active float64 `json:"active_sessions"`
	// Share is the percentage of the database time of the sessions that pass the filter.
	Share float64 `json:"percent"`
	// ByClass are the active sessions by wait class.
	ByClass map[string]float64 `json:"by_class"`
}

// Severity says how urgent a finding is.
type Severity string

// The severities.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
)

// Finding is a sentence about the server whose facts the newest samples prove.
type Finding struct {
	// Key identifies the finding between samples.
	Key string `json:"key"`
	// Rule is the kind of the finding.
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
	// Detail is a text that a user of the server has chosen, such as a statement. It is absent for readers without the right to
	// see texts.
	Detail string `json:"detail,omitempty"`
	// Since is the time when the fact began. If this is not known, AtLeast is set, and Since is the time of the first of the
	// samples in a row that showed the fact.
	Since   time.Time `json:"since"`
	AtLeast bool      `json:"at_least,omitempty"`
	// Sessions is the number of sessions that the finding concerns.
	Sessions int `json:"sessions"`
	// Share is the part of these sessions in the database time of the span, in percent. It is absent if they are not active.
	Share *float64 `json:"percent,omitempty"`
	// PID is the process to look at first; 0: none.
	PID int `json:"pid,omitempty"`
	// Filter selects the sessions that the finding concerns; absent: a filter cannot select them.
	Filter Filter `json:"filter,omitempty"`
}

// Findings are the findings of the newest sample.
type Findings struct {
	Time     time.Time `json:"time"`
	Findings []Finding `json:"findings"`
	// Unknown says which rules could not be applied, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Sessions is a list of sessions.
type Sessions struct {
	Time     time.Time     `json:"time"`
	Sessions []SessionLine `json:"sessions"`
	// More is the number of sessions that were left out because of the limit.
	More int `json:"more,omitempty"`
	// Missing says what could not be read.
	Missing []string `json:"missing,omitempty"`
}

// SessionLine is a session and its wait class.
type SessionLine struct {
	moment.Session

	// Class is empty if the session is not active.
	Class string `json:"class,omitempty"`
	// Own is set for a session of this program, such as its worker. Only the application name shows that, and each user can choose
	// this name: so the session counts like all others.
	Own bool `json:"own,omitempty"`
}

// Blocking is the forest of waits for locks.
type Blocking struct {
	Time time.Time `json:"time"`
	// Waiting is the number of processes that wait for a lock. Trees is the number of roots.
	Waiting int `json:"waiting"`
	Trees   int `json:"trees"`
	// Nodes are in the order of the screen: each node is followed by the nodes below it.
	Nodes []BlockingNode `json:"nodes"`
	// Missing says what could not be read.
	Missing []string `json:"missing,omitempty"`
}

// BlockingNode is a process, a group of parallel processes, or a prepared transaction.
type BlockingNode struct {
	// Depth is the distance from the root of the tree; 0: the node is a root.
	Depth int    `json:"depth"`
	PID   int    `json:"pid"`
	XID   uint32 `json:"xid,omitempty"`
	GID   string `json:"gid,omitempty"`
	// Session is absent for prepared transactions, and for processes that the sample does not have.
	Session *SessionLine `json:"session,omitempty"`
	// Waits are the locks for which the node waits. They are absent if it does not wait.
	Waits []moment.LockWait `json:"waits,omitempty"`
	// Blocks is the number of nodes that wait for this node directly or through others. Directly is the number of nodes that
	// wait directly.
	Blocks   int  `json:"blocks"`
	Directly int  `json:"directly"`
	Deadlock bool `json:"deadlock,omitempty"`
	// MoreBlockers is the number of other nodes for which this node also waits, beside the node above it.
	MoreBlockers int `json:"more_blockers,omitempty"`
}

// Session is one process in the newest sample, and its waits in a span.
type Session struct {
	Time time.Time `json:"time"`
	// Now is absent if the newest sample does not have the process.
	Now *SessionLine `json:"now,omitempty"`
	// Waits are the states in the span, the oldest first.
	Waits []WaitSpan `json:"waits"`
	// Blocker describes the first process that blocks this one, such as "4711 (cron, idle in transaction for 8 min) on relation
	// orders". It is absent if no process does, and for readers without the right to see names.
	Blocker string `json:"blocker,omitempty"`
	// Blocked are the ids of the processes that wait for this process directly.
	Blocked []int `json:"blocked,omitempty"`
	// Used is what the process used since an earlier answer, up to a minute ago. It is absent in the first answer, and for earlier times.
	Used *Used `json:"used,omitempty"`
}

// WaitSpan is a time in which a process had the same class, event and statement in each sample.
type WaitSpan struct {
	Span

	// Class is empty if the process was not active.
	Class string `json:"class,omitempty"`
	// Event is the wait event, or "CPU" without one.
	Event string `json:"event,omitempty"`
	// Query is the statement without values, or its id.
	Query string `json:"query,omitempty"`
}

// Stack is the call stack of a process.
type Stack struct {
	Time time.Time `json:"time"`
	// Engine is the method by which the stack was copied.
	Engine string `json:"engine"`
	// Phrase says in words what the process does. Advice is a sentence about what to do. Page is a page of PostgreSQL's manual
	// without ".html", such as "explicit-locking".
	Phrase string  `json:"phrase,omitempty"`
	Advice string  `json:"advice,omitempty"`
	Page   string  `json:"manual_page,omitempty"`
	Frames []Frame `json:"frames"` // innermost first
	// Stop says why the stack ends before its outermost frame; absent: the stack is complete.
	Stop string `json:"stop,omitempty"`
	// Kernel are the kernel functions of a process in uninterruptible sleep.
	Kernel []string `json:"kernel,omitempty"`
}

// Frame is a frame of a stack.
type Frame struct {
	// Function is the function's name or, without one, module and offset.
	Function string `json:"function"`
	Named    bool   `json:"named"`
	Module   string `json:"module,omitempty"`
	Place    string `json:"place,omitempty"` // file and line
	Note     string `json:"note,omitempty"`
	// Levels are PostgreSQL's own levels, such as a line of a PL/pgSQL function.
	Levels []string `json:"levels,omitempty"`
}

// Plan has the plans of the statements of a process, the outermost first.
type Plan struct {
	Time   time.Time   `json:"time"`
	Engine string      `json:"engine"`
	Levels []PlanLevel `json:"levels"`
	// Progress is absent unless the process runs a utility command that reports its progress.
	Progress *Progress `json:"progress,omitempty"`
	// Phrase says in words what the running node of the plan does. It is absent if that is not known, or Unproven is set.
	Phrase string `json:"phrase,omitempty"`
	// Unproven is set if plans of this build of the server were not compared with EXPLAIN.
	Unproven bool `json:"unproven,omitempty"`
	// Whole is set if the list of statements is complete, so that no outer statement can be missing.
	Whole bool `json:"whole"`
}

// PlanLevel is the plan of one statement.
type PlanLevel struct {
	Statement string `json:"statement,omitempty"`
	// Text is the plan in the form of EXPLAIN. "=>" marks the node that runs.
	Text string `json:"text,omitempty"`
	// Reason is why the plan, or a part of it, is not known.
	Reason string `json:"reason,omitempty"`
}

// Memory is the memory of a process.
type Memory struct {
	Time time.Time `json:"time"`
	// Contexts are PostgreSQL's memory contexts, one entry for all contexts with the same name, the largest first.
	Contexts []MemorySum `json:"contexts"`
	// TotalBytes and FreeBytes are the sums of all contexts.
	TotalBytes int64 `json:"total_bytes"`
	FreeBytes  int64 `json:"free_bytes"`
	// ResidentBytes and SwappedBytes are the memory of the whole process. They are absent if they could not be read.
	ResidentBytes *int64 `json:"resident_bytes,omitempty"`
	SwappedBytes  *int64 `json:"swapped_bytes,omitempty"`
	// Inexact says why the figures are from different moments, or incomplete; absent: they are exact.
	Inexact string `json:"inexact,omitempty"`
}

// MemorySum is the sum of the memory contexts with one name.
type MemorySum struct {
	Name       string `json:"name"`
	Contexts   int    `json:"contexts"`
	TotalBytes int64  `json:"total_bytes"`
	FreeBytes  int64  `json:"free_bytes"`
}
