// Package incident makes a file of everything that is known about a stall of a server at the time at which it was noticed:
// the reason, the sessions with their stacks, the minutes before, the server and the host. It writes one JSON file and one
// HTML page for each incident, and reads them.
//
// The package does not decide what an incident is, and does not log.
package incident

import (
	"cmp"
	"slices"
	"time"

	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
)

// Schema is the version of the JSON form. It changes if a member changes its meaning or goes; a new member does not change
// it.
const Schema = 1

// Bounds of an incident.
const (
	maxSessions = 500
	maxStacks   = 32
	maxSpans    = 2000
	maxNodes    = 1000
	maxMissing  = 50
	maxText     = 2000 // characters of a query text
)

// Manual is the name of the rule of an incident that a person has taken.
const Manual = "manual"

// Incident has the facts about a stall at its time.
type Incident struct {
	Schema  int       `json:"schema_version"`
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Program string    `json:"program_version"`
	// Reason is the finding of a rule. Rule is Manual if a person has taken the incident.
	Reason rules.Finding `json:"reason"`
	Server Server        `json:"server"`
	// Sessions were not idle, or blocked others. SessionsLeftOut counts those beyond a limit.
	Sessions        []Session `json:"sessions"`
	SessionsLeftOut int       `json:"sessions_left_out,omitempty"`
	// Forest has the processes that block others, with the processes that wait for them below.
	Forest []*Node `json:"forest"`
	// Stacks are those of the processes that the reason names, then of further ones, and were taken a moment later.
	Stacks []ProcessStack `json:"stacks"`
	// Memory has the processes with the most memory of their own, Plans the plans of blocking and running processes, and WAL how far
	// WAL has come.
	Memory []ProcessMemory `json:"memory,omitempty"`
	Plans  []ProcessPlan   `json:"plans,omitempty"`
	WAL    *WAL            `json:"wal,omitempty"`
	// Profile has the seconds after. It is absent while it is being taken.
	Profile *Profile `json:"profile,omitempty"`
	// History has the minutes before.
	History History `json:"history"`
	// Settings are the postmaster's values of some settings, in their units.
	Settings []Setting `json:"settings"`
	Host     Host      `json:"host"`
	// Missing says which parts are not there, and why.
	Missing []string `json:"missing,omitempty"`
}

// Server identifies the server.
type Server struct {
	SystemID string `json:"system_identifier"`
	Timeline uint32 `json:"timeline,omitempty"`
	// Position is the end of WAL in reply to IDENTIFY_SYSTEM; empty: the server was not asked, and the timeline is the one in the
	// control file.
	Position   string `json:"wal_position,omitempty"`
	Version    string `json:"server_version,omitempty"`
	DataDir    string `json:"data_directory,omitempty"`
	Postmaster int    `json:"postmaster_pid,omitempty"`
	Clients    int    `json:"client_backends,omitempty"`
	Slots      int    `json:"connection_slots,omitempty"`
}

// Session is the state of a session. The members are named as the columns of the history.
type Session struct {
	PID        int32           `json:"pid"`
	Start      *time.Time      `json:"backend_start,omitempty"`
	Type       string          `json:"backend_type,omitempty"`
	Database   string          `json:"database,omitempty"`
	DatabaseID uint32          `json:"database_oid,omitempty"`
	User       string          `json:"user,omitempty"`
	UserID     uint32          `json:"user_oid,omitempty"`
	App        string          `json:"application_name,omitempty"`
	Client     string          `json:"client,omitempty"`
	State      string          `json:"state,omitempty"`
	XactStart  *time.Time      `json:"xact_start,omitempty"`
	QueryStart *time.Time      `json:"query_start,omitempty"`
	StateStart *time.Time      `json:"state_start,omitempty"`
	WaitType   string          `json:"wait_event_type,omitempty"`
	WaitEvent  string          `json:"wait_event,omitempty"`
	WaitStart  *time.Time      `json:"wait_start,omitempty"`
	QueryID    int64           `json:"query_id,omitempty,string"`
	Query      string          `json:"query,omitempty"`
	Leader     int32           `json:"leader_pid,omitempty"`
	Ended      bool            `json:"ended,omitempty"`
	Phrase     string          `json:"phrase,omitempty"`
	PhraseKey  string          `json:"phrase_key,omitempty"`
	BlockedBy  []store.Blocker `json:"blocked_by,omitempty"`
	// HoldersUnknown says why the processes are not known that block this one, and which may do it.
	HoldersUnknown string `json:"holders_unknown,omitempty"`
	// Process is the state letter of proc(5), and Switches the count of context switches; empty and 0: not known.
	Process  string `json:"process_state,omitempty"`
	Switches uint64 `json:"context_switches,omitempty"`
}

// Node is a process of the forest of waits. PID 0 is a prepared transaction.
type Node struct {
	PID     int32   `json:"pid"`
	Mode    string  `json:"mode,omitempty"`
	Object  string  `json:"object,omitempty"`
	Queued  bool    `json:"queued,omitempty"` // behind its parent in the queue, which does not hold the lock
	Again   bool    `json:"repeated,omitempty"`
	Blocked []*Node `json:"blocked,omitempty"`
}

