package waitevent

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
)

// Report is a snapshot with names, ready to print.
type Report struct {
	Info waits.Info
	Took time.Duration
	// Since is when the figures began.
	Since time.Time
	Rows  []Row
	// InProgress are the waits in progress, which Rows includes.
	InProgress []waits.Event
	// Ended are the figures of ended processes; only Timer.Report sets it.
	Ended []Row
	// Processes are the figures of each process.
	Processes []ProcessRows
	Lost      waits.Lost
	// Idle has the shares of Text include idle waits.
	Idle bool
}

// ProcessRows are the figures of one process.
type ProcessRows struct {
	PID   int
	Title string
	Ended bool
	Rows  []Row
	// Slot, Overflow and Resets are those of waits.Process.
	Slot             int
	Overflow, Resets uint64
}

// Row is an event with its names.
type Row struct {
	waits.Event

	Type, Name string
	// Known is false if the version's table of names lacks the event.
	Known bool
}

// NewReport names what a snapshot holds, events with the largest total first. With pids it is about these processes
// only.
func (s *Server) NewReport(info waits.Info, snapshot *waits.Snapshot, title func(pid int) string, pids []int) Report {
	r := Report{Info: info, Took: snapshot.At.Sub(snapshot.Since), Since: snapshot.Since, Lost: snapshot.Lost}
	some := *snapshot
	if len(pids) > 0 {
		some.Ended, some.Processes = nil, slices.Clone(snapshot.Processes)
		some.Processes = slices.DeleteFunc(some.Processes, func(p waits.Process) bool {
			return !slices.Contains(pids, p.PID)
		})
	}
	r.Rows, r.InProgress = s.rows(some.Totals()), some.InProgress()
	for _, p := range some.Processes {
		r.Processes = append(r.Processes, ProcessRows{
			PID: p.PID, Title: title(p.PID), Ended: p.Ended, Rows: s.rows(p.Events), Slot: p.Slot,
			Overflow: p.Overflow, Resets: p.Resets,
		})
	}
	return r
}

// isIdle reports whether a process waits for work: a backend for its client, or another process for something to do.
func (r *Row) isIdle() bool {
	return r.Type == "Activity" || r.Type == "Client" && r.Name == "ClientRead"
}

// Select removes the waits of other types and events. Letter case does not count. An empty list selects everything.
func (r *Report) Select(types, events []string) {
	other := func(row Row) bool { return !isOneOf(types, row.Type) || !isOneOf(events, row.Name) }
	r.Rows, r.Ended = slices.DeleteFunc(r.Rows, other), slices.DeleteFunc(r.Ended, other)
	for i := range r.Processes {
		r.Processes[i].Rows = slices.DeleteFunc(r.Processes[i].Rows, other)
	}
}

func isOneOf(list []string, name string) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(wanted string) bool { return strings.EqualFold(wanted, name) })
}

func (s *Server) rows(events []waits.Event) []Row {
	rows := make([]Row, len(events))
	for i, e := range events {
		class, name, known := s.Names.Name(e.ID)
		rows[i] = Row{e, class, name, known}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.ID, b.ID))
	})
	return rows
}
