// Package incident collects and stores incidents. An incident is everything that is known about a stall of a server when a rule
// finds it (package rules): the reason, the sessions with their stacks, the minutes before, the server and the host. The package
// writes one JSON file and one HTML page for each incident, and reads the JSON file.
//
// The package does not decide what an incident is, and does not log.
package incident

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
)

// Schema is the version of the JSON form. It changes if a member changes its meaning or is removed. A new member does not change
// the version.
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

// Manual stands in an incident's reason, instead of a rule's name, if a person and not a rule caused the incident to be recorded.
const Manual = "manual"

// Incident has the facts about a stall at the time when it was found.
type Incident struct {
	Schema  int       `json:"schema_version"`
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Program string    `json:"program_version"`
	// Ended is the last look of the worker with the reason. It is absent until the incident has ended, and if the worker ended before.
	Ended *time.Time `json:"ended,omitempty"`
	// Reason is the finding of a rule. Its Rule is Manual if a person has requested the incident.
	Reason rules.Finding `json:"reason"`
	Server Server        `json:"server"`
	// Sessions are the sessions that were not idle or blocked others. SessionsLeftOut is the number of further sessions, which are
	// left out because of a limit.
	Sessions        []Session `json:"sessions"`
	SessionsLeftOut int       `json:"sessions_left_out,omitempty"`
	// Forest has the processes that block others. The processes that wait for a process are its children.
	Forest []*Node `json:"forest"`
	// Stacks are the stacks of the processes in the reason, then of further processes. They were copied shortly after Time.
	Stacks []ProcessStack `json:"stacks"`
	// Memory has the processes with the most memory that is not shared. Plans has the plans of blocking and running processes. WAL
	// has positions in the WAL.
	Memory []ProcessMemory `json:"memory,omitempty"`
	Plans  []ProcessPlan   `json:"plans,omitempty"`
	WAL    *WAL            `json:"wal,omitempty"`
	// Profile is the profile of the seconds after the incident. It is absent while it is being taken.
	Profile *Profile `json:"profile,omitempty"`
	// History has the minutes before the incident.
	History History `json:"history"`
	// Settings are the postmaster's values of some settings.
	Settings []Setting `json:"settings"`
	Host     Host      `json:"host"`
	// Missing names the parts that could not be read, with the reasons.
	Missing []string `json:"missing,omitempty"`
}

// Server identifies the server.
type Server struct {
	SystemID string `json:"system_identifier"`
	Timeline uint32 `json:"timeline,omitempty"`
	// Position is the end of the WAL in the reply to IDENTIFY_SYSTEM; empty: there was no reply. Timeline is then the timeline in
	// the control file.
	Position   string `json:"wal_position,omitempty"`
	Version    string `json:"server_version,omitempty"`
	DataDir    string `json:"data_directory,omitempty"`
	Postmaster int    `json:"postmaster_pid,omitempty"`
	Clients    int    `json:"client_backends,omitempty"`
	Slots      int    `json:"connection_slots,omitempty"`
}

// Session is the state of a session. The JSON members have the same names as the columns of the history (store.Row).
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
	// HoldersUnknown is the reason why the processes that block this session are not known, and names possible ones.
	HoldersUnknown string `json:"holders_unknown,omitempty"`
	// Process is the letter of the process's state in proc(5). Switches is its number of context switches. Empty and 0: not known.
	Process  string `json:"process_state,omitempty"`
	Switches uint64 `json:"context_switches,omitempty"`
}

// Node is a process of the forest of waits. PID 0 is a prepared transaction. Mode and Object describe the lock for which the
// process waits. Blocked are the processes that wait for this process. Again is set if the processes are left out here, because
// another Node of this process has them or the tree is too deep.
type Node struct {
	PID     int32   `json:"pid"`
	Mode    string  `json:"mode,omitempty"`
	Object  string  `json:"object,omitempty"`
	Queued  bool    `json:"queued,omitempty"` // the parent does not hold the lock; this process is behind it in the queue
	Again   bool    `json:"repeated,omitempty"`
	Blocked []*Node `json:"blocked,omitempty"`
}

// ProcessStack is the stack of a process. Error is the reason why Stack is nil.
type ProcessStack struct {
	PID   int32           `json:"pid"`
	Time  time.Time       `json:"time"`
	Stack *recorder.Stack `json:"stack,omitempty"`
	Error string          `json:"error,omitempty"`
}

// History is the recorder's history of the minutes before the incident.
type History struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Seconds has the numbers of sessions in each second.
	Seconds []Second `json:"seconds"`
	// Spans are the times in which the state of a session did not change. LeftOut is the number of further spans, which are left
	// out because of a limit.
	Spans   []Span `json:"spans"`
	LeftOut int    `json:"spans_left_out,omitempty"`
}

// Second has the numbers of sessions in a second by the class of their wait event. The class "running" means no wait event.
type Second struct {
	Time   time.Time      `json:"time"`
	Counts map[string]int `json:"sessions"`
}

// Span is a time in which the state of a session did not change. From is the first sweep, To the last one, and Sweeps their number.
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

// sessionOf translates a row of the history.
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

// bounded cuts a text after maxText characters.
func bounded(text string) string {
	if len(text) <= maxText {
		return text
	}
	if runes := []rune(text); len(runes) > maxText {
		return string(runes[:maxText]) + "..."
	}
	return text
}

// sessions returns the sessions of the rows, at most maxSessions, and the number of further ones. The list begins with the
// processes in the parameter first.
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
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return cmp.Compare(rank(first, a.PID), rank(first, b.PID)) < 0
	})
	if len(list) > maxSessions {
		list, leftOut = list[:maxSessions], len(list)-maxSessions
	}
	return list, leftOut
}

// rank returns the position of a process in the list first, or the length of this list for other processes.
func rank(first []int32, pid int32) int {
	if i := slices.Index(first, pid); i >= 0 {
		return i
	}
	return len(first)
}

// forest returns trees of the processes that block others. The roots wait for no process, except in deadlocks: there, the root is a
// process of the cycle. The processes that wait for a process are below it. If a process occurs several times, only the first node has
// the processes below it.
func forest(list []Session) []*Node {
	nodes := map[int32]*Node{}
	first := map[int32]int32{} // the first process for which a process waits
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
				continue // the processes before it in the queue wait for the holder too, so they have nodes there
			}
			note(b.PID)
			note(s.PID)
			if j == 0 {
				first[s.PID] = b.PID
			}
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
	add := func(pid int32) {
		grow(nodes[pid], 0)
		roots = append(roots, nodes[pid])
	}
	for _, pid := range order {
		if _, waits := first[pid]; !waits {
			add(pid)
		}
	}
	for _, pid := range order { // the others are in a deadlock, wait behind one, or are deeper than a tree may be
		for !placed[pid] {
			root, met := pid, map[int32]bool{}
			for next, waits := first[root]; waits && !met[root] && !placed[next]; next, waits = first[root] {
				met[root], root = true, next
			}
			add(root)
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
