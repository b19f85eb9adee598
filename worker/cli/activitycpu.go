package cli

import (
	"context"
	"math"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/moment"
)

// leastCPUSpan is the shortest time over which the processor time of processes is measured. The kernel counts in steps of up to
// 10 ms.
const leastCPUSpan = 200 * time.Millisecond

// runKey identifies a process.
type runKey struct {
	pid   int
	start int64 // ns since 1970, 0: not known
}

func keyOf(s *moment.Session) runKey {
	if s.Started == nil {
		return runKey{pid: s.PID}
	}
	return runKey{s.PID, s.Started.UnixNano()}
}

// ran is how long a process had been on processors at a moment between two times.
type ran struct {
	from, to time.Time
	ran      time.Duration
}

// look returns the processor time of all processes now.
func (f *activityFlags) look(m *moment.Moment) map[runKey]ran {
	found := make(map[runKey]ran, len(m.Sessions))
	for i := range m.Sessions {
		s := &m.Sessions[i]
		if used, from, to, ok := process.RanBetween(s.PID); ok {
			found[keyOf(s)] = ran{from, to, used}
		}
	}
	return found
}

// measure sets the share of a processor that each process has used: since the last call, else since first, which look returned. It
// waits until the span is long enough.
func (f *activityFlags) measure(ctx context.Context, m *moment.Moment, first map[runKey]ran) {
	before := first
	if f.ran != nil {
		before = f.ran
	} else {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(m.Time.Add(leastCPUSpan + 20*time.Millisecond))):
		}
	}
	f.ran = f.look(m)
	for i := range m.Sessions {
		s := &m.Sessions[i]
		key := keyOf(s)
		old, known := before[key]
		if !known {
			old, known = first[key] // it has begun since the last call
		}
		now, runs := f.ran[key]
		if span := now.to.Sub(old.from); known && runs && span > leastCPUSpan/2 && now.ran >= old.ran {
			share := min(1, float64(now.ran-old.ran)/float64(span)) // the kernel counts a running process some milliseconds late
			percent := math.Round(share*1000) / 10                  //nolint:mnd // one decimal
			s.CPUPercent = &percent
		}
	}
}

// cpuOf returns the share of a processor, -1 if it is not known.
func cpuOf(s *moment.Session) float64 {
	if s.CPUPercent == nil {
		return -1
	}
	return *s.CPUPercent
}
