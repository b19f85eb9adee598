package ptrace

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
)

// samplerThread takes samples of the threads that belong to one processor. A clock there notes whom it interrupts, and
// the others that belong there, which are off the processor; of one that has not run since, it counts that. Only if it
// cannot read one this thread wakes up, on that processor, so that none of them has it, and does. Each target is looked
// at by the clocks of all processors in each interval, and sampled by one.
//
// That is all that the processes notice: an interrupt like any timer's, and, seldom, that this thread has their
// processor. To Go's scheduler a batch of samples is one system call (see stop.go for what that
// demands): nothing of the runtime runs for a single one.
type samplerThread struct {
	sampler   *Sampler
	processor int
	reader    *bpf.Reader
	ticks     *bpf.Clock
	call      int // an eventfd(2): readable, it ends the batch

	taken  [maxTaken]taken
	nTaken int
	last   [bpf.MaxTargets]int // of each process, among taken
	slots  int
	// layouts are what is known of the processes when a batch begins, and what its samples are told to go by.
	layouts [bpf.MaxTargets]*MapsSnapshot
	missed  int
	gone    bool // all processes are
	errno   unix.Errno

	until     int64 // on the clock: when to hand on what there is
	now, left timespec
	awaited   [2]unix.PollFd // ticks, call
}

// taken is a sample.
type taken struct {
	target int
	times  int
	slot   bpf.Slot
}

// firstBatch is when the first samples are handed on: to read what they are named by takes longer than all the rest.
const firstBatch = 50 * time.Millisecond

// late is how long after the end of a batch this thread may get a processor. If it does not the clock stands still, as
// it is when the whole program was stopped, by SIGSTOP or with its control group.
const late = time.Second

// maxTaken is how many samples wait at most.
const maxTaken = 512

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
	t.awaited[0] = unix.PollFd{Fd: int32(t.ticks.Descriptor()), Events: unix.POLLIN}
	t.awaited[1] = unix.PollFd{Fd: int32(t.call), Events: unix.POLLIN}
	batch := min(firstBatch, t.sampler.options.Batch)
	for ; ; batch = t.sampler.options.Batch {
		_, _ = unix.Read(t.call, make([]byte, 8)) // before: what it was called for is looked at now
		work.begin()
		quit := atomic.LoadUint32(&t.sampler.quit) != 0
		var err error
		if !quit {
			err = t.batch(batch)
		}
		work.end()
		if quit {
			return
		}
		if err != nil {
			t.hand(samples{err: err})
			return
		}
		b := t.samples()
		if t.errno != 0 {
			b.err = systemError(unix.Getpid(), "read threads off the processor", t.errno)
		}
		t.nTaken, t.missed = 0, 0
		t.reader.Empty()
		t.ticks.Empty()
		t.hand(b)
	}
}

// batch takes samples for a while.
func (t *samplerThread) batch(most time.Duration) error {
	t.aim()
	t.until = t.clock() + int64(most)
	if err := t.ticks.Start(t.sampler.options.Interval, most+late); err != nil {
		return err
	}
	t.collect()
	runtime.KeepAlive(t)
	return t.ticks.Stop()
}

// hand hands a batch on.
func (t *samplerThread) hand(b samples) { t.sampler.batches <- b }

// settle binds the thread to its processor.
func (t *samplerThread) settle() error {
	var one unix.CPUSet
	one.Set(t.processor)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("to run on processor %d: %w", t.processor, err)
	}
	attributes := schedAttr{size: uint32(unsafe.Sizeof(schedAttr{})), runtime: slice}
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_SETATTR, 0, uintptr(unsafe.Pointer(&attributes)), 0)
	return nil // without that a sampler is less exact, and not wrong
}

// aim says which processes are to be read.
func (t *samplerThread) aim() {
	s := t.sampler
	s.mu.Lock()
	defer s.mu.Unlock()
	t.slots = len(s.targets)
	for i, p := range s.targets {
		slot := t.reader.Slot(i)
		t.layouts[i] = p.layout
		*slot = bpf.Slot{PID: uint32(p.target.PID), End: p.end(), Most: uint32(s.options.MaxStack),
			RedZone: uint32(s.options.RedZone)}
		if p.ended {
			slot.PID = 0 // nobody's
		}
	}
	t.reader.Aim(t.slots, t.processor)
}

// collect takes samples until it is time to hand them on.
//
//go:nosplit
//go:norace
func (t *samplerThread) collect() {
	entersyscall()
	for t.gone = false; t.rest() && !t.gone; {
		t.ticks.Seen()
		if t.errno = t.reader.Read(t.slots, t.processor); t.errno != 0 {
			break
		}
		t.note()
		if t.nTaken > maxTaken-bpf.MaxTargets || !t.reader.Room() || !t.ticks.Room() {
			break
		}
	}
	exitsyscall()
}