// ProcessStack is the stack of a process, or the reason why it has none.
type ProcessStack struct {
	PID   int32           `json:"pid"`
	Time  time.Time       `json:"time"`
	Stack *recorder.Stack `json:"stack,omitempty"`
	Error string          `json:"error,omitempty"`
}

// History has the sweeps of the recorder before the incident.
type History struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Seconds counts the sessions of each second.
	Seconds []Second `json:"seconds"`
	// Spans are the times in which a session did the same. LeftOut counts those beyond a limit.
	Spans   []Span `json:"spans"`
	LeftOut int    `json:"spans_left_out,omitempty"`
}

// Second counts sessions by the class of their wait event; "running" is none.
type Second struct {
	Time   time.Time      `json:"time"`
	Counts map[string]int `json:"sessions"`
}

// Span is a time in which a session did the same.
type Span struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Sweeps  int       `json:"sweeps"`
	Session Session   `json:"session"`
}

// Setting is a setting of the server.
type Setting struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
	Unit  string `json:"unit,omitempty"`
}

// sessionOf translates a row.
func sessionOf(r *store.Row) Session {
	at := func(micro int64) *time.Time {
		if micro == 0 {
			return nil
		}
		t := time.UnixMicro(micro).UTC()
		return &t
	}
	return Session{
		PID: r.PID, Start: at(r.Start), Type: r.Type, Database: r.Database, DatabaseID: r.DatabaseID, User: r.User, UserID: r.UserID,
		App: r.App, Client: r.Client, State: r.State, XactStart: at(r.XactStart), QueryStart: at(r.QueryStart),
		StateStart: at(r.StateStart), WaitType: r.WaitType, WaitEvent: r.WaitEvent, WaitStart: at(r.WaitStart), QueryID: r.QueryID,
		Query: bounded(r.Query), Leader: r.Leader, Ended: r.Ended, Phrase: r.Does(), PhraseKey: r.PhraseKey, BlockedBy: r.BlockedBy,
	}
}

// bounded cuts a text.
func bounded(text string) string {
	if len(text) <= maxText {
		return text
	}
	if runes := []rune(text); len(runes) > maxText {
		return string(runes[:maxText]) + "..."
	}
	return text
}

// sessions returns the sessions of the rows. The processes in first come first.
func sessions(rows []store.Row, procs map[int32]rules.Proc, first []int32) (list []Session, leftOut int) {
	for i := range rows {
		if rows[i].Ended {
			continue
		}
		s := sessionOf(&rows[i])
		if p, ok := procs[s.PID]; ok {
			s.Process, s.Switches = string(rune(p.State)), p.Switches
		}
		list = append(list, s)
	}
	slices.SortStableFunc(list, func(a, b Session) int { return cmp.Compare(rank(first, a.PID), rank(first, b.PID)) })
	if len(list) > maxSessions {
		list, leftOut = list[:maxSessions], len(list)-maxSessions
	}
	return list, leftOut
}

// rank orders processes that a finding names before others.
func rank(first []int32, pid int32) int {
	if i := slices.Index(first, pid); i >= 0 {
		return i
	}
	return len(first)
}

// forest orders the processes by which one blocks which. Each process is once in the forest with those behind it.
func forest(list []Session) []*Node {
	nodes, waits := map[int32]*Node{}, map[int32]bool{}
	below := map[int32][]*Node{}
	var order []int32
	note := func(pid int32) {
		if nodes[pid] == nil {
			nodes[pid] = &Node{PID: pid}
			order = append(order, pid)
		}
	}
	for i := range list {
		s := &list[i]
		for j := range s.BlockedBy {
			b := &s.BlockedBy[j]
			if j > 0 && (b.Soft || b.PID == s.BlockedBy[0].PID) || len(order) > maxNodes {
				continue // the queue in front of it is behind the holder, too
			}
			note(b.PID)
			note(s.PID)
			waits[s.PID] = true
			below[b.PID] = append(below[b.PID], &Node{PID: s.PID, Mode: b.Mode, Object: b.Object, Queued: b.Soft})
		}
	}
	placed := map[int32]bool{}
	var grow func(n *Node, depth int)
	grow = func(n *Node, depth int) {
		const deepest = 100
		if n.Again = placed[n.PID] || depth > deepest; n.Again {
			return
		}
		placed[n.PID] = true
		n.Blocked = below[n.PID]
		for _, b := range n.Blocked {
			grow(b, depth+1)
		}
	}
	roots := []*Node{}
	for _, onlyRoots := range []bool{true, false} { // then deadlocks
		for _, pid := range order {
			if !placed[pid] && (!waits[pid] || !onlyRoots) {
				grow(nodes[pid], 0)
				roots = append(roots, nodes[pid])
			}
		}
	}
	slices.SortStableFunc(roots, func(a, b *Node) int { return size(b) - size(a) })
	return roots
}

func size(n *Node) int {
	count := 0
	for _, b := range n.Blocked {
		count += 1 + size(b)
	}
	return count
}
