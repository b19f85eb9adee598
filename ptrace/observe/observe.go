package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/ptrace/thread"
)

// Observe makes a snapshot of the process t without stopping it. It reads a sleeping thread with engine "blocked", even if the
// thread is stopped or traced. With engine "running", the kernel samples a thread that is on the CPU. Observe chooses
// the engine anew at every attempt, until one of them gives a consistent result.
//
// With Options.AllThreads it reads one thread after another. Each thread is consistent, but the threads are not from
// the same moment. A sample contains only the registers and the stack. So Observe copies the memory of Options.ExtraReads
// after the sample of a main thread, and sets Snapshot.Moved if that memory may have changed since shortly before the sample.
// With Options.MapsSnapshot, Observe need not read the mappings. Reading them takes longer than all other steps, and may
// have to wait while the process changes its mappings.
//
// Errors are ErrNotObserved, and the errors of Capture except ErrTraced, ErrDumping and ErrDeadline.
func Observe(ctx context.Context, t process.Target, o snapshot.Options) (*snapshot.Snapshot, error) {
	return observe(ctx, t, o, false)
}

// Asleep is Observe for a process that sleeps interruptibly (state S) and has no tracer. For another process, Asleep does not
// wait, and takes no sample: it returns ErrNotObserved.
func Asleep(ctx context.Context, t process.Target, o snapshot.Options) (*snapshot.Snapshot, error) {
	return observe(ctx, t, o, true)
}

func observe(ctx context.Context, t process.Target, o snapshot.Options, asleep bool) (*snapshot.Snapshot, error) {
	if err := process.CheckPID(t.PID); err != nil {
		return nil, err
	}
	thread.BeginWork() // a sample's event interrupts the thread until it is closed
	defer thread.EndWork()
	w := &observer{ctx: ctx, target: t, options: o.WithDefaults(), started: time.Now(), asleep: asleep}
	return w.bounded()
}

// tryAll calls observe, and repeats this up to two times if the process executes another program meanwhile.
func (w *observer) tryAll() (*snapshot.Snapshot, error) {
	const tries = 3
	for range tries {
		snapshot, err := w.observe()
		if !errors.Is(err, errExecuted) {
			return snapshot, err
		}
	}
	return nil, &process.RecycledError{PID: w.target.PID, Property: "program"}
}

// ErrNotObserved means that a consistent view of the target was not possible without a stop; see Error.
var ErrNotObserved = errors.New("could not be seen consistently without a stop")

// Error describes why a thread could not be read consistently. It is an ErrNotObserved.
type Error struct {
	PID      int
	After    time.Duration
	Attempts int
	Blocked  error // why engine "blocked" failed
	Running  error // why engine "running" failed; nil: not tried
}

func (e *Error) Error() string {
	text := fmt.Sprintf("process %d: %v (%d attempts in %v", e.PID, ErrNotObserved, e.Attempts,
		e.After.Round(time.Millisecond))
	if e.Blocked != nil {
		text += fmt.Sprintf("; asleep: %v", e.Blocked)
	}
	if e.Running != nil {
		text += fmt.Sprintf("; on the CPU: %v", e.Running)
	}
	return text + ")"
}

// Unwrap makes errors.Is(err, ErrNotObserved) true, and returns the errors of the engines.
func (e *Error) Unwrap() []error {
	return slices.DeleteFunc([]error{ErrNotObserved, e.Blocked, e.Running}, func(err error) bool { return err == nil })
}

// The outcomes of an attempt, besides the errors that end an observation.
var (
	errAwake    = errors.New("it was awake")
	errMoved    = errors.New("it moved while its stack was copied")
	errNoSample = errors.New("it did not run for long enough")
	errExecuted = errors.New("the process has executed another program")
)

