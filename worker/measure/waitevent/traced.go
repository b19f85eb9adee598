package waitevent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
)

// Bounds of the numbers of records that are kept: for a process, and for all processes together. A trace may have maxSurplus more
// records for a while: forgetting the oldest records moves all others, so collect does that seldom.
const (
	maxRecords    = 131072
	maxSurplus    = maxRecords / 8
	maxAllRecords = 8 * (maxRecords + maxSurplus)
)

// traced has the newest records of a process.
type traced struct {
	records []waits.Record
	first   uint64      // number of records[0]; records are numbered from 1
	starts  []time.Time // starts of the executor's runs that have not ended
	// withoutExecutor is the reason why there are no records of the executor's starts and ends; nil: there are such records.
	withoutExecutor error
	// alone is set if Timer.Trace has started a trace of this process, besides a possible trace of all processes. started is then
	// the start time of the process: Stat.StartTime.
	alone   bool
	started uint64
}

// errTraceOfAll means that a process is only traced because all processes are traced.
var errTraceOfAll = errors.New("all processes are traced")

// maxStarts bounds the number of nested runs of the executor whose starts are kept.
const maxStarts = 1000

// add keeps a record. It sets the duration of the executor's run in a record of its end.
func (t *traced) add(r waits.Record) {
	switch r.Kind {
	case waits.ExecutorStart:
		if len(t.starts) < maxStarts {
			t.starts = append(t.starts, r.At)
		}
	case waits.ExecutorEnd:
		if last := len(t.starts) - 1; last >= 0 {
			r.Took = r.At.Sub(t.starts[last])
			t.starts = t.starts[:last]
		}
	case waits.QueryStart:
		// After an error, the server does not call ExecutorEnd, so there was no record of the end: forget the runs of earlier
		// statements. This record comes with the first wait of its statement, so the executor may already run.
		t.starts = slices.DeleteFunc(t.starts, func(start time.Time) bool { return start.Before(r.At) })
	case waits.Wait, waits.QueryEnd:
	}
	t.records = append(t.records, r)
}

// cut forgets the oldest records until at most the number in the parameter most is left.
func (t *traced) cut(most int) {
	if surplus := len(t.records) - most; surplus > 0 {
		t.records = slices.Delete(t.records, 0, surplus)
		t.first += uint64(surplus)
	}
}

// Trace starts or ends recording of every wait of a process. pid is the process id that the server sees. The records are kept until
// the timing ends. A trace can also be ended after the end of its process. Errors wrap ErrNoWaits, which is a waits.ErrUnsupported,
// or are those of use.
func (t *Timer) Trace(pid int, on bool) error {
	defer t.wake()
	return t.use(t.gate.change, func(s *Server, p waits.Provider) error {
		tracer, ok := p.(waits.Tracer)
		if !ok {
			return fmt.Errorf("%w: the method %s sees no single waits", waits.ErrUnsupported, p.Info().Method)
		}
		change := t.endTrace
		if on {
			change = t.startTrace
		}
		if !change(tracer, s.Cluster.Local(pid)) {
			return fmt.Errorf("%w: %d", ErrNoWaits, pid)
		}
		return nil
	})
}

// startTrace starts the trace of a process; false: no wait of the process has been seen yet.
func (t *Timer) startTrace(tracer waits.Tracer, pid int) bool {
	if !tracer.SetTraced(pid, true) {
		return false
	}
	started := startOf(pid)
	trace := t.traces[pid]
	if trace == nil || trace.started != 0 && trace.started != started {
		trace = &traced{first: 1} // replaces the records of an ended process with the same id
		t.traces[pid] = trace
	}
	trace.alone, trace.started = true, started
	trace.withoutExecutor = tracer.SetExecutorTraced(pid, true)
	if trace.withoutExecutor != nil {
		t.cfg.Log.Warn().Err(trace.withoutExecutor).Int("pid", pid).
			Msg("the trace lacks the starts and ends of the executor")
	}
	return true
}

// endTrace ends the trace of a process; false: the process is not known. After the end of a process the provider has no waits of
// it, but may still have the probe of its executor.
func (t *Timer) endTrace(tracer waits.Tracer, pid int) (known bool) {
	known = tracer.SetTraced(pid, false)
	if err := tracer.SetExecutorTraced(pid, false); err != nil {
		t.cfg.Log.Warn().Err(err).Int("pid", pid).Msg("cannot end the probe of the executor")
	}
	if trace := t.traces[pid]; trace != nil {
		known = known || trace.alone
		trace.alone = false
	}
	return known
}

// startOf returns the start time of a process in the unit of Stat.StartTime; 0: the process has ended.
func startOf(pid int) uint64 {
	id, _ := process.IDOf(pid)
	return id.StartTime
}

// beganAt returns the start time of a process by the wall clock, less a tolerance, since the kernel measures it in ticks of 10 ms.
// ticks is the result of startOf. If it is 0, beganAt returns the zero time.
func beganAt(ticks uint64) time.Time {
	const tolerance = 50 * time.Millisecond
	var boot unix.Timespec
	if ticks == 0 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return time.Time{}
	}
	age := time.Duration(boot.Nano()) - process.SinceBoot(ticks)
	return time.Now().Add(-age - tolerance)
}

