// Package source has the data of the incident screens: the load of a server over time, its sessions, the processes that
// block others, and findings. The screens know the interface Source only, so they work with live samples, and with the
// files of a recorder. Each answer is plain data, and its JSON form is the interface of the browser page.
//
// Rules for all answers:
//
//   - Members have names in snake case. Numbers have their unit in the name. Times are in the form of RFC 3339. A member that
//     is not known is absent.
//   - "Active sessions" are means over time: 2.5 means that 2.5 sessions were active on average. Their sum over a second is
//     database time.
//   - Texts come from users of the server: a screen must make them harmless where it shows them.
//   - Process ids are those of the server.
//
// The package must not know how a screen shows the data.
package source

import (
	"context"
	"errors"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// Source gives the data of one server. It may be used by several goroutines at a time.
type Source interface {
	// Info describes the server, and the data that the source has.
	Info(ctx context.Context) (*Info, error)
	// Watch makes the source take samples until end is called. Without a watcher, a live source does not read the server.
	// The channel receives a value after each sample. A receiver that is late gets one value for several samples.
	Watch() (changed <-chan struct{}, end func())
	// Load returns the active sessions by wait class over time, in about so many columns.
	Load(ctx context.Context, q Query, columns int) (*Load, error)
	// `Who` returns the share of each user, query, event and so on in the database time, the largest first.
	Who(ctx context.Context, q Query, by By, limit int) (*Who, error)
	// Findings returns the sentences about the newest sample, the worst first. The span gives their shares.
	Findings(ctx context.Context, s Span) (*Findings, error)
	// Sessions returns the sessions of the newest sample: active sessions and open transactions first, then idle sessions.
	Sessions(ctx context.Context, f Filter, limit int) (*Sessions, error)
	// Blocking returns the processes that wait for a lock, below the processes that block them, of the newest sample.
	Blocking(ctx context.Context) (*Blocking, error)
	// Session returns one process: its state of the newest sample, and its waits in the span. The error is ErrNoSession if
	// the process is in no sample of the span, and not in the newest one.
	Session(ctx context.Context, pid int, s Span) (*Session, error)
}

// Prober reads a process at the time of the call. A source that is not live has no Prober. No method stops the process.
// The answers have texts of statements, so only a reader with the right to see them may call the methods.
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

// Span is a time. The end does not belong to it.
type Span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Query says which samples count.
type Query struct {
	Span

	Filter Filter `json:"filter,omitempty"`
}

// By is a property of an active session.
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

// Properties returns the properties by which a source counts, in the order of the screens.
func Properties() []By {
	return []By{ByQuery, ByEvent, ByUser, ByApplication, ByDatabase, ByPhrase, BySession, ByType}
}

// Condition is a property and its value. Key is from WhoRow.
type Condition struct {
	By  By     `json:"by"`
	Key string `json:"key"`
	// Name is how a screen shows the key.
	Name string `json:"name,omitempty"`
}

// Filter is a list of conditions, all of which must hold. An empty filter lets all sessions pass.
type Filter []Condition

// Info describes a server and the data about it.
type Info struct {
	DataDir string     `json:"data_directory"`
	Version int        `json:"server_version"`
	Port    int        `json:"port,omitempty"`
	Started *time.Time `json:"started,omitempty"`
	// Ended is set if the server does not run any more.
	Ended bool `json:"ended,omitempty"`
	// Standby is set while the server replays WAL. It is absent if that is not known.
	Standby *bool `json:"standby,omitempty"`
	// Processors is the number of processors that the server may use.
	Processors float64 `json:"processors,omitempty"`
	// MaxConnections is the parameter max_connections.
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
	// Error is why there is no newer sample; empty: the last attempt was successful.
	Error string `json:"error,omitempty"`
	// Missing says which data the source lacks, and how to get it.
	Missing []string `json:"missing,omitempty"`
	// Sessions counts the sessions of the newest sample.
	Sessions Counts `json:"sessions"`
}

// Counts are numbers of sessions.
type Counts struct {
	Active            int `json:"active"`
	IdleInTransaction int `json:"idle_in_transaction"`
	Idle              int `json:"idle"`
	// Waiting is the number of processes that wait for a lock.
	Waiting int `json:"waiting_for_locks"`
	// Clients is the number of client backends. They share max_connections.
	Clients int `json:"client_backends"`
}

// Load is the number of active sessions over time.
type Load struct {
	Span

	// ColumnSeconds is the length of a column. Columns begin at multiples of it.
	ColumnSeconds float64 `json:"column_seconds"`
	// Classes are the wait classes that occur, in the order of Classes.
	Classes []string `json:"classes"`
	Columns []Column `json:"columns"`
	// Active has the mean active sessions of the whole span for each class.
	Active []float64 `json:"active_sessions"`
	// Seconds is the time that the samples stand for.
	Seconds float64 `json:"sampled_seconds"`
	// Gaps are the parts without data.
	Gaps []Gap `json:"gaps,omitempty"`
}

// Kind says how the data of a column was made.
type Kind string

// The kinds. A column without data has KindNone.
const (
	KindNone     Kind = ""
	KindSampled  Kind = "sampled"
	KindRecorded Kind = "recorded"
	// KindMinute has means over minutes, of recorded or older samples.
	KindMinute Kind = "minutes"
)

// Column is a part of a Load.
type Column struct {
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind,omitempty"`
	// Active has the mean active sessions for each of the Classes; nil: no data.
	Active []float64 `json:"active_sessions,omitempty"`
}

// `Who` is a table of shares.
type Who struct {
	Span

	By   By       `json:"by"`
	Rows []WhoRow `json:"rows"`
	// Others are the rows beyond the limit, together.
	Others *WhoRow `json:"others,omitempty"`
	// Active is the mean number of active sessions that pass the filter.
	Active  float64 `json:"active_sessions"`
	Seconds float64 `json:"sampled_seconds"`
}

// WhoRow is one value of a property.
type WhoRow struct {
	// Key is for a Condition. It has no text of a statement.
	Key  string `json:"key"`
	Name string `json:"name"`
	// Count is the number of values in the row Others.
	Count  int     `json:"count,omitempty"`
	Active float64 `json:"active_sessions"`
	// Share is in percent of the database time that passes the filter.
	Share float64 `json:"percent"`
	// ByClass are the active sessions by wait class.
	ByClass map[string]float64 `json:"by_class"`
}

// Severity is how bad a finding is.
type Severity string

// The severities.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
)

