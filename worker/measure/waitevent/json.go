package waitevent

import (
	"io"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/report/render"
)

// JSONReport has the wait events of processes.
type JSONReport struct {
	// Method is the method by which the waits were measured. Mechanism is the kernel's mechanism that it uses.
	Method    waits.Method `json:"method"`
	Mechanism string       `json:"mechanism"`
	// Sees describes the waits that the method sees.
	Sees string `json:"sees"`
	// Reasons are the reasons why better methods were not used.
	Reasons []string `json:"not_used,omitempty"`
	// Seconds is the duration of the measurement.
	Seconds float64 `json:"seconds"`
	// Queries are the statements that --queries selects.
	Queries []jsonQuery `json:"queries,omitempty"`
	// Events are the sums of all processes.
	Events    []jsonEvent   `json:"events"`
	Processes []jsonProcess `json:"processes"`
	Lost      jsonLost      `json:"lost"`
}

// jsonQuery is a statement with its executions that have ended.
type jsonQuery struct {
	ID         int64   `json:"query_id,string"`
	Query      string  `json:"query,omitempty"`
	Executions uint64  `json:"executions"`
	Elapsed    float64 `json:"elapsed_ms"`
}

// jsonProcess has the waits of one process.
type jsonProcess struct {
	PID    int         `json:"pid"`
	Title  string      `json:"title,omitempty"`
	Ended  bool        `json:"ended"`
	Events []jsonEvent `json:"events"`
}

// jsonEvent has the waits for one event. A figure that the method does not measure is null.
type jsonEvent struct {
	Type  string `json:"wait_event_type"`
	Event string `json:"wait_event"`
	// Known is false if this program does not know the name of the event. The name is then a number.
	Known   bool     `json:"known"`
	Calls   *uint64  `json:"calls"`
	Total   float64  `json:"total_time_ms"`
	Average *float64 `json:"avg_time_us"`
	Longest *float64 `json:"max_time_us"`
	// Histogram has the numbers of waits by their duration: less than 1024 ns, from 1024 to 2048 ns, from 2048 to 4096 ns, and
	// so on. The last of the 32 has no upper limit.
	Histogram *[]uint64 `json:"histogram"`
}

// jsonLost has the numbers of missing waits.
type jsonLost struct {
	// Processes is the number of processes that ended before their figures were read.
	Processes uint64 `json:"processes"`
	// Overflow is the number of waits for which there was no room.
	Overflow uint64 `json:"overflow"`
	// Missed is the number of times that the kernel could not run a BPF program.
	Missed uint64 `json:"missed"`
	// Outside is the number of waits of processes that had not joined the shared memory yet, or had left it.
	Outside uint64 `json:"outside"`
	// Unreachable are the ids of processes whose waits were in progress when the measurement began, and are missing.
	Unreachable []int `json:"unreachable,omitempty"`
	// Unknown is the number of processes that a selection by user or database left out because their user or database is
	// not known. UnknownEnded is set if it left out ended processes too.
	Unknown      int  `json:"unknown_processes,omitempty"`
	UnknownEnded bool `json:"unknown_ended_processes,omitempty"`
	// Queries is the number of waits that are not attributed to a statement because there was no room.
	Queries uint64 `json:"queries,omitempty"`
}

// JSON prints a JSONReport.
func (r *Report) JSON(w io.Writer) error {
	out := JSONReport{
		Method: r.Info.Method, Mechanism: r.Info.Mechanism, Sees: Sees(r.Info), Reasons: r.Info.Reasons,
		Seconds: r.Took.Seconds(), Events: r.events(r.Rows), Processes: []jsonProcess{},
		Lost: jsonLost{
			r.Lost.Processes, r.Lost.Overflow, r.Lost.Missed, r.Lost.Outside, r.Info.Unreachable, r.Unknown, r.UnknownEnded, 0,
		},
	}
	for _, q := range r.Queries {
		out.Queries = append(out.Queries, jsonQuery{q.ID, q.Text, q.Executions, milliseconds(q.Elapsed)})
		out.Lost.Queries = r.Lost.Queries
	}
	for _, p := range r.Processes {
		out.Processes = append(out.Processes, jsonProcess{p.PID, p.Title, p.Ended, r.events(p.Rows)})
	}
	return render.JSONEncoder(w).Encode(out)
}

func (r *Report) events(rows []Row) []jsonEvent {
	events := make([]jsonEvent, len(rows))
	for i := range rows {
		row := &rows[i]
		e := jsonEvent{Type: row.Type, Event: row.Name, Known: row.Known, Total: milliseconds(row.Total)}
		if r.Info.Counts && row.Calls > 0 {
			average, longest := microseconds(row.Total)/float64(row.Calls), microseconds(row.Longest)
			histogram := row.Buckets[:]
			e.Calls, e.Average = &row.Calls, &average
			if r.Queries == nil {
				e.Longest, e.Histogram = &longest, &histogram
			}
		}
		events[i] = e
	}
	return events
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
