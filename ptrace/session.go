package ptrace

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// errAgain means that the target executed another program during the capture: the data read before is invalid.
var errAgain = errors.New("the process has executed another program")

// The note types of the general and of the floating point registers (elf.h).
const (
	ntPRStatus = 1
	ntFPRegSet = 2
)

// step identifies the moments at which tests can interfere.
type step string

const (
	stepMapped  step = "mapped"  // mappings have been read, no thread is attached
	stepSeized  step = "seized"  // threads are attached, not interrupted
	stepWaiting step = "waiting" // threads are interrupted, but have not stopped yet
	stepDone    step = "done"    // threads are detached
)

// session is the state of one capture on its thread: the attached threads, and the memory for the copies. It is
// reused for other captures, because new memory would have to be touched first.
type session struct {
	call    *captureCall
	before  process.Stat
	maps    []process.Mapping
	spans   []snapshot.Span        // spans of maps; shared with layout
	layout  *snapshot.MapsSnapshot // has maps
	known   bool                   // layout is Options.MapsSnapshot: this capture has not read the mappings
	tracees []tracee
	leftOut int
	own     bool // the target is a child of this process
	// dumping is set if a thread writes the core file. This thread must not be interrupted.
	dumping bool
	// processor is the processor on which the main thread ran last.
	processor int

	maxStack, redZone, pageMask uint64

	arena arena

	also   [snapshot.MaxAlso]piece // further memory to copy (Options.Also)
	pieces int
	extra  extraReads
	blocks blocks

	coroutines coroutines

	// lastRunning is when all threads were last known to run. firstStop is the earliest possible time of the first
	// stop, seen the time when that stop was detected, and end the time of the last detach. All are in ns; 0: not yet.
	lastRunning, firstStop, seen, end int64
	now                               timespec

	// patience is how long to poll for the stop before the next nap, nap is the length of this nap, both in ns. tries
	// is the number of polls so far. until is the time, of the method clock, at which stopAndCopyNoSched returns.
	patience, nap int64
	tries         int
	until         int64
	pause         timespec

	file fileText // memory for reapExited

	mask, oldMask uint64
	blocking      bool    // signals are blocked
	exact         bool    // the thread's timer slack was changed
	urgent        bool    // the thread has real-time priority
	policy        uintptr // the thread's scheduling policy before raisePriority
	drained       bool    // drainAll was called
	doubtful      bool    // a thread may be attached that cannot be detached, or is not among the tracees
}

// timespec is struct timespec.
type timespec struct{ sec, nsec int64 }

// sessions has idle sessions for further captures.
//
//nolint:gochecknoglobals // a cache
var sessions = make(chan *session, 4)

func newSession(f *captureCall) *session {
	var s *session
	select {
	case s = <-sessions:
	default:
		s = &session{pageMask: uint64(os.Getpagesize()) - 1, mask: blocked}
	}
	s.call = f
	s.maxStack, s.redZone = uint64(f.options.MaxStack), uint64(f.options.RedZone)
	return s
}

// recycle keeps the session for another capture, unless the channel sessions is full.
func (s *session) recycle() {
	s.reset()
	s.call = nil
	if cap(s.tracees) > 8 {
		s.tracees = nil
	}
	s.arena.trim()
	select {
	case sessions <- s:
	default:
		s.arena.free()
	}
}

// reset removes the data of the previous capture.
func (s *session) reset() {
	clear(s.tracees)
	s.tracees = s.tracees[:0]
	s.before, s.leftOut = process.Stat{}, 0
	s.maps, s.spans, s.layout, s.known = nil, nil, nil, false
	s.dumping, s.drained = false, false
	s.arena.used, s.arena.kept, s.blocks = 0, 0, blocks{}
	s.lastRunning, s.firstStop, s.seen, s.end = 0, 0, 0, 0
}

func (s *session) hook(at step) {
	if h := s.call.hook; h != nil {
		h(at)
	}
}

// capture makes the snapshot. The caller must call release, which detaches the threads that are still attached after an error.
func (s *session) capture() (*snapshot.Snapshot, error) {
	s.reset()
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if s.mayHold() {
		process.ProbeReadable(s.call.target.PID)
	}
	s.prefault()
	s.hook(stepMapped)
	muteStops()
	if err := s.attach(); err != nil {
		return nil, err
	}
	if err := s.identify(); err != nil {
		return nil, err
	}
	if s.dumping {
		return nil, fmt.Errorf("process %d: %w", s.call.target.PID, ErrDumping)
	}
	s.hook(stepSeized)
	if err := s.call.expired(); err != nil {
		return nil, err
	}
	if err := s.stopAndCopy(); err != nil {
		return nil, err
	}
	s.hook(stepDone)
	return s.snapshot()
}

// prepare reads the target's state and mappings, and allocates the memory for the copies, before a thread is attached.
func (s *session) prepare() error {
	pid := s.call.target.PID
	if l := s.call.options.MapsSnapshot; l != nil && l.Stat().PID == pid && !s.call.options.AllThreads {
		s.before, s.known = *l.Stat(), true
		if now, err := process.ReadStat(pid); err == nil {
			s.before.Threads, s.before.State = now.Threads, now.State // for mayHold: threads may have started since
		}
		s.use(l)
	} else if err := s.readTarget(pid); err != nil {
		return err
	}
	also := s.call.options.Also
	s.pieces = min(len(also), snapshot.MaxAlso)
	for i := range s.pieces {
		s.also[i] = piece{address: also[i]}
	}
	s.extra.prepare(s.call.options.ExtraReads)
	s.blocks.prepare(s.call.options.Blocks)
	stacks := 1 + s.pieces
	if s.coroutines.prepare(s.call.options.Coroutines); s.coroutines.wanted {
		stacks++
	}
	return s.arena.reserve(s.call.options.MaxStack, stacks)
}