// Finding is a sentence about the server that the newest sample proves.
type Finding struct {
	// Key identifies the finding between samples.
	Key string `json:"key"`
	// Rule is the kind of the finding.
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
	// Detail is a text of a user of the server, such as a statement. It is empty without the right to see texts.
	Detail string `json:"detail,omitempty"`
	// Since is when the fact began, or the first sample that showed it without a break. Then AtLeast is set.
	Since   time.Time `json:"since"`
	AtLeast bool      `json:"at_least,omitempty"`
	// Sessions is the number of sessions that the finding concerns.
	Sessions int `json:"sessions"`
	// Share is the part of the sessions in the database time of the span, in percent. It is absent if the sessions are not
	// active.
	Share *float64 `json:"percent,omitempty"`
	// PID is the process to look at first; 0: none.
	PID int `json:"pid,omitempty"`
	// Filter selects the sessions; empty: no filter does.
	Filter Filter `json:"filter,omitempty"`
}

// Findings are the findings of the newest sample.
type Findings struct {
	Time     time.Time `json:"time"`
	Findings []Finding `json:"findings"`
	// Unknown says which rules could not be applied, and the reason.
	Unknown []string `json:"unknown,omitempty"`
}

// Sessions is a list of sessions.
type Sessions struct {
	Time     time.Time     `json:"time"`
	Sessions []SessionLine `json:"sessions"`
	// More is the number of sessions beyond the limit.
	More int `json:"more,omitempty"`
	// Missing says what could not be read.
	Missing []string `json:"missing,omitempty"`
}

// SessionLine is a session and its wait class.
type SessionLine struct {
	moment.Session

	// Class is empty if the session is not active.
	Class string `json:"class,omitempty"`
}

