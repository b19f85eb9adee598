package waitevent

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// SessionReport adds up the records of one session by query.
//
// An execution of a query is counted if its start and its end were seen, and no other query ran between them. The shares of a
// query are of its counted executions, so they add up to 100 %. The other figures are of all waits that were seen.
type SessionReport struct {
	server  *Server
	queries map[uint64]*sessionQuery
	others  sessionQuery // further queries, after the first maxQueries; its id is 0 if there are none
	between sessionQuery // waits outside of queries, and queries without an id
	running *execution   // nil: no execution runs
	began   time.Time    // of the trace; the zero time: not known
	lost    uint64
	texts   map[int64]string
	going   []Row // waits that have not ended; see SetGoing
}

// sessionQuery has the figures of one query.
type sessionQuery struct {
	id     uint64
	events map[uint32]*sessionEvent
	waited time.Duration
	// These are of the counted executions.
	executions       int
	elapsed, longest time.Duration
	waitedInCounted  time.Duration
	// These are numbers of executions that are not counted.
	unended, unbegun int // the end or the start was not seen
	together         int // the client sent other queries in the same message
}

// sessionEvent has the figures of a wait event of a query. counted is its total time in counted executions.
type sessionEvent struct {
	waits.Event

	counted time.Duration
}

// execution is an execution whose start was seen and whose end was not seen yet.
type execution struct {
	query uint64 // 0: not known yet
	waits map[waitOf]*waits.Event
}

// waitOf identifies the waits for an event while the session had a query id.
type waitOf struct {
	query uint64
	event uint32
}

// NewSessionReport returns an empty report.
func (s *Server) NewSessionReport() *SessionReport {
	return &SessionReport{server: s, queries: make(map[uint64]*sessionQuery)}
}

// Add adds records of the session, which must be in the order of their times.
func (r *SessionReport) Add(records []waits.Record) {
	for _, record := range records {
		switch record.Kind {
		case waits.QueryStart:
			r.abandon()
			// The programs report a start with the first wait that they see of the statement, also if it began before the
			// trace. Its earlier waits are missing, so its start counts as not seen.
			if record.At.Before(r.began) {
				continue
			}
			r.running = &execution{query: record.Query, waits: make(map[waitOf]*waits.Event)}
		case waits.QueryEnd:
			r.end(record)
		case waits.Wait:
			r.wait(record)
		case waits.ExecutorStart, waits.ExecutorEnd: // not needed: the report is by query
		}
	}
}

// wait adds a wait to the running execution. If none runs, it adds the wait to the query of the record.
func (r *SessionReport) wait(record waits.Record) {
	one := waits.Event{ID: record.Event, Calls: 1, Total: record.Took, Longest: record.Took}
	if r.running == nil {
		r.query(record.Query).add(&one, false)
		return
	}
	key := waitOf{record.Query, record.Event}
	if e := r.running.waits[key]; e != nil {
		e.Calls++
		e.Total += one.Total
		e.Longest = max(e.Longest, one.Longest)
	} else {
		r.running.waits[key] = &one
	}
	if record.Query != 0 {
		r.running.query = record.Query
	}
}

// end ends the running execution, and adds its waits to the queries. Waits from the time before the query id was known are added to
// the query that ended.
func (r *SessionReport) end(record waits.Record) {
	run, q := r.running, r.query(record.Query)
	r.running = nil
	if run == nil {
		q.unbegun++
		return
	}
	others := make(map[uint64]bool)
	for key := range run.waits {
		if key.query != 0 && key.query != record.Query {
			others[key.query] = true
		}
	}
	for key, e := range run.waits {
		of := q
		if others[key.query] {
			of = r.query(key.query)
		}
		of.add(e, len(others) == 0)
	}
	if len(others) > 0 {
		q.together++
		for id := range others {
			r.query(id).together++
		}
		return
	}
	q.executions++
	q.elapsed += record.Took
	q.longest = max(q.longest, record.Took)
}

// abandon ends the running execution, whose end was not seen, and adds its waits to the queries as waits of an execution that is
// not counted.
func (r *SessionReport) abandon() {
	run := r.running
	r.running = nil
	if run == nil {
		return
	}
	r.query(run.query).unended++
	for key, e := range run.waits {
		id := key.query
		if id == 0 {
			id = run.query
		}
		r.query(id).add(e, false)
	}
}

// maxQueries bounds the number of queries with figures of their own. Statements about temporary tables have a new query id for each
// table.
const maxQueries = 1 << 14

// query returns the figures of a query; for id 0, those outside of queries.
func (r *SessionReport) query(id uint64) *sessionQuery {
	if id == 0 {
		return &r.between
	}
	if r.queries[id] == nil && len(r.queries) >= maxQueries {
		r.others.id = id
		return &r.others
	}
	if r.queries[id] == nil {
		r.queries[id] = &sessionQuery{id: id}
	}
	return r.queries[id]
}

// add adds waits for an event. counted is set if their execution is counted.
func (q *sessionQuery) add(e *waits.Event, counted bool) {
	if q.events == nil {
		q.events = make(map[uint32]*sessionEvent)
	}
	sum := q.events[e.ID]
	if sum == nil {
		sum = &sessionEvent{Event: waits.Event{ID: e.ID}}
		q.events[e.ID] = sum
	}
	sum.Calls += e.Calls
	sum.Total += e.Total
	sum.Longest = max(sum.Longest, e.Longest)
	q.waited += e.Total
	if counted {
		sum.counted += e.Total
		q.waitedInCounted += e.Total
	}
}

