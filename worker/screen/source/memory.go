package source

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of reading and judging memory.
const (
	mostMemoryReads = 100         // processes whose memory is read for one sample
	largestReads    = 20          // how many of these are for the processes with the most memory
	largeShare      = 20          // a growing process is large from a 20th of the memory on
	hugeShare       = 4           // a process that does not grow, from a quarter on
	leastLarge      = 256 << 20   // bytes; lower limit of the largeShare
	mostLarge       = 1 << 30     // bytes; upper limit of the largeShare
	leastGrowth     = 32 << 20    // bytes
	growthShare     = 10          // least growth, as a part of the process's memory: a 10th
	growthSpan      = time.Minute // time over which the growth is measured
	growthEvery     = 5 * time.Second
)

// memories keeps the private memory of each process, as the kernel reports it. Each sample reads it for mostMemoryReads processes
// at most, so that 1,000 sessions cost no more than 100.
type memories struct {
	known map[session]uint64
	after int    // the process id after which the next sample continues
	limit uint64 // bytes of memory that the server can use
	asked time.Time
}

// limitOf returns the bytes of memory that the server can use. It asks the kernel once a minute.
func (k *memories) limitOf(postmaster int) uint64 {
	if k.asked.IsZero() || time.Since(k.asked) >= time.Minute {
		k.limit, k.asked = process.MemoryLimit(postmaster), time.Now()
	}
	return k.limit
}

// read sets the memory of the sessions of a moment. outside is set if the server is in another PID namespace. Sessions from a
// recorder whose process id on this host is not known then get no memory.
func (k *memories) read(m *moment.Moment, outside bool) {
	now := make(map[session]uint64, len(m.Sessions))
	chosen := k.choose(m)
	for i := range m.Sessions {
		s := &m.Sessions[i]
		id := identityOf(s)
		bytes, ok := k.known[id]
		if (chosen == nil || chosen[s.ServerPID]) && (!outside || s.PID != s.ServerPID) {
			if read, err := process.ReadPrivate(s.PID); err == nil {
				bytes, ok = read, true
			}
		}
		if ok {
			now[id], s.PrivateBytes = bytes, bytes
		}
	}
	k.known = now
}

// choose returns the server's ids of the processes whose memory is to be read; nil: all.
func (k *memories) choose(m *moment.Moment) map[int]bool {
	if len(m.Sessions) <= mostMemoryReads {
		return nil
	}
	type sized struct {
		pid   int
		bytes uint64
	}
	all := make([]sized, 0, len(m.Sessions))
	for i := range m.Sessions {
		all = append(all, sized{m.Sessions[i].ServerPID, k.known[identityOf(&m.Sessions[i])]})
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.pid, b.pid)) < 0
	})
	chosen := make(map[int]bool, mostMemoryReads)
	for _, x := range all[:largestReads] {
		chosen[x.pid] = true
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Compare(a.pid, b.pid) < 0
	})
	first, _ := slices.BinarySearchFunc(all, k.after+1, func(x sized, pid int) int { return cmp.Compare(x.pid, pid) })
	for i := range all {
		x := all[(first+i)%len(all)]
		if len(chosen) >= mostMemoryReads {
			break
		}
		chosen[x.pid], k.after = true, x.pid
	}
	return chosen
}

// sizedAt is the memory of a process at a time.
type sizedAt struct {
	at    time.Time
	bytes uint64
}

// growth keeps the sizes that the memory of each large process had in the last minute.
type growth map[session][]sizedAt

// add notes the memory of a process, and returns by how much it has grown, and in what time. The growth is 0 if the process now
// has less than 95 % of the most memory that it had in this time.
func (g growth) add(s *moment.Session, at time.Time) (bytes uint64, in time.Duration) {
	id := identityOf(s)
	list := g[id]
	for len(list) > 1 && at.Sub(list[1].at) >= growthSpan {
		list = list[1:]
	}
	if n := len(list); n == 0 || at.Sub(list[n-1].at) >= growthEvery || at.Before(list[n-1].at) {
		if n > 0 && at.Before(list[n-1].at) {
			list = nil // the clock was set back
		}
		list = append(list, sizedAt{at, s.PrivateBytes})
	}
	g[id] = list
	least := slices.MinFunc(list, func(a, b sizedAt) int { return cmp.Compare(a.bytes, b.bytes) })
	if s.PrivateBytes <= least.bytes {
		return 0, 0
	}
	const part = 20
	if most := slices.MaxFunc(list, func(a, b sizedAt) int { return cmp.Compare(a.bytes, b.bytes) }).bytes; s.PrivateBytes < most-most/part {
		return 0, 0
	}
	return s.PrivateBytes - least.bytes, at.Sub(least.at)
}

// memory finds processes that use a very large part of the memory, or a large part that grows.
func (r *rules) memory(f *facts) (list []Finding) {
	if f.memory == 0 {
		return nil
	}
	grown := growth{}
	for i := range f.m.Sessions {
		s := &f.m.Sessions[i]
		if s.PrivateBytes < leastGrowth {
			continue
		}
		id := identityOf(s)
		if before, ok := r.grown[id]; ok {
			grown[id] = before
		}
		by, in := grown.add(s, f.m.Time)
		grows := by >= max(leastGrowth, s.PrivateBytes/growthShare) && s.PrivateBytes >= min(max(leastLarge, f.memory/largeShare), mostLarge)
		if !grows && s.PrivateBytes < f.memory/hugeShare {
			continue
		}
		find := Finding{
			Key: fmt.Sprintf("%s-%d-%d", RuleMemory, s.ServerPID, micro(s.Started)), Rule: RuleMemory, Severity: Warning, Sessions: 1,
			PID: s.ServerPID, AtLeast: true, Detail: cmp.Or(s.Phrase, s.Query),
			Text: fmt.Sprintf("%s holds %s of private memory, of %s in all", sessionName(f.m.Time, s), units.Size(s.PrivateBytes),
				units.Size(f.memory)),
		}
		if grows {
			find.Text += fmt.Sprintf("; it grew by %s in %s", units.Size(by), units.Age(max(in, time.Second)))
		}
		if ClassOf(s) == "" && find.Detail != "" && s.Phrase == "" {
			find.Detail = "last statement: " + find.Detail
		}
		find.Since, _ = r.holds(find.Key, f.m.Time)
		if ClassOf(s) != "" {
			find.Share, find.Filter = activeShare(1), onlySession(s)
		}
		list = append(list, find)
	}
	r.grown = grown
	return most(list)
}
