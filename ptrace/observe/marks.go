package observe

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// mostWork is the longest time that the process may spend on the CPU between two reads of its marks. In a longer time it could
// leave a function, change the function's data, and enter it again at the same addresses. The sample itself needs samplePeriod of
// this time.
const mostWork = time.Millisecond

// marks are words of a running process: the head of the list, the pointers, and the counters of Options.ExtraReads. The observer
// reads them twice. If they are the same, the memory of the extra reads has not changed in between.
type marks struct {
	words []uint64
	work  time.Duration // the process's time on the CPU until the words were read
	ok    bool          // everything was read, and no counter is odd
}

// mark reads the marks of the process.
func (w *observer) mark() marks {
	t := w.options.ExtraReads
	if t == nil {
		return marks{}
	}
	m := marks{ok: true}
	word := func(address uint64, size int) uint64 {
		var b [8]byte
		n, err := process.ReadMemory(w.target.PID, address, b[:size])
		m.ok = m.ok && err == nil && n == size
		return binary.NativeEndian.Uint64(b[:])
	}
	if t.Head != 0 {
		m.words = append(m.words, word(t.Head, 8))
	}
	for _, v := range t.Variables[:min(len(t.Variables), snapshot.MaxVariables)] {
		if v.Follow > 0 {
			m.words = append(m.words, word(v.Address, 8))
		}
	}
	for _, c := range t.Counters[:min(len(t.Counters), snapshot.MaxCounters)] {
		count := word(word(c.Address, 8)+uint64(c.Offset), 4)
		first := binary.NativeEndian.AppendUint64(nil, count)
		m.ok = m.ok && binary.NativeEndian.Uint32(first)%2 == 0
		m.words = append(m.words, count)
	}
	const scheduling, shift = 2, 3 // CPUCLOCK_SCHED, and the place of the PID in a clock's number
	var now unix.Timespec
	err := unix.ClockGettime(int32(^w.target.PID<<shift|scheduling), &now)
	m.ok = m.ok && err == nil
	m.work = time.Duration(now.Nano())
	return m
}

// same reports whether a second read of the marks (the parameter later) found the same words, with at most mostWork of
// CPU time between the two reads.
func (m marks) same(later marks) bool {
	return m.ok && later.ok && slices.Equal(m.words, later.words) && later.work-m.work <= mostWork
}