// ErrNoWaits means that no wait of a process has been seen.
var ErrNoWaits = fmt.Errorf("%w: no wait of this process has been seen yet", waits.ErrUnsupported)

// collect reads new records from the provider, and keeps those of traced processes.
func (t *Timer) collect() {
	tracer, ok := t.provider.(waits.Tracer)
	if !ok || len(t.traces) == 0 && t.level != Trace {
		return
	}
	for _, r := range tracer.Records() {
		trace := t.traces[r.PID]
		if trace == nil && t.level == Trace {
			trace = &traced{first: 1}
			t.traces[r.PID] = trace
		}
		if trace != nil {
			if t.level == Trace && !trace.alone { // after the end of a trace of this process, it is only traced with all others
				trace.withoutExecutor = errTraceOfAll
			}
			trace.add(r)
		}
	}
	for _, trace := range t.traces {
		if len(trace.records) > maxRecords+maxSurplus {
			trace.cut(maxRecords)
		}
	}
	t.bound(maxAllRecords)
}

// bound does nothing if all processes together have at most the number of records in the parameter most. Otherwise it forgets
// the oldest records of each process, until all together have at most half of that number.
func (t *Timer) bound(most int) {
	all := 0
	for _, trace := range t.traces {
		all += len(trace.records)
	}
	if all <= most {
		return
	}
	if len(t.traces) > most/2 {
		t.forget(most / 4)
	}
	each := max(1, most/2/max(1, len(t.traces)))
	for pid, trace := range t.traces {
		trace.cut(each)
		if len(trace.records) == 0 && !trace.active(pid) {
			delete(t.traces, pid)
		}
	}
}

// forget deletes traces of processes until at most the number left remain. It deletes those whose last record is the oldest, since
// these processes have ended or sleep. It does not delete active traces.
func (t *Timer) forget(left int) {
	oldest := slices.SortedFunc(maps.Keys(t.traces), func(a, b int) int {
		return t.traces[a].newest().Compare(t.traces[b].newest())
	})
	for _, pid := range oldest[:max(0, len(oldest)-left)] {
		if !t.traces[pid].active(pid) {
			delete(t.traces, pid)
		}
	}
}

// newest returns the time of the newest record; the zero time: there is no record.
func (t *traced) newest() time.Time {
	if len(t.records) == 0 {
		return time.Time{}
	}
	return t.records[len(t.records)-1].At
}

// active reports whether Timer.Trace has started the trace and the process still lives. Its entry in Timer.traces must stay:
// otherwise collect would drop its new records.
func (t *traced) active(pid int) bool { return t.alone && t.started != 0 && t.started == startOf(pid) }

// A Gap describes the data that are missing in the records of a process.
type Gap struct {
	// Untraced means that the process has not been traced.
	Untraced bool
	// OfAll means that there are no records of the executor's starts and ends, because all processes are traced together.
	OfAll bool
	// Executor is another reason why there are no such records, for a process that Timer.Trace traces; nil: there is none.
	Executor error
	// Lost is the number of lost records of all processes.
	Lost uint64
}

// Gap returns the Gap of a process. pid is the process id that the server sees.
func (t *Timer) Gap(pid int) (gap Gap, err error) {
	err = t.use(t.gate.read, func(s *Server, p waits.Provider) error {
		trace := t.traces[s.Cluster.Local(pid)]
		if trace == nil {
			gap.Untraced = true
			return nil
		}
		if gap.OfAll = errors.Is(trace.withoutExecutor, errTraceOfAll); !gap.OfAll {
			gap.Executor = trace.withoutExecutor
		}
		snapshot, err := p.Snapshot()
		if err == nil {
			gap.Lost = snapshot.Lost.Records
		}
		return err
	})
	return gap, err
}

// TraceRow is a record with its number and the names of its event.
type TraceRow struct {
	waits.Record

	Number     uint64
	Type, Name string
}

// Records returns the newest records of a traced process, at most limit of them, ordered by time. pid is the process id that the
// server sees. started is the start time of the process, as process.ID has it: the error is ErrNoWaits if no such process has the id
// now. 0: any process, also an ended one. Without a trace there are no records, and no error.
func (t *Timer) Records(pid, limit int, started uint64) (rows []TraceRow, err error) {
	err = t.use(t.gate.change, func(s *Server, _ waits.Provider) error {
		t.collect()
		trace := t.traces[s.Cluster.Local(pid)]
		if trace == nil {
			return nil
		}
		now := startOf(s.Cluster.Local(pid))
		if started != 0 && started != now {
			return fmt.Errorf("%w: %d", ErrNoWaits, pid)
		}
		began := beganAt(now)
		skip := max(0, len(trace.records)-limit)
		for i, r := range trace.records[skip:] {
			if r.At.Before(began) {
				continue // the record is of an ended process with the same id, which may have had another user
			}
			row := TraceRow{Record: r, Number: trace.first + uint64(skip+i)}
			if r.Kind == waits.Wait {
				row.Type, row.Name, _ = s.Names.Name(r.Event)
			}
			rows = append(rows, row)
		}
		sort.SliceStable(rows, func(i, j int) bool {
			a, b := rows[i], rows[j]
			return a.At.Compare(b.At) < 0
		})
		return nil
	})
	return rows, err
}
