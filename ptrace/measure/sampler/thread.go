package sampler

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/ptrace/thread"
)

// samplerThread takes samples of the threads that belong to one processor. A timer of the processor samples the thread
// that it interrupts. For a thread that is off the processor and has not run since its last sample, that sample counts
// again. For the others the timer wakes this thread, which samples them: while it has the processor they do not. The
// timers of all processors look at each target in each interval, and one of them samples it.
//
// The processes notice only an interrupt, as of any timer, and at times that this thread has their processor. To Go's
// scheduler a batch of samples is one system call (stop.go says what that demands): no part of the runtime runs for a
// single sample.
type samplerThread struct {
	sampler   *Sampler
	number    int // of the processor
	processor *processor
	call      int // an eventfd(2): readable, it ends the batch

	// layouts are the processes' when a batch begins: its samples refer to them.
	layouts [MaxTargets]*snapshot.MapsSnapshot
	errno   unix.Errno

	// An ordinary thread has the lowest real-time priority while it waits for a reason to read, where it may: else it
	// could be late, and the targets would have run. It reads for some microseconds at a time.
	ordinary bool
	policy   uintptr // sched(7)

	left    unix.Timespec  // until the batch is to be handed on
	awaited [2]unix.PollFd // processor, call
}

// firstBatch is when the first samples are handed on: to read what they are named by takes longer than all the rest.
const firstBatch = 50 * time.Millisecond

// late is how long after the end of a batch the timer continues without this thread. It stops then, as when the whole
// program was stopped, by SIGSTOP or with its control group.
const late = time.Second

// slice is for how long the scheduler should let this thread run at a time, in ns (sched_setattr(2), Linux 6.12): who
// wants the least gets the processor first, here at the moment that was chosen by chance, and not at one at which the
// process that has it goes to sleep.
const slice = 100_000

// schedAttr is struct sched_attr (sched_setattr(2)).
type schedAttr struct {
	size, policy      uint32
	flags             uint64
	nice              int32
	priority          uint32
	runtime, deadline uint64
	period            uint64
}

// run takes samples until the sampler ends.
func (t *samplerThread) run() {
	runtime.LockOSThread() // for good: the thread is bound to a processor, and ends with this
	if err := t.settle(); err != nil {
		t.hand(samples{err: err})
		return
	}
	t.awaited[0] = unix.PollFd{Fd: int32(t.processor.Descriptor()), Events: unix.POLLIN}
	t.awaited[1] = unix.PollFd{Fd: int32(t.call), Events: unix.POLLIN}
	batch := min(firstBatch, t.sampler.options.Batch)
	for ; ; batch = time.Duration(t.sampler.batch.Load()) {
		_, _ = unix.Read(t.call, make([]byte, 8)) // before: what it was called for is looked at now
		thread.BeginWork()
		quit := atomic.LoadUint32(&t.sampler.quit) != 0
		var err error
		if !quit {
			err = t.batch(batch)
		}
		thread.EndWork()
		if quit {
			return
		}
		if err != nil {
			t.hand(samples{err: err})
			return
		}
		b := t.samples()
		if t.errno != 0 {
			b.err = process.Failed(unix.Getpid(), "read threads off the processor", t.errno)
		}
		t.processor.Reset()
		t.hand(b)
	}
}

// batch takes samples for a while.
func (t *samplerThread) batch(most time.Duration) error {
	t.aim()
	t.left = unix.Timespec{Sec: int64(most / time.Second), Nsec: int64(most % time.Second)}
	if err := t.processor.Start(t.sampler.options.Interval, most+late); err != nil {
		return err
	}
	t.collect()
	runtime.KeepAlive(t)
	err := t.processor.Stop()
	if errno := t.processor.ReadWanted(); errno != 0 && t.errno == 0 { // of the last look
		t.errno = errno
	}
	return err
}

// hand hands a batch on.
func (t *samplerThread) hand(b samples) { t.sampler.batches <- b }

// settle binds the thread to its processor.
func (t *samplerThread) settle() error {
	var one unix.CPUSet
	one.Set(t.number)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("to run on processor %d: %w", t.number, err)
	}
	t.policy, t.ordinary = thread.OrdinaryPolicy()
	attributes := schedAttr{size: uint32(unsafe.Sizeof(schedAttr{})), runtime: slice}
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_SETATTR, 0, uintptr(unsafe.Pointer(&attributes)), 0)
	return nil // without that a sampler is less exact, and not wrong
}

