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
	// At is the end of a wait, or the moment of the executor, in nanoseconds of CLOCK_MONOTONIC; of a statement the time
	// stamp that the server noted, in microseconds since 2000-01-01 UTC.
	At uint64
	// Took is the duration of a wait in nanoseconds, of an ended statement in microseconds.
	Took  uint64
	Query uint64
	Event uint32
}

// Record returns the next record of a traced process, waiting for it up to a deadline; false at the deadline or after
// Close.
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

// Counters are the counters of the programs beside the waits.
type Counters struct {
	// LostProcesses are ended processes whose figures found no room in the ring, LostRecords waits of traced processes,
	// LostQueries waits that found no room in the table of queries.
	LostProcesses, LostRecords, LostQueries uint64
	// LostStacks are stacks that were to be copied and were not: there was no room, or they were not readable.
	LostStacks uint64
	// Outside are waits of processes that had no PGPROC yet, or no more.
	Outside uint64
	// CaughtUp are sleeps whose end was not seen. Their duration comes from the scheduler's own counters.
	CaughtUp uint64
	// Missed are events at which the kernel did not run a program, because it was interrupted on that processor.
	Missed uint64
	// Runs is how often the programs ran for a process of the server, and Time an estimate, from one run in 64, of how
	// long they took. The kernel's own work to call them comes on top.
	Runs uint64
	Time time.Duration
}

// Counters reads them.
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

// ResetQueries forgets the figures by query.
func (p *programs) ResetQueries() error {
	figures, err := p.Queries()
	for _, f := range figures {
		key := waitsQueryKey{Query: f.Query, Event: f.Event}
		if gone := p.kernel.Maps[waitsMapQueries].Delete(key); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