// note keeps what was read.
//
//go:nosplit
//go:norace
func (t *samplerThread) note() {
	const dead = 0x80 // TASK_DEAD (linux/sched.h): it has ended, and nobody has asked how
	t.gone = true
	for i := range t.slots {
		slot := t.reader.Slot(i)
		if slot.PID == 0 || slot.Outcome == bpf.Gone || slot.Outcome == bpf.NoStack && slot.State&dead != 0 {
			continue
		}
		t.gone = false
		if slot.Before != 0 {
			t.taken[t.last[i]].times += int(slot.Before)
			slot.Before = 0
		}
		switch slot.Outcome {
		case bpf.Read, bpf.NoStack:
			t.taken[t.nTaken].target = i
			t.taken[t.nTaken].times = 1
			t.taken[t.nTaken].slot = *slot
			t.last[i] = t.nTaken
			t.nTaken++
		case bpf.Elsewhere, bpf.Moved, bpf.Full:
			t.missed++
		case bpf.Unwanted, bpf.Gone:
		}
	}
}

// rest waits until there is somebody to read; false if it is time to hand on what there is. A signal that comes
// meanwhile is the runtime's.
//
//go:nosplit
//go:norace
func (t *samplerThread) rest() bool {
	for {
		left := t.until - t.clock()
		if left <= 0 || isSet(&t.sampler.quit) {
			return false
		}
		t.left = timespec{left / 1e9, left % 1e9}
		_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&t.awaited)), uintptr(len(t.awaited)),
			uintptr(unsafe.Pointer(&t.left)), 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			t.errno = errno
			return false
		case t.awaited[1].Revents != 0:
			return false
		case t.awaited[0].Revents != 0:
			return true
		}
	}
}

// clock is the monotonic time in nanoseconds.
//
//go:nosplit
//go:norace
func (t *samplerThread) clock() int64 {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&t.now)), 0)
	return t.now.sec*1e9 + t.now.nsec
}

// samples makes the result of what was taken of processes that are still those that are meant.
func (t *samplerThread) samples() samples {
	s := t.sampler
	n, missed := t.ticks.Noted()
	b := samples{list: make([]Sample, 0, t.nTaken+n), missed: t.missed + missed}
	select {
	case b.stacks = <-s.spare:
	default:
	}
	b.stacks = append(append(b.stacks[:0], t.reader.Stacks()...), t.ticks.Stacks()...)
	read, noted := b.stacks[:len(t.reader.Stacks())], b.stacks[len(t.reader.Stacks()):]
	all := make([]memoryOfSample, t.nTaken+n)
	for i := range t.slots {
		if again := t.reader.Slot(i).Again; again != 0 {
			t.taken[t.last[i]].times += int(again)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range t.taken[:t.nTaken] {
		if target, slot := t.taken[i].target, &t.taken[i].slot; s.targets[target].is(slot) {
			b.list = append(b.list, Sample{all[i].fill(t.layouts[target], slot, read), t.taken[i].times})
		}
	}
	for i := range n {
		if slot := t.ticks.Note(i); s.targets[slot.Other].is(slot) {
			b.list = append(b.list, Sample{all[t.nTaken+i].fill(t.layouts[slot.Other], slot, noted), 1 + int(slot.Again)})
		}
	}
	return b
}

// is tells whether what was read is of the process that is meant.
func (p *sampled) is(slot *bpf.Slot) bool {
	if p.started == 0 && p.held.Lives() {
		p.started = slot.Started // nobody else has had the number since it was held
	}
	p.ended = p.ended || p.started != slot.Started
	return p.started == slot.Started
}

// memoryOfSample is a snapshot with what belongs to it.
type memoryOfSample struct {
	snapshot  Snapshot
	thread    [1]Thread
	registers [prStatusSize]byte
}

func (m *memoryOfSample) fill(l *MapsSnapshot, slot *bpf.Slot, stacks []byte) *Snapshot {
	for i, value := range slot.Registers {
		binary.NativeEndian.PutUint64(m.registers[8*i:], value)
	}
	th := &m.thread[0]
	*th = Thread{TID: l.stat.PID, Name: l.stat.Comm, State: letterOf(slot.State), Registers: m.registers[:]}
	if slot.Outcome == bpf.NoStack || slot.End == 0 {
		th.Err = ErrNoStack
	} else {
		th.Stack = Stack{Start: slot.Start, Data: stacks[slot.At:][:slot.Length:slot.Length],
			Cut: slot.Start+slot.Length < slot.End}
	}
	m.snapshot = Snapshot{
		PID: l.stat.PID, Engine: EngineSampled, Maps: l.maps, MapsSnapshot: l, Threads: m.thread[:],
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