// aim sets the targets.
func (t *samplerThread) aim() {
	s := t.sampler
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.targets {
		t.layouts[i] = p.layout
		target := t.processor.Target(i)
		*target = rawTarget{
			TID: uint32(p.target.PID), StackEnd: p.end(), MaxStack: uint32(s.options.MaxStack),
			RedZone: uint32(s.options.RedZone),
		}
		if p.ended {
			target.TID = 0 // another process may have the number
		}
	}
	t.processor.Aim(len(s.targets))
}

// collect takes samples until it is time to hand them on.
//
//go:nosplit
//go:norace
func (t *samplerThread) collect() {
	thread.EnterSyscall()
	urgent := t.ordinary && thread.RaisePriority()
	for t.rest() {
		t.processor.Seen()
		if t.errno = t.processor.ReadWanted(); t.errno != 0 || !t.processor.Room() || t.processor.AllGone() {
			break
		}
	}
	if urgent {
		thread.RestorePriority(t.policy)
	}
	thread.ExitSyscall()
}

// rest waits until a target is to be read. It returns false when it is time to hand on the batch. The kernel keeps
// account of the time that is left. A signal that comes meanwhile is the runtime's.
//
//go:nosplit
//go:norace
func (t *samplerThread) rest() bool {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&t.awaited)), uintptr(len(t.awaited)),
			uintptr(unsafe.Pointer(&t.left)), 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			t.errno = errno
			return false
		case n == 0 || t.awaited[1].Revents != 0 || thread.IsSet(&t.sampler.quit):
			return false
		default:
			return true
		}
	}
}

// samples returns the batch, without samples of a process that has taken the number of a target.
func (t *samplerThread) samples() samples {
	s := t.sampler
	taken := t.processor.Samples()
	b := samples{list: make([]Sample, 0, len(taken)), missed: t.processor.Missed()}
	select {
	case b.stacks = <-s.spare:
	default:
	}
	b.stacks = append(b.stacks[:0], t.processor.Stacks()...)
	all := make([]memoryOfSample, len(taken))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range taken {
		if x := &taken[i]; x.Outcome != outcomeNone && s.targets[x.Target].is(x) {
			b.list = append(b.list, Sample{all[i].fill(t.layouts[x.Target], x, b.stacks), int(x.Times)})
		}
	}
	return b
}

// is reports whether a sample is of the process that is meant.
func (p *sampled) is(x *rawSample) bool {
	if p.started == 0 && p.held.Lives() {
		p.started = x.Started // no other process has had the number since it was held
	}
	p.ended = p.ended || p.started != x.Started
	return p.started == x.Started
}

// memoryOfSample is a snapshot with what belongs to it.
type memoryOfSample struct {
	snapshot  snapshot.Snapshot
	thread    [1]snapshot.Thread
	registers [snapshot.PRStatusSize]byte
}

func (m *memoryOfSample) fill(l *snapshot.MapsSnapshot, x *rawSample, stacks []byte) *snapshot.Snapshot {
	for i, value := range x.Registers {
		binary.NativeEndian.PutUint64(m.registers[8*i:], value)
	}
	th := &m.thread[0]
	*th = snapshot.Thread{TID: l.Stat().PID, Name: l.Stat().Comm, State: letterOf(x.State), Registers: m.registers[:]}
	if x.Outcome == outcomeNoStack || x.StackEnd == 0 {
		th.Err = snapshot.ErrNoStack
	} else {
		th.Stack = snapshot.Stack{Start: x.StackStart, Data: stacks[x.StackAt:][:x.StackLength:x.StackLength],
			Cut: x.StackStart+x.StackLength < x.StackEnd}
	}
	m.snapshot = snapshot.Snapshot{
		PID: l.Stat().PID, Engine: EngineSampled, Maps: l.Maps(), MapsSnapshot: l, Threads: m.thread[:],
	}
	return &m.snapshot
}

// letterOf is the letter for a thread's state, as procfs.Stat.State (task_state_array in fs/proc/array.c).
func letterOf(state uint32) byte {
	const letters = "SDTt"
	for i := range len(letters) {
		if state&(1<<i) != 0 {
			return letters[i]
		}
	}
	if state == 0 {
		return 'R'
	}
	return 'S'
}