// observer is the state of one call of Observe or Asleep.
type observer struct {
	ctx     context.Context //nolint:containedctx // it lives as long as the call
	target  process.Target
	options snapshot.Options
	started time.Time
	asleep  bool // see Asleep
	before  process.Stat
	layout  *snapshot.MapsSnapshot // Options.MapsSnapshot, if usable; nil: the mappings are read
	maps    []process.Mapping
	also    []snapshot.Stack
	found   []snapshot.Stack
	moved   bool // see Snapshot.Moved
}

// observe makes one snapshot of the verified process. errExecuted means that the process executed another program meanwhile.
func (w *observer) observe() (*snapshot.Snapshot, error) {
	pid := w.target.PID
	var err error
	held := w.target.Held
	if held == nil {
		if held, err = process.Hold(pid); errors.Is(err, process.ErrExited) {
			return nil, err
		}
		defer held.Release() // nil on an old kernel, or if the call is forbidden: then only the start time is compared
	}
	proof := w.target.Proof
	if proof.Holds() {
		w.before = proof.Stat
	} else {
		w.before, err = process.ReadTarget(pid)
	}
	if err == nil && !w.options.AllThreads {
		err = process.CheckMainThread(&w.before)
	}
	if err != nil {
		return nil, err
	}
	if err := w.target.Identify(&w.before); err != nil {
		return nil, err
	}
	w.layout = nil
	if l := w.options.MapsSnapshot; l.Describes(&w.before) && !w.options.AllThreads {
		w.layout, w.maps = l, l.Maps()
	} else if w.maps, err = readMaps(pid, w.options.AllThreads); err != nil {
		return nil, err
	}
	if narrow(w.maps) {
		return nil, fmt.Errorf("process %d: %w: a 32-bit program", pid, ErrNotObserved)
	}
	process.ProbeReadable(pid)
	snapshot, err := w.threads()
	if err != nil {
		return nil, err
	}
	if err := w.lay(snapshot); err != nil {
		return nil, err
	}
	if held != nil && held.Lives() && proof.Holds() { // the process has executed no other program
		return snapshot, nil
	}
	after, err := process.ReadTarget(pid)
	if err != nil {
		return nil, err
	}
	if held != nil && !held.Lives() {
		return nil, process.Exited(pid)
	}
	if after.StartTime != w.before.StartTime {
		return nil, &process.RecycledError{
			PID: pid, Property: "start time", Want: w.before.StartTime, Got: after.StartTime,
		}
	}
	if err := w.target.Identify(&after); err != nil {
		return nil, err
	}
	if after.StartCode != w.before.StartCode || after.StackStart != w.before.StackStart {
		return nil, errExecuted
	}
	return snapshot, nil
}

// lay adds mappings to a snapshot: the mappings of w.layout, or MapsBetween of the mappings read before the threads (w.maps)
// and now.
func (w *observer) lay(snap *snapshot.Snapshot) error {
	if w.layout != nil {
		snap.Maps, snap.MapsSnapshot = w.maps, w.layout
		return nil
	}
	later, err := readMaps(w.target.PID, w.options.AllThreads)
	if err != nil {
		return err
	}
	snap.Maps = snapshot.MapsBetween(w.maps, later)
	snap.MapsSnapshot = snapshot.NewMapsSnapshot(snap.Maps, &w.before)
	return nil
}

