package clusterprofile

import (
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace/process"
)

// sleepers reads the stacks of sleeping processes by a program in the kernel. The kernel may never return from reading
// a process: see process.ProbeReadable. So each read has a timeout.
type sleepers struct {
	took  time.Duration // of all reads that ended in time
	state atomic.Int32
}

// States of sleepers. One read runs at a time, because the program has one buffer.
const (
	idle int32 = iota
	reading
	over
)

// read takes the stack of one process, unless the process did not answer before, or the kernel still reads another.
func (s *sleepers) read(c *collector, pid int) error {
	if c.unreachable[pid] || s.state.Load() != idle {
		return nil
	}
	began, waitPointer := time.Now(), c.server.target.WaitPointer
	var err error
	read := func() {
		process.ProbeReadable(pid)        // a program can end while it waits for this
		_, _ = readWord(pid, waitPointer) // if this waits, other processes can still be read
		if !s.state.CompareAndSwap(idle, reading) {
			return // this read is late
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

// end makes reads that are late end without the program.
func (s *sleepers) end() { s.state.Store(over) }
