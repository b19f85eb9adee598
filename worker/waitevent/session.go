package waitevent

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/waits"
)

// SessionReport adds up the records of one session by query.
type SessionReport struct {
	server  *Server
	queries map[uint64]*sessionQuery
	between sessionQuery // waits outside of queries
	lost    uint64
}

// sessionQuery holds the figures of one query.
type sessionQuery struct {
	id         uint64
	executions int
	elapsed    time.Duration
	longest    time.Duration
	waited     time.Duration
	// current is the time of waits of the execution that runs, and inEnded of the executions with a known end.
	current, inEnded time.Duration
	events           map[uint32]*waits.Event
}

// NewSessionReport makes an empty report.
func (s *Server) NewSessionReport() *SessionReport {
	return &SessionReport{server: s, queries: make(map[uint64]*sessionQuery)}
}

// Add adds records in the order in which they came.
func (r *SessionReport) Add(records []waits.Record) {
	for _, record := range records {
		q := r.query(record.Query)
		switch record.Kind {
		case waits.QueryStart:
			q.current = 0
		case waits.QueryEnd:
			q.executions++
			q.elapsed += record.Took
			q.longest = max(q.longest, record.Took)
			q.inEnded += q.current
			q.current = 0
		case waits.Wait:
			q.add(record)
		case waits.ExecutorStart, waits.ExecutorEnd: // the report is about whole queries
		}
	}
}

// query returns the figures of a query; id 0 stands for the time outside of queries.
func (r *SessionReport) query(id uint64) *sessionQuery {
	if id == 0 {
		return &r.between
	}
	if r.queries[id] == nil {
		r.queries[id] = &sessionQuery{id: id}
	}
	return r.queries[id]
}

func (q *sessionQuery) add(record waits.Record) {
	if q.events == nil {
		q.events = make(map[uint32]*waits.Event)
	}
	e := q.events[record.Event]
	if e == nil {
		e = &waits.Event{ID: record.Event}
		q.events[record.Event] = e
	}
	e.Calls++
	e.Total += record.Took
	e.Longest = max(e.Longest, record.Took)
	q.waited += record.Took
	q.current += record.Took
}

// Text prints the queries, the longest in total first.
func (r *SessionReport) Text(w io.Writer) error {
	var b strings.Builder
	queries := make([]*sessionQuery, 0, len(r.queries))
	for _, q := range r.queries {
		queries = append(queries, q)
	}
	slices.SortFunc(queries, func(a, b *sessionQuery) int {
		return cmp.Or(cmp.Compare(max(b.elapsed, b.waited), max(a.elapsed, a.waited)), cmp.Compare(a.id, b.id))
	})
	for _, q := range queries {
		fmt.Fprintf(&b, "Query %d: %d executions ended", int64(q.id), q.executions)
		if q.executions > 0 {
			fmt.Fprintf(&b, ", %s elapsed, %s on average, %s at most", short(q.elapsed),
				short(q.elapsed/time.Duration(q.executions)), short(q.longest))
		}
		b.WriteByte('\n')
		r.events(&b, q)
	}
	b.WriteString("Outside of queries, or without a query id:\n")
	r.events(&b, &r.between)
	if r.lost > 0 {
		fmt.Fprintf(&b, "Missing: %d records that came faster than they could be read.\n", r.lost)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// SetLost notes how many records are missing.
func (r *SessionReport) SetLost(n uint64) { r.lost = n }

// events prints the waits of a query, and the rest of its time.
func (r *SessionReport) events(b *strings.Builder, q *sessionQuery) {
	list := make([]waits.Event, 0, len(q.events))
	for _, e := range q.events {
		list = append(list, *e)
	}
	rows := r.server.rows(list)
	total := max(q.elapsed, q.waited)
	line := func(name, calls string, d time.Duration, average, longest string) {
		share := fmt.Sprintf("%.1f %%", 100*float64(d)/float64(max(total, 1)))
		text := fmt.Sprintf("    %-36s %9s %9s %7s %9s %9s", name, calls, short(d), share, average, longest)
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	if len(rows) > 0 || q.elapsed > 0 {
		fmt.Fprintf(b, "    %-36s %9s %9s %7s %9s %9s\n", "EVENT", "CALLS", "TOTAL", "SHARE", "AVERAGE", "MAXIMUM")
	}
	for i := range rows {
		e := &rows[i]
		line(e.Type+" "+e.Name, strconv.FormatUint(e.Calls, 10), e.Total, short(e.Total/time.Duration(e.Calls)),
			short(e.Longest))
	}
	if rest := q.elapsed - q.inEnded; rest > 0 {
		line("(no wait seen)", "", rest, "", "")
	}
}