// threads observes the main thread, or all threads. It fails if no thread could be observed.
func (w *observer) threads() (*snapshot.Snapshot, error) {
	pid := w.target.PID
	tids := []int{pid}
	snap := &snapshot.Snapshot{PID: pid}
	if w.options.AllThreads {
		all, err := process.Threads(pid)
		if err != nil {
			return nil, process.ReadError(w.target.PID, pid, err)
		}
		all = slices.DeleteFunc(all, func(tid int) bool { return tid == pid })
		if len(all) >= snapshot.MaxThreads {
			snap.ThreadsLeftOut = len(all) - (snapshot.MaxThreads - 1)
			all = all[:snapshot.MaxThreads-1]
		}
		tids = append(tids, all...)
	}
	seen := false
	for _, tid := range tids {
		thread, engine := w.thread(tid)
		if err := w.ctx.Err(); err != nil {
			return nil, fmt.Errorf("process %d: observation canceled: %w", pid, context.Cause(w.ctx))
		}
		if thread.Err == nil || errors.Is(thread.Err, snapshot.ErrNoStack) {
			seen = true
			switch snap.Engine {
			case "", engine:
				snap.Engine = engine
			default:
				snap.Engine = snapshot.EngineMixed
			}
		}
		snap.Threads = append(snap.Threads, thread)
	}
	if !seen {
		return nil, snap.Threads[0].Err
	}
	snap.Also, snap.Found, snap.Moved = w.also, w.found, w.moved
	return snap, nil
}

const (
	maxAttempts = 2000
	// asleepAttempts is how often Asleep tries to copy a stack that changes during the copy.
	asleepAttempts = 2
	firstPause     = 20 * time.Microsecond // between two attempts to find a thread asleep; doubles
	lastPause      = 5 * time.Millisecond
	// How long to wait for a sample before checking again whether the thread sleeps. A running thread gives a sample
	// within a tenth of a millisecond, a thread that was about to sleep gives none. The wait doubles each time.
	firstSlice = 2 * time.Millisecond
	lastSlice  = 50 * time.Millisecond
)

// thread observes one thread in repeated attempts. If one succeeds, engine is its engine. Otherwise thread.Err says why not.
func (w *observer) thread(tid int) (thread snapshot.Thread, engine string) {
	thread.TID = tid // set also if no attempt is made
	if tid != w.target.PID {
		if stat, err := process.ReadTaskStat(w.target.PID, tid); err == nil && stat.Worker() {
			thread = snapshot.Thread{TID: tid, Name: stat.Comm, State: stat.State, Err: snapshot.ErrKernelWorker}
			thread.WaitChannel, thread.KernelStack = process.KernelPlace(w.target.PID, tid)
			return thread, ""
		}
	}
	if thread.Err = w.target.CompareThread(tid); thread.Err != nil {
		return thread, ""
	}
	failure := &Error{PID: tid}
	canSample, attempts := !w.asleep, maxAttempts
	if w.asleep {
		attempts = asleepAttempts
	}
	pause, slice := firstPause, firstSlice
	for failure.Attempts < attempts && w.left() > 0 {
		failure.Attempts++
		thread, failure.Blocked = w.blocked(tid)
		switch {
		case failure.Blocked == nil:
			return thread, snapshot.EngineBlocked
		case errors.Is(failure.Blocked, process.ErrExited), errors.Is(failure.Blocked, process.ErrNotPermitted):
			thread.Err = failure.Blocked
			return thread, ""
		case errors.Is(failure.Blocked, errAwake) && w.asleep:
			attempts = 0
		case errors.Is(failure.Blocked, errAwake) && canSample:
			var err error
			thread, err = w.running(tid, min(slice, w.left()))
			if err == nil {
				return thread, snapshot.EngineRunning
			}
			if errors.Is(err, process.ErrExited) {
				return snapshot.Thread{TID: tid, Err: err}, ""
			}
			failure.Running = err
			canSample = errors.Is(err, errNoSample)
			slice = min(2*slice, lastSlice)
		case process.IsEnding(w.target.PID, tid):
			thread.Err = process.Exited(tid)
			return thread, ""
		default:
			time.Sleep(min(pause, w.left()))
			pause = min(2*pause, lastPause)
		}
	}
	failure.After = time.Since(w.started)
	thread.Err = failure
	return thread, ""
}

// left returns the time until the deadline. It is 0 or less after the deadline, or when the caller has canceled.
func (w *observer) left() time.Duration {
	if w.ctx.Err() != nil {
		return 0
	}
	return w.options.Deadline - time.Since(w.started)
}