// readTarget reads the target's stat file and its mappings.
func (s *session) readTarget(pid int) (err error) {
	if s.before, err = process.ReadTarget(pid); err != nil {
		return err
	}
	if !s.call.options.AllThreads {
		if err := process.CheckMainThread(&s.before); err != nil {
			return err
		}
	}
	return s.readMaps(pid)
}

// piece is memory to copy in addition to the threads' stacks.
type piece struct {
	address    uint64
	start      uint64
	at, length int // in the arena
	cut        bool
}

// readMaps reads the mappings of the process through one of its threads.
func (s *session) readMaps(tid int) error {
	maps, err := process.TaskMaps(s.call.target.PID, tid)
	switch {
	case errors.Is(err, process.ErrGone):
		return process.Exited(s.call.target.PID)
	case errors.Is(err, process.ErrDenied):
		return process.Explain(s.call.target.PID, s.call.target.PID)
	case err != nil:
		return err
	}
	s.use(snapshot.NewMapsSnapshot(maps, &s.before))
	return nil
}

// use makes l the mappings of the session.
func (s *session) use(l *snapshot.MapsSnapshot) { s.layout, s.maps, s.spans = l, l.Maps(), l.Spans() }

// readMapsBy reads the mappings through the first thread that has not ended. An ended thread shows no mappings.
func (s *session) readMapsBy(tids []int) error {
	layout, before, spans := s.layout, s.maps, s.spans
	for _, tid := range tids {
		if err := s.readMaps(tid); err != nil && !errors.Is(err, process.ErrExited) {
			return err
		} else if err == nil && len(s.maps) > 0 {
			return nil
		}
	}
	s.layout, s.maps, s.spans = layout, before, spans
	return nil
}

// snapshot builds the result. It copies the data out of the arena, which the next capture will use.
func (s *session) snapshot() (*snapshot.Snapshot, error) {
	snap := &snapshot.Snapshot{
		PID: s.call.target.PID, Engine: snapshot.EngineStop, Maps: s.maps, ThreadsLeftOut: s.leftOut, MapsSnapshot: s.layout,
	}
	snap.Threads = make([]snapshot.Thread, 0, len(s.tracees))
	copied := false
	for i := range s.tracees {
		t := &s.tracees[i]
		if t.phase == gone || t.executed {
			return nil, errAgain
		}
		if !t.foreign {
			snap.Threads = append(snap.Threads, s.thread(t, snap))
			copied = copied || t.length > 0
		}
	}
	if !copied {
		return nil, snap.Threads[0].Err
	}
	for _, p := range s.also[:s.pieces] {
		if p.length > 0 {
			snap.Also = append(snap.Also,
				snapshot.Stack{Start: p.start, Data: slices.Clone(s.arena.memory[p.at : p.at+p.length]), Cut: p.cut})
		}
	}
	snap.Found = s.found()
	snap.Blocks = s.blocks.found()
	slices.SortFunc(snap.Threads[1:], func(a, b snapshot.Thread) int { return a.TID - b.TID })
	snap.Pause = time.Duration(s.end - s.firstStop)
	snap.Held = time.Duration(s.end - s.seen)
	return snap, nil
}

// thread makes the result of one thread, for a snapshot.
func (s *session) thread(t *tracee, snap *snapshot.Snapshot) snapshot.Thread {
	result := snapshot.Thread{TID: t.tid, Name: t.name, State: t.state, Err: t.err}
	switch {
	case errors.Is(t.err, snapshot.ErrKernelWorker):
		result.WaitChannel, result.KernelStack = process.KernelPlace(s.call.target.PID, t.tid)
	case t.err != nil:
	case t.length > 0:
		result.Registers = slices.Clone(t.registers[:t.length])
		if t.hasFloat {
			result.Floating = slices.Clone(t.floating[:])
		}
		copied := s.arena.memory[t.stackAt : t.stackAt+t.stackLen]
		result.Stack = snapshot.Stack{Start: t.stackStart, Data: snap.CopyOf(copied), Cut: t.cut}
		result.Others = s.others(t)
		if t.stackLen == 0 {
			result.Stack = snapshot.Stack{}
			result.Err = noStackError(t)
		}
	case t.phase == seized && t.errno == 0:
		result.Err = &DeadlineError{PID: t.tid, After: time.Since(s.call.started), State: t.state,
			During: "the limit for the pause of its process was reached"}
	case t.errno != 0 && t.errno != unix.ESRCH:
		result.Err = process.Failed(t.tid, "read registers", t.errno)
	default:
		result.Err = process.Exited(t.tid)
	}
	return result
}

// mayHold reports whether capture should call ProbeReadable: a thread of the target may have locked the address space while
// others wait for the lock. This is impossible with a single thread that is not in uninterruptible sleep.
func (s *session) mayHold() bool { return s.before.Threads > 1 || s.before.State == 'D' }