// Blocking is the forest of waits for locks.
type Blocking struct {
	Time time.Time `json:"time"`
	// Waiting is the number of processes that wait, Trees the number of roots.
	Waiting int `json:"waiting"`
	Trees   int `json:"trees"`
	// Nodes are in the order of the screen: each node is followed by the nodes below it.
	Nodes []BlockingNode `json:"nodes"`
	// Missing says what could not be read.
	Missing []string `json:"missing,omitempty"`
}

// BlockingNode is a process, a group of parallel processes, or a prepared transaction.
type BlockingNode struct {
	// Depth is 0 for a root.
	Depth int    `json:"depth"`
	PID   int    `json:"pid"`
	XID   uint32 `json:"xid,omitempty"`
	GID   string `json:"gid,omitempty"`
	// Session is absent for prepared transactions, and for processes that the sample does not have.
	Session *SessionLine `json:"session,omitempty"`
	// Waits are empty for a node that does not wait.
	Waits []moment.LockWait `json:"waits,omitempty"`
	// Blocks is the number of nodes that wait for this one directly or through others, Directly of the former.
	Blocks   int  `json:"blocks"`
	Directly int  `json:"directly"`
	Deadlock bool `json:"deadlock,omitempty"`
	// MoreBlockers is the number of nodes for which the node waits too, beside the node above it.
	MoreBlockers int `json:"more_blockers,omitempty"`
}

// Session is one process.
type Session struct {
	Time time.Time `json:"time"`
	// Now is absent if the newest sample does not have the process.
	Now *SessionLine `json:"now,omitempty"`
	// Waits are the states in the span, the oldest first.
	Waits []WaitSpan `json:"waits"`
	// Blocked are the processes that wait for this one directly.
	Blocked []int `json:"blocked,omitempty"`
}

// WaitSpan is a time in which a process had the same state in each sample.
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
	// Engine is how the stack was copied.
	Engine string `json:"engine"`
	// Phrase says in words what the process does. Advice is a sentence, Page a page of PostgreSQL's manual.
	Phrase string  `json:"phrase,omitempty"`
	Advice string  `json:"advice,omitempty"`
	Page   string  `json:"manual_page,omitempty"`
	Frames []Frame `json:"frames"` // innermost first
	// Stop is why the stack ends before its outermost frame; empty: it is whole.
	Stop string `json:"stop,omitempty"`
	// Kernel are the kernel functions of a process in uninterruptible sleep.
	Kernel []string `json:"kernel,omitempty"`
}

// Frame is a frame of a stack.
type Frame struct {
	// Function is a name or, without one, the module and the offset.
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
	// Phrase says in words what the running node does, "" if it is not known or not proven.
	Phrase string `json:"phrase,omitempty"`
	// Unproven is set if the layout was not compared with EXPLAIN on a server of the same build.
	Unproven bool `json:"unproven,omitempty"`
	// Whole is set if no outer statement can be missing.
	Whole bool `json:"whole"`
}

// PlanLevel is the plan of one statement.
type PlanLevel struct {
	Statement string `json:"statement,omitempty"`
	// Text is as EXPLAIN prints it. "=>" marks the node that runs.
	Text string `json:"text,omitempty"`
	// Reason is why the plan, or a part of it, is not known.
	Reason string `json:"reason,omitempty"`
}

// Memory is the memory of a process.
type Memory struct {
	Time time.Time `json:"time"`
	// Contexts are the sums of memory contexts with the same name, the largest first.
	Contexts []MemorySum `json:"contexts"`
	// TotalBytes and FreeBytes are of all contexts.
	TotalBytes int64 `json:"total_bytes"`
	FreeBytes  int64 `json:"free_bytes"`
	// ResidentBytes and SwappedBytes are of the process. They are absent if they could not be read.
	ResidentBytes *int64 `json:"resident_bytes,omitempty"`
	SwappedBytes  *int64 `json:"swapped_bytes,omitempty"`
	// Inexact is why the figures are not of one moment, or not complete.
	Inexact string `json:"inexact,omitempty"`
}

// MemorySum is the sum of memory contexts.
type MemorySum struct {
	Name       string `json:"name"`
	Contexts   int    `json:"contexts"`
	TotalBytes int64  `json:"total_bytes"`
	FreeBytes  int64  `json:"free_bytes"`
}
