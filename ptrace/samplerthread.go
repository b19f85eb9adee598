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

// samplerThread takes samples of the threads that belong to one processor, where it runs itself, so that none of them
// does: whoever could run was put aside for this thread a moment ago. Each target is looked at by the samplerThreads of
// all processors in each interval, and read by one.
//
// To wake up, look and go to sleep is all that it does a hundred times a second, and all that the processes notice. To
// Go's scheduler many such rounds are one system call (see stop.go for what that demands): nothing of the runtime runs
// for a round, and what is to be done with the samples is done for many at a time.
type samplerThread struct {
	sampler   *Sampler
	processor int
	reader    *bpf.Reader

	taken  [maxTaken]taken
	nTaken int
	slots  int
	missed int
	gone   bool // all processes are
	errno  unix.Errno

	random         uint64
	interval       int64 // ns
	due, at, until int64 // on the clock: the interval's begin, the next look, when to hand on what there is
	now, when      timespec
}

// taken is a sample.
type taken struct {
	target int
	slot   bpf.Slot
}

// firstBatch is when the first samples are handed on: to read what they are named by takes longer than all the rest.
const firstBatch = 50 * time.Millisecond

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
	t.interval = int64(t.sampler.options.Interval)
	t.random = uint64(time.Now().UnixNano()) | 1
	if err := t.settle(); err != nil {
		t.hand(samples{err: err})
		return
	}
	t.due = t.clock() + int64(t.processor)*t.interval/int64(len(t.sampler.threads))
	t.planAfter(t.due)
	batch := min(firstBatch, t.sampler.options.Batch)
	for ; atomic.LoadUint32(&t.sampler.quit) == 0; batch = t.sampler.options.Batch {
		t.aim()
		t.until = t.clock() + int64(batch)
		t.collect()
		runtime.KeepAlive(t)
		b := t.snapshots()
		if t.errno != 0 {
			b.err = systemError(unix.Getpid(), "read threads off the processor", t.errno)
		}
		t.nTaken, t.missed = 0, 0
		t.reader.Empty()
		t.hand(b)
	}
}

// hand hands a batch on.
func (t *samplerThread) hand(b samples) { t.sampler.batches <- b }

// stop has the threads end.
func (s *Sampler) stop() { atomic.StoreUint32(&s.quit, 1) }

// settle binds the thread to its processor. Its clock must be exact (PR_SET_TIMERSLACK in prctl(2)): one that may be
// late rings together with others, and so just when somebody else is woken up.
func (t *samplerThread) settle() error {
	var one unix.CPUSet
	one.Set(t.processor)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("to run on processor %d: %w", t.processor, err)
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	attributes := schedAttr{size: uint32(unsafe.Sizeof(schedAttr{})), runtime: slice}
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_SETATTR, 0, uintptr(unsafe.Pointer(&attributes)), 0)
	return nil // without either, a sampler is less exact, and not wrong
}

// aim says which processes are to be read.
func (t *samplerThread) aim() {
	s := t.sampler
	s.mu.Lock()
	defer s.mu.Unlock()
	t.slots = len(s.targets)
	for i, p := range s.targets {
		slot := t.reader.Slot(i)
		*slot = bpf.Slot{PID: uint32(p.target.PID), End: p.end(), Most: uint64(s.options.MaxStack),
			RedZone: uint64(s.options.RedZone)}
		if p.ended {
			slot.PID = 0 // nobody's
		}
	}
}

// collect takes samples until it is time to hand them on.
//
//go:nosplit
//go:norace
func (t *samplerThread) collect() {
	entersyscall()
	for {
		t.rest()
		if t.errno = t.reader.Read(t.slots, t.processor); t.errno != 0 {
			break
		}
		t.note()
		t.planAfter(t.reader.Now())
		if t.at >= t.until || t.gone || t.nTaken > maxTaken-bpf.MaxTargets || !t.reader.Room() || t.sampler.quit != 0 {
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
		if slot.Outcome == bpf.Gone || slot.Outcome == bpf.NoStack && slot.State&dead != 0 {
			continue
		}
		t.gone = false
		switch slot.Outcome {
		case bpf.Read, bpf.NoStack:
			t.taken[t.nTaken].target = i
			t.taken[t.nTaken].slot = *slot
			t.nTaken++
		case bpf.Moved, bpf.Full:
			t.missed++
		case bpf.Elsewhere, bpf.Gone: // another processor's, nobody's
		}
	}
}

// planAfter chooses the moment of the next look after now, by chance in the middle half of its interval, lest it keep
// step with something. Who is late does not make up for it.
//
//go:nosplit
//go:norace
func (t *samplerThread) planAfter(now int64) {
	t.random ^= t.random << 13
	t.random ^= t.random >> 7
	t.random ^= t.random << 17
	t.due += t.interval
	t.due = max(t.due, now)
	t.at = t.due + int64(t.random%uint64(t.interval))/2
}

// rest waits for the moment that was chosen. A signal that comes meanwhile is the runtime's.
//
//go:nosplit
//go:norace
func (t *samplerThread) rest() {
	const absolute = 1 // TIMER_ABSTIME
	t.when = timespec{t.at / 1e9, t.at % 1e9}
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, absolute,
			uintptr(unsafe.Pointer(&t.when)), 0, 0, 0)
		if errno != unix.EINTR {
			return
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

// snapshots makes the result of what was taken of processes that are still those that are meant.
func (t *samplerThread) snapshots() samples {
	s, n := t.sampler, t.nTaken
	b := samples{snapshots: make([]*Snapshot, 0, n), missed: t.missed}
	select {
	case b.stacks = <-s.spare:
	default:
	}
	b.stacks = append(b.stacks[:0], t.reader.Stacks()...)
	all := make([]memoryOfSample, n)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range t.taken[:n] {
		p, slot := s.targets[t.taken[i].target], &t.taken[i].slot
		if p.started == 0 && p.held.Lives() {
			p.started = slot.Started // nobody else has had the number since it was held
		}
		if p.started != slot.Started {
			p.ended = true
			continue
		}
		b.snapshots = append(b.snapshots, all[i].fill(p, slot, b.stacks))
	}
	return b
}

// memoryOfSample is a snapshot with what belongs to it.
type memoryOfSample struct {
	snapshot  Snapshot
	thread    [1]Thread
	registers [prStatusSize]byte
}

func (m *memoryOfSample) fill(p *sampled, slot *bpf.Slot, stacks []byte) *Snapshot {
	for i, value := range slot.Registers {
		binary.NativeEndian.PutUint64(m.registers[8*i:], value)
	}
	th := &m.thread[0]
	*th = Thread{TID: p.target.PID, Name: p.layout.stat.Comm, State: letterOf(slot.State), Registers: m.registers[:]}
	if slot.Outcome == bpf.NoStack || slot.End == 0 {
		th.Err = ErrNoStack
	} else {
		th.Stack = Stack{Start: slot.Start, Data: stacks[slot.At:][:slot.Length:slot.Length],
			Cut: slot.Start+slot.Length < slot.End}
	}
	m.snapshot = Snapshot{
		PID: p.target.PID, Engine: EngineOffCPU, Maps: p.layout.maps, Layout: p.layout, Threads: m.thread[:],
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
