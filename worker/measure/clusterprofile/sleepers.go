package clusterprofile

import (
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace/process"
)

// sleepers reads the stacks of sleeping processes by a BPF program. A read of a process may never return: see
// process.ProbeReadable. So each read has a timeout.
type sleepers struct {
	took  time.Duration // of all reads that ended in time
	state atomic.Int32
}

// States of sleepers. Only one read runs at a time, because the BPF program has one buffer.
const (
	idle int32 = iota
	reading
	over
)

// read takes the stack of one process. It does nothing if the process was unreachable before, or if another read still runs.
func (s *sleepers) read(c *collector, pid int) error {
	if c.unreachable[pid] || s.state.Load() != idle {
		return nil
	}
	began, waitPointer := time.Now(), c.server.target.WaitPointer
	var err error
	read := func() {
		process.ProbeReadable(pid)        // if this call never returns, this program can still end
		_, _ = readWord(pid, waitPointer) // if this call never returns, other processes can still be read
		if !s.state.CompareAndSwap(idle, reading) {
			return // this read took longer than its timeout: another one runs, or the profile has ended
		}
		err = c.sampler.ReadSleeper(pid)
		s.state.CompareAndSwap(reading, idle)
	}
	if !process.WithTimeout(pid, read, func() {}) {
		c.unreachable[pid] = true
		return nil
	}
	s.took += time.Since(began)
	return err
}

// end ensures that reads that took longer than their timeout do not use the BPF program.
func (s *sleepers) end() { s.state.Store(over) }
