package waitevent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
)

// Bounds of the records that are kept: of a process, and of all of them.
const (
	maxRecords    = 131072
	maxAllRecords = 8 * maxRecords
)

// traced holds the newest records of a process.
type traced struct {
	records []waits.Record
	first   uint64      // number of the first
	starts  []time.Time // of the executor, of the runs that have not ended
	// withoutExecutor says why there are no starts and ends of the executor; nil: there are.
	withoutExecutor error
	// alone means that Trace has the process traced, and not only a trace of all processes. started is the start time of
	// the process then: Stat.StartTime.
	alone   bool
	started uint64
}

// errTraceOfAll means that a process is traced with all others.
var errTraceOfAll = errors.New("all processes are traced")

// maxStarts bounds the nested runs of the executor that are followed.
const maxStarts = 1000

// add keeps a record. The end of the executor gets its duration.
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
		// An error ends the executor without a call: forget the runs of earlier statements. This record comes with the
		// first wait of its statement, when its executor may run already.
		t.starts = slices.DeleteFunc(t.starts, func(start time.Time) bool { return start.Before(r.At) })
	case waits.Wait, waits.QueryEnd:
	}
	t.records = append(t.records, r)
}

// cut forgets the oldest records beyond a number.
func (t *traced) cut(most int) {
	if surplus := len(t.records) - most; surplus > 0 {
		t.records = slices.Delete(t.records, 0, surplus)
		t.first += uint64(surplus)
	}
}

// Trace starts or ends to record every wait of a process, known by the server's id of it. The records stay until the
// timing ends. A trace can also end after its process.
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

// startTrace has a process traced; false if no wait of it has been seen.
func (t *Timer) startTrace(tracer waits.Tracer, pid int) bool {
	if !tracer.SetTraced(pid, true) {
		return false
	}
	started := startOf(pid)
	trace := t.traces[pid]
	if trace == nil || trace.started != 0 && trace.started != started {
		trace = &traced{first: 1} // the records of an ended process with the same id make room
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

// endTrace ends the trace of a process; false if the process is not known. After the end of a process the provider has
// no waits of it, and may still have its probe.
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

// startOf returns the start time of a process: Stat.StartTime; 0 if the process has ended.
func startOf(pid int) uint64 {
	id, _ := process.IDOf(pid)
	return id.StartTime
}

// beganAt returns when a process started by the wall clock, and some time less: the kernel counts in ticks of
// 10 ms. It is the zero time if the process has ended.
func beganAt(pid int) time.Time {
	const tolerance = 50 * time.Millisecond
	ticks := startOf(pid)
	var boot unix.Timespec
	if ticks == 0 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return time.Time{}
	}
	age := time.Duration(boot.Nano()) - process.SinceBoot(ticks)
	return time.Now().Add(-age - tolerance)
}

// ErrNoWaits means that no wait of a process has been seen.
var ErrNoWaits = fmt.Errorf("%w: no wait of this process has been seen yet", waits.ErrUnsupported)

// collect takes over new records.
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
			if t.level == Trace && !trace.alone { // any more: an earlier trace of this process had starts and ends
				trace.withoutExecutor = errTraceOfAll
			}
			trace.add(r)
		}
	}
	for _, trace := range t.traces {
		trace.cut(maxRecords)
	}
	t.bound(maxAllRecords)
}

// bound forgets records if there are more of them in all than a number. Then each process keeps its newest ones.
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

// forget deletes processes until a number is left: those whose newest records are the oldest have ended, or sleep.
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

// newest returns the time of the newest record; the zero time if there is none.
func (t *traced) newest() time.Time {
	if len(t.records) == 0 {
		return time.Time{}
	}
	return t.records[len(t.records)-1].At
}

// active reports whether a process that Trace has started to trace can still have records. Without its entry they
// would be thrown away.
func (t *traced) active(pid int) bool { return t.alone && t.started != 0 && t.started == startOf(pid) }

// A Gap says what the records of a process lack.
type Gap struct {
	// Untraced means that the process has not been traced.
	Untraced bool
	// OfAll means that there are no starts and ends of the executor, because all processes are traced.
	OfAll bool
	// Executor says why there are none although this process is traced alone; nil: there are.
	Executor error
	// Lost is how many records of all processes were lost.
	Lost uint64
}

// Gap returns what the records of a process lack, known by the server's id of it.
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

// TraceRow is a record with its names.
type TraceRow struct {
	waits.Record

	Number     uint64
	Type, Name string
}

// Records returns the newest records of a traced process, in the order of their times, at most limit of them.
func (t *Timer) Records(pid, limit int) (rows []TraceRow, err error) {
	err = t.use(t.gate.change, func(s *Server, _ waits.Provider) error {
		t.collect()
		trace := t.traces[s.Cluster.Local(pid)]
		if trace == nil {
			return nil
		}
		began := beganAt(s.Cluster.Local(pid))
		skip := max(0, len(trace.records)-limit)
		for i, r := range trace.records[skip:] {
			if r.At.Before(began) {
				continue // of an ended process with the same id, which may have been another user's
			}
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
