package waitevent

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
)

// Report is a waits.Snapshot with the names of events.
type Report struct {
	Info waits.Info
	Took time.Duration
	// Since is the time from which on the figures count.
	Since time.Time
	// Rows has the sums of all processes for each event, the event with the largest total first.
	Rows []Row
	// InProgress are the waits in progress. Rows includes them.
	InProgress []waits.Event
	// Ended are the figures of ended processes; only Timer.Report sets it.
	Ended []Row
	// Processes are the figures of each process.
	Processes []ProcessRows
	Lost      waits.Lost
	// Idle makes Text include idle waits in the shares.
	Idle bool
	// Queries is not nil in a report of some queries. Rows then have no maxima and histograms, and there are no Processes.
	Queries []QueryTotal
	// Unknown is the number of processes that a selection by user or database left out because their user or database was not
	// known. UnknownEnded is set if it left out ended processes too.
	Unknown      int
	UnknownEnded bool
	// Selected is set if the report has only a part of the processes or events of the measurement. Others are the events that
	// Select has removed, if it has removed all.
	Selected bool
	Others   []string
}

// QueryTotal has the number of executions of a query that have ended, and their total time within the measurement.
type QueryTotal struct {
	ID         int64
	Text       string // empty: not known
	Executions uint64
	Elapsed    time.Duration
}

// ProcessRows has the figures of one process.
type ProcessRows struct {
	PID   int
	Title string
	Ended bool
	Rows  []Row
	// Slot, Overflow and Resets have the meaning of the fields of waits.Process.
	Slot             int
	Overflow, Resets uint64
}

// Row is an event with its names.
type Row struct {
	waits.Event

	Type, Name string
	// Known is false if this package does not know the name of the event in this version. Name is then a number.
	Known bool
}

// NewReport returns the report of a snapshot. The function title returns the title of a process. If pids is not empty, the report
// has only these processes.
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

// NewQueryReport returns the report of the queries with these ids. figures are the result of Provider.Queries. texts has the texts
// of queries by id.
func (s *Server) NewQueryReport(
	info waits.Info, snapshot *waits.Snapshot, figures []waits.QueryFigures, ids []int64, texts map[int64]string,
) Report {
	r := Report{
		Info: info, Took: snapshot.At.Sub(snapshot.Since), Since: snapshot.Since, Lost: snapshot.Lost,
		Queries: make([]QueryTotal, len(ids)),
	}
	for i, id := range ids {
		r.Queries[i] = QueryTotal{ID: id, Text: texts[id]}
	}
	sums := make(map[uint32]*waits.Event)
	for _, f := range figures {
		i := slices.Index(ids, int64(f.Query))
		switch {
		case i < 0:
		case f.Event == 0:
			r.Queries[i].Executions += f.Calls
			r.Queries[i].Elapsed += f.Total
		default:
			if sums[f.Event] == nil {
				sums[f.Event] = &waits.Event{ID: f.Event}
			}
			sums[f.Event].Calls += f.Calls
			sums[f.Event].Total += f.Total
		}
	}
	events := make([]waits.Event, 0, len(sums))
	for _, e := range sums {
		events = append(events, *e)
	}
	r.Rows = s.rows(events)
	return r
}

// isIdle reports whether the event is a wait for work: of a backend for its client, or of a background process.
func (r *Row) isIdle() bool {
	return r.Type == "Activity" || r.Type == "Client" && r.Name == "ClientRead"
}

// Select removes the waits whose type is not in types or whose event is not in events. It ignores the case of letters. An empty
// list selects everything.
func (r *Report) Select(types, events []string) {
	other := func(row Row) bool { return !isOneOf(types, row.Type) || !isOneOf(events, row.Name) }
	r.Selected = r.Selected || len(types) > 0 || len(events) > 0
	all := slices.Clone(r.Rows)
	r.Rows, r.Ended = slices.DeleteFunc(r.Rows, other), slices.DeleteFunc(r.Ended, other)
	if len(r.Rows) == 0 {
		for _, row := range all {
			r.Others = append(r.Others, row.Name)
		}
		slices.Sort(r.Others)
		r.Others = slices.Compact(r.Others)
	}
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
