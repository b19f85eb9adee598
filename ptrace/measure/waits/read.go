package waits

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
)

// rawRecord is a wait, or the start or end of a statement or of its executor, of a traced process.
type rawRecord struct {
	Kind Kind
	PID  int
	// At is the end of a wait, or the moment of the executor's start or end, in ns of CLOCK_MONOTONIC. For a statement
	// it is the server's time stamp, in microseconds since 2000-01-01 UTC.
	At uint64
	// Took is the duration of a wait in nanoseconds, or the duration of an ended statement in microseconds.
	Took  uint64
	Query uint64
	Event uint32
}

// Record waits for the next record of a traced process, and returns it; false at the deadline, after Close, or for an invalid
// record.
func (p *programs) Record(deadline time.Time) (rawRecord, bool) {
	p.trace.SetDeadline(deadline)
	sample, err := p.trace.Read()
	if err != nil || len(sample.RawSample) < int(unsafe.Sizeof(waitsRecord{})) {
		return rawRecord{}, false
	}
	r := (*waitsRecord)(unsafe.Pointer(unsafe.SliceData(sample.RawSample)))
	return rawRecord{
		Kind: Kind(r.PidKind & 7), PID: int(r.PidKind >> 3), At: r.At, Took: r.Took, Query: r.Query, Event: r.Event,
	}, true
}

// Counters are the counters of the BPF programs other than the figures of waits.
type Counters struct {
	// LostProcesses is the number of ended processes for whose figures the ring had no room. LostRecords is the number
	// of records of traced processes for which there was no room. LostQueries is the number of waits for which the map
	// of queries had no room.
	LostProcesses, LostRecords, LostQueries uint64
	// LostStacks is the number of stacks that could not be copied: there was no room, or the memory was not readable.
	LostStacks uint64
	// Outside is the number of waits of processes that had no PGPROC yet, or no more.
	Outside uint64
	// CaughtUp is the number of sleeps whose end the programs did not see. Their duration was taken from the scheduler's
	// own counters.
	CaughtUp uint64
	// Missed is how often the kernel did not run a program at an event, because the program was already running on the same
	// processor.
	Missed uint64
	// Runs is how often the programs ran for a process of the server. Time estimates the total time of these runs; one
	// run in 64 is measured. It does not include the kernel's own time to call the programs.
	Runs uint64
	Time time.Duration
}

// Counters reads the counters, as sums over all processors.
func (p *programs) Counters() (Counters, error) {
	var sums [8]uint64
	for i := range sums {
		var values []uint64
		if err := p.kernel.Maps[waitsMapCounters].Lookup(uint32(i), &values); err != nil {
			return Counters{}, fmt.Errorf("read a counter of the kernel programs: %w", err)
		}
		for _, v := range values {
			sums[i] += v
		}
	}
	c := Counters{
		LostProcesses: sums[0], LostRecords: sums[1], LostQueries: sums[2], Outside: sums[3],
		Runs: sums[4], Time: time.Duration(sums[5]), LostStacks: sums[6],
		CaughtUp: sums[7],
	}
	for _, program := range p.extra {
		if stats, err := program.Stats(); err == nil {
			c.Missed += stats.RecursionMisses
		}
	}
	return c, nil
}

// Queries reads the figures by query.
func (p *programs) Queries() ([]QueryFigures, error) {
	var (
		key   waitsQueryKey
		value waitsQueryFigures
		all   []QueryFigures
	)
	iterator := p.kernel.Maps[waitsMapQueries].Iterate()
	for iterator.Next(&key, &value) {
		all = append(all, QueryFigures{key.Query, key.Event, value.Calls, time.Duration(value.Total)})
	}
	if err := iterator.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return all, fmt.Errorf("read the waits by query: %w", err)
	}
	return all, nil
}

// countFromNow makes the programs count the time of statements from now on, also of running statements.
func (p *programs) countFromNow() error {
	if err := p.kernel.Variables[waitsVarCountedSince].Set(serverTime()); err != nil {
		return fmt.Errorf("set the time from which statements count: %w", err)
	}
	return nil
}

// followClock makes statements count again after the clock was set back.
func (p *programs) followClock() {
	var since uint64
	if err := p.kernel.Variables[waitsVarCountedSince].Get(&since); err == nil && since > serverTime() {
		_ = p.countFromNow() // after an error, refresh tries it again
	}
}

// serverTime is the time now as a time stamp of the server.
func serverTime() uint64 { return uint64(time.Since(serverEpoch()).Microseconds()) }

// serverEpoch is the zero of the server's time stamps.
func serverEpoch() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

// ResetQueries forgets the figures by query. Of statements that run, the time from now on counts.
func (p *programs) ResetQueries() error {
	if err := p.countFromNow(); err != nil {
		return err
	}
	figures, err := p.Queries()
	for _, f := range figures {
		key := waitsQueryKey{Query: f.Query, Event: f.Event}
		if gone := p.kernel.Maps[waitsMapQueries].Delete(key); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
