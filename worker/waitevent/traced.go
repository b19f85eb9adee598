package waitevent

import (
	"fmt"
	"slices"

	"pg_stat_backtrace/ptrace/waits"
)

// maxRecords is how many records of a traced process are kept.
const maxRecords = 131072

// traced holds the newest records of a process.
type traced struct {
	records []waits.Record
	first   uint64 // number of the first
}

// Trace starts or ends to record every wait of a process, known by the server's id of it. The records stay until the
// timing ends.
func (t *Timer) Trace(pid int, on bool) error {
	return t.use(func(s *Server, p waits.Provider) error {
		tracer, ok := p.(waits.Tracer)
		if !ok {
			return fmt.Errorf("%w: the method %s sees no single waits", waits.ErrUnsupported, p.Info().Method)
		}
		local := s.Cluster.Local(pid)
		if !tracer.SetTraced(local, on) {
			return fmt.Errorf("%w: %d", ErrNoWaits, pid)
		}
		if on && t.traces[local] == nil {
			t.traces[local] = &traced{first: 1}
		}
		return nil
	})
}

// ErrNoWaits means that no wait of a process has been seen.
var ErrNoWaits = fmt.Errorf("%w: no wait of this process has been seen yet", waits.ErrUnsupported)

// collect takes over new records.
func (t *Timer) collect() {
	tracer, ok := t.provider.(waits.Tracer)
	if !ok || len(t.traces) == 0 {
		return
	}
	for _, r := range tracer.Records() {
		if trace := t.traces[r.PID]; trace != nil {
			trace.records = append(trace.records, r)
		}
	}
	for _, trace := range t.traces {
		if surplus := len(trace.records) - maxRecords; surplus > 0 {
			trace.records = slices.Delete(trace.records, 0, surplus)
			trace.first += uint64(surplus)
		}
	}
}

// TraceRow is a record with its names.
type TraceRow struct {
	waits.Record

	Number     uint64
	Type, Name string
}

// Records returns the newest records of a traced process, in the order of their times, at most limit of them.
func (t *Timer) Records(pid, limit int) (rows []TraceRow, err error) {
	err = t.use(func(s *Server, _ waits.Provider) error {
		t.collect()
		trace := t.traces[s.Cluster.Local(pid)]
		if trace == nil {
			return nil
		}
		skip := max(0, len(trace.records)-limit)
		for i, r := range trace.records[skip:] {
			row := TraceRow{Record: r, Number: trace.first + uint64(skip+i)}
			if r.Kind == waits.Wait {
				row.Type, row.Name, _ = s.Names.Name(r.Event)
			}
			rows = append(rows, row)
		}
		slices.SortStableFunc(rows, func(a, b TraceRow) int { return a.At.Compare(b.At) })
		return nil
	})
	return rows, err
}
