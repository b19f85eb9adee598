package source

import (
	"maps"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/moment"
)

// Bounds of measuring what processes use.
const (
	mostUsed      = 64                     // processes
	leastUsedSpan = 400 * time.Millisecond // shorter spans say little, as the kernel counts processor time in steps of up to 10 ms
	usedForgotten = time.Minute            // after this time without a request
)

// Used is how much of the processors and disks a process used lately.
type Used struct {
	// Seconds is the time over which the figures are means. It ends with the answer.
	Seconds float64 `json:"seconds"`
	// ProcessorPercent is 100 if the process was on a processor all the time. It is absent if the kernel does not count it.
	ProcessorPercent *float64 `json:"percent_of_a_processor,omitempty"`
	// ReadBytes and WrittenBytes are what the process itself had read from disks, and changed in the page cache to be written. They
	// are absent if this program may not read them.
	ReadBytes    *float64 `json:"disk_read_bytes_per_second,omitempty"`
	WrittenBytes *float64 `json:"disk_written_bytes_per_second,omitempty"`
}

// counted has the counters of a process at a moment between two times.
type counted struct {
	from, to time.Time
	ran      time.Duration
	disk     process.DiskIO
	// knowsRan and knowsDisk are set if the counters could be read.
	knowsRan, knowsDisk bool
}

func countersOf(pid int) counted {
	var c counted
	c.ran, c.from, c.to, c.knowsRan = process.RanBetween(pid)
	disk, err := process.ReadDiskIO(pid)
	c.disk, c.knowsDisk = disk, err == nil
	return c
}

// until returns the means of the time from c until now.
func (c *counted) until(now *counted) *Used {
	span := now.to.Sub(c.from).Seconds()
	u := &Used{Seconds: span}
	if c.knowsRan && now.knowsRan && now.ran >= c.ran {
		percent := min(100, 100*(now.ran-c.ran).Seconds()/span) // the kernel counts a running process some milliseconds late
		u.ProcessorPercent = &percent
	}
	if c.knowsDisk && now.knowsDisk && now.disk.Read >= c.disk.Read && now.disk.Written >= c.disk.Written {
		read, written := float64(now.disk.Read-c.disk.Read)/span, float64(now.disk.Written-c.disk.Written)/span
		u.ReadBytes, u.WrittenBytes = &read, &written
	}
	return u
}

// uses keeps the counters of processes that readers have opened.
type uses struct {
	mu    sync.Mutex
	known map[session]*use
}

type use struct {
	from   counted
	newest *Used // nil: seen once
	asked  time.Time
}

// of returns what a process used since an earlier call; nil: this is the first call. Several readers may ask for the same process at
// a time: a call soon after another one has the answer of that one.
func (k *uses) of(s *moment.Session) *Used {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known = map[session]*use{}
	}
	id, now := identityOf(s), time.Now()
	maps.DeleteFunc(k.known, func(_ session, u *use) bool { return now.Sub(u.asked) > usedForgotten })
	u := k.known[id]
	if u == nil {
		if len(k.known) < mostUsed {
			k.known[id] = &use{from: countersOf(s.PID), asked: now}
		}
		return nil
	}
	u.asked = now
	if now.Sub(u.from.from) < leastUsedSpan {
		return u.newest
	}
	next := countersOf(s.PID)
	u.newest, u.from = u.from.until(&next), next
	return u.newest
}