// SetGoing sets the waits that have not ended. Their totals are the times within the measurement.
func (r *SessionReport) SetGoing(going []Row) { r.going = going }

// Text prints the queries, the one with the longest total time first. It ends the running execution, see abandon.
func (r *SessionReport) Text(w io.Writer) error {
	r.abandon()
	var b strings.Builder
	queries := make([]*sessionQuery, 0, len(r.queries))
	for _, q := range r.queries {
		queries = append(queries, q)
	}
	slices.SortFunc(queries, func(a, b *sessionQuery) int {
		return cmp.Or(cmp.Compare(max(b.elapsed, b.waited), max(a.elapsed, a.waited)), cmp.Compare(a.id, b.id))
	})
	for _, q := range queries {
		q.title(&b, fmt.Sprintf("Query %d: ", int64(q.id)))
		if text := r.texts[int64(q.id)]; text != "" {
			b.WriteString("    " + render.OneLine(text) + "\n")
		}
		r.events(&b, q)
	}
	if r.others.id != 0 {
		r.others.title(&b, fmt.Sprintf("Other queries, after the first %d: ", maxQueries))
		r.events(&b, &r.others)
	}
	if len(r.queries) == 0 && len(r.between.events) == 0 {
		b.WriteString("No wait ended meanwhile.\n")
	} else {
		r.between.title(&b, "Outside of queries, or without a query id: ")
		r.events(&b, &r.between)
	}
	for i := range r.going {
		w := &r.going[i]
		fmt.Fprintf(&b, "Goes on: %s:%s, for %s of this time.\n", w.Type, w.Name, units.Duration(w.Total))
	}
	if r.lost > 0 {
		b.WriteString(units.Plural(r.lost, "Missing: %d {record|records} that came faster than {it|they} could be read.\n"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// title prints the name of a query, and the figures of its executions.
func (q *sessionQuery) title(b *strings.Builder, name string) {
	if q.id == 0 && q.executions == 0 {
		b.WriteString(strings.TrimSuffix(name, " ") + "\n")
	} else {
		b.WriteString(name + units.Count(q.executions, "execution") + " ended")
		if q.executions > 0 {
			fmt.Fprintf(b, ", %s elapsed, %s on average, %s at most", units.Duration(q.elapsed),
				units.Duration(q.elapsed/time.Duration(q.executions)), units.Duration(q.longest))
		}
		b.WriteByte('\n')
	}
	add := func(n int, format string) {
		if n > 0 {
			b.WriteString("    Not in SHARE: " + units.Plural(n, format) + "\n")
		}
	}
	add(q.unended, "%d {execution, or a part of it,|executions, or parts of them,} whose end was not seen")
	add(q.unbegun, "%d {execution|executions} whose start was not seen")
	add(q.together, "%d {execution|executions} in one message of the client with other queries")
}

// SetLost sets the number of missing records, which Text prints.
func (r *SessionReport) SetLost(n uint64) { r.lost = n }

// SetTexts sets the texts of queries by query id, which Text prints below the ids.
func (r *SessionReport) SetTexts(texts map[int64]string) { r.texts = texts }

// events prints the waits of a query, and the time in which it did not wait.
func (r *SessionReport) events(b *strings.Builder, q *sessionQuery) {
	list := make([]waits.Event, 0, len(q.events))
	for _, e := range q.events {
		list = append(list, e.Event)
	}
	rows := r.server.rows(list)
	counted, total := func(e *sessionEvent) time.Duration { return e.counted }, max(q.elapsed, q.waitedInCounted)
	if q.id == 0 { // outside of queries, only the times of waits are known, so the shares are of all waits
		counted = func(e *sessionEvent) time.Duration { return e.Total }
		total = q.waited + max(0, q.elapsed-q.waitedInCounted)
	}
	names := len("(no wait seen)")
	for i := range rows {
		names = max(names, len(rows[i].Type)+1+len(rows[i].Name))
	}
	line := func(name, calls string, d, share time.Duration, average, longest string) {
		percent := ""
		if total > 0 {
			percent = fmt.Sprintf("%.1f %%", 100*float64(share)/float64(total))
		}
		text := fmt.Sprintf("    %-*s %9s %9s %7s %9s %9s", names, name, calls, units.Duration(d), percent, average, longest)
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	if len(rows) > 0 || q.elapsed > 0 {
		fmt.Fprintf(b, "    %-*s %9s %9s %7s %9s %9s\n", names, "EVENT", "CALLS", "TOTAL", "SHARE", "AVERAGE", "MAXIMUM")
	}
	for i := range rows {
		e := &rows[i]
		line(e.Type+" "+e.Name, strconv.FormatUint(e.Calls, 10), e.Total, counted(q.events[e.ID]),
			units.Duration(e.Total/time.Duration(e.Calls)), units.Duration(e.Longest))
	}
	if rest := q.elapsed - q.waitedInCounted; rest > 0 {
		line("(no wait seen)", "", rest, rest, "", "")
	}
}
