package waits

import (
	"time"
)

// SetTraced implements Tracer.
func (k *kernel) SetTraced(pid int, on bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.programs.Slots() {
		if k.read(i) && int(k.buffer.Pid) == pid {
			k.programs.SetTraced(i, on)
			return true
		}
	}
	return false
}

// SetExecutorTraced implements Tracer.
func (k *kernel) SetExecutorTraced(pid int, on bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.programs.ProbeExecutor(pid, on)
}

// TraceAll implements Tracer.
func (k *kernel) TraceAll(on bool) error { return k.programs.TraceAll(on) }

// Records implements Tracer. It returns each record once, so only one caller may use it.
func (k *kernel) Records() []Record {
	k.endProbes()
	var records []Record
	boot := bootTime()
	for {
		r, ok := k.programs.Record(time.Now())
		if !ok {
			return records
		}
		records = append(records, translate(r, boot))
	}
}

// endProbes removes the executor's probes of processes that have ended. It ignores errors.
func (k *kernel) endProbes() {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.programs.EndProbesOfEnded(time.Now())
}

// bootTime returns the time of the wall clock at which CLOCK_MONOTONIC was zero. It reads both clocks several times, and uses
// the pair that was read in the shortest time, because this process may lose its processor between the two.
func bootTime() time.Time {
	const tries = 5
	var best time.Time
	closest := uint64(1<<64 - 1)
	for range tries {
		before := monotonic()
		now := time.Now()
		after := monotonic()
		if after-before < closest {
			closest = after - before
			best = now.Round(0).Add(-time.Duration(before + closest/2))
		}
	}
	return best
}

// translate converts a record to a Record, with times of the wall clock. boot is the time of the wall clock at which
// CLOCK_MONOTONIC was zero.
func translate(r rawRecord, boot time.Time) Record {
	out := Record{PID: r.PID, Kind: r.Kind, Event: r.Event, Query: r.Query}
	if r.Kind == Wait {
		out.Took = time.Duration(r.Took)
		out.At = boot.Add(time.Duration(r.At) - out.Took)
		return out
	}
	if r.Kind == ExecutorStart || r.Kind == ExecutorEnd {
		out.At = boot.Add(time.Duration(r.At))
		return out
	}
	out.Took = time.Duration(r.Took) * time.Microsecond
	out.At = serverEpoch().Add(time.Duration(r.At) * time.Microsecond)
	return out
}
