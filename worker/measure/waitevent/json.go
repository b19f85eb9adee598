package waitevent

import (
	"io"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/report/render"
)

// JSONReport are the wait events of processes.
type JSONReport struct {
	// Method is how the waits were measured, Mechanism the means of the kernel.
	Method    waits.Method `json:"method"`
	Mechanism string       `json:"mechanism"`
	// Sees says which waits the method sees.
	Sees string `json:"sees"`
	// Reasons says why better methods were not used.
	Reasons []string `json:"not_used,omitempty"`
	// Seconds is the duration of the measurement.
	Seconds float64 `json:"seconds"`
	// Queries are the statements, with --queries.
	Queries []jsonQuery `json:"queries,omitempty"`
	// Events are the sums of all processes.
	Events    []jsonEvent   `json:"events"`
	Processes []jsonProcess `json:"processes"`
	Lost      jsonLost      `json:"lost"`
}

// jsonQuery is a statement.
type jsonQuery struct {
	ID         int64   `json:"query_id,string"`
	Query      string  `json:"query,omitempty"`
	Executions uint64  `json:"executions"`
	Elapsed    float64 `json:"elapsed_ms"`
}

// jsonProcess are the waits of one process.
type jsonProcess struct {
	PID    int         `json:"pid"`
	Title  string      `json:"title,omitempty"`
	Ended  bool        `json:"ended"`
	Events []jsonEvent `json:"events"`
}

// jsonEvent are the waits for one event. A figure that the method does not know is null.
type jsonEvent struct {
	Type  string `json:"wait_event_type"`
	Event string `json:"wait_event"`
	// Known is false if the version of the server has no event with this number.
	Known   bool     `json:"known"`
	Calls   *uint64  `json:"calls"`
	Total   float64  `json:"total_time_ms"`
	Average *float64 `json:"avg_time_us"`
	Longest *float64 `json:"max_time_us"`
	// Histogram has the numbers of waits by their duration, as doc/wait-events.md explains.
	Histogram *[]uint64 `json:"histogram"`
}

// jsonLost counts missing waits.
type jsonLost struct {
	// Processes have ended, and their figures were lost.
	Processes uint64 `json:"processes"`
	// Overflow are waits for which there was no room.
	Overflow uint64 `json:"overflow"`
	// Missed are moments at which the kernel could not run a program.
	Missed uint64 `json:"missed"`
	// Outside are waits of processes that had not joined the shared memory, or had left it.
	Outside uint64 `json:"outside"`
	// Unreachable are processes whose waits in progress at the start are missing.
	Unreachable []int `json:"unreachable,omitempty"`
	// Unknown is the number of processes that could not be read. UnknownEnded is set if there may be more that have ended.
	Unknown      int  `json:"unknown_processes,omitempty"`
	UnknownEnded bool `json:"unknown_ended_processes,omitempty"`
	// Queries are waits that are not attributed to a statement because there was no room.
	Queries uint64 `json:"queries,omitempty"`
}

// JSON prints one object. What the method does not know is null.
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
