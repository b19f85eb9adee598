package ptrace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// Observe makes a snapshot of the process t without stopping it. It reads a sleeping thread with engine "blocked",
// whatever its state or tracer. The kernel samples a thread that is on the CPU, engine "running". Observe decides
// between the engines at every attempt, until one of them gives a consistent result.
//
// With Options.AllThreads it reads one thread after another. Each thread is consistent, but the threads are not from
// the same moment. Options.ExtraReads works for a sleeping main thread only, because a sample contains only the
// stack. With Options.MapsSnapshot, Observe does not read the mappings. Reading them takes longer than all other
// steps. It may also wait for the process while the process changes its mappings.
//
// Errors are the errors of Capture except ErrTraced, ErrDumping and ErrDeadline, and ErrNotObserved.
func Observe(ctx context.Context, t Target, o Options) (*Snapshot, error) {
	if err := checkPID(t.PID); err != nil {
		return nil, err
	}
	work.begin() // a sample's event interrupts the thread until it is closed
	defer work.end()
	w := &observer{ctx: ctx, target: t, options: o.withDefaults(), started: time.Now()}
	return w.bounded()
}

// tryAll observes, and repeats this if the process executes another program meanwhile.
func (w *observer) tryAll() (*Snapshot, error) {
	const tries = 3
	for range tries {
		snapshot, err := w.observe()
		if !errors.Is(err, errAgain) {
			return snapshot, err
		}
	}
	return nil, &RecycledError{PID: w.target.PID, Property: "program"}
}

// ObserveError describes why a thread could not be read consistently. It is an ErrNotObserved.
type ObserveError struct {
	PID      int
	After    time.Duration
	Attempts int
	Blocked  error // why not asleep
	Running  error // why not on the CPU; nil: not tried
}

func (e *ObserveError) Error() string {
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
func (e *ObserveError) Unwrap() []error {
	return slices.DeleteFunc([]error{ErrNotObserved, e.Blocked, e.Running}, func(err error) bool { return err == nil })
}

// The outcomes of an attempt, besides the errors that end an observation.
var (
	errAwake    = errors.New("it was awake")
	errMoved    = errors.New("it moved while its stack was copied")
	errNoSample = errors.New("it did not run for long enough")
)

// observer is one observation.
type observer struct {
	ctx     context.Context //nolint:containedctx // it lives as long as the call
	target  Target
	options Options
	started time.Time
	before  procfs.Stat
	layout  *MapsSnapshot // from the caller, if usable; nil: maps are read
	maps    []procfs.Mapping
	also    []Stack
	found   []Stack
}

// observe makes one attempt. errAgain means that the process executed another program meanwhile.
func (w *observer) observe() (*Snapshot, error) {
	pid := w.target.PID
	var err error
	held := w.target.Held
	if held == nil {
		if held, err = Hold(pid); errors.Is(err, ErrExited) {
			return nil, err
		}
		defer held.Release() // nil on an old kernel, or behind a fence: its start time has to do
	}
	if w.before, err = readTarget(pid); err == nil {
		err = mainThreadRuns(&w.before, &w.options)
	}
	if err != nil {
		return nil, err
	}
	if err := w.identify(w.before); err != nil {
		return nil, err
	}
	w.layout = nil
	if l := w.options.MapsSnapshot; l.of(&w.before) && !w.options.AllThreads {
		w.layout, w.maps = l, l.maps
	} else if w.maps, err = w.readMaps(); err != nil {
		return nil, err
	}
	if narrow(w.maps) {
		return nil, fmt.Errorf("process %d: %w: a 32-bit program", pid, ErrNotObserved)
	}
	ProbeReadable(pid)
	snapshot, err := w.threads()
	if err != nil {
		return nil, err
	}
	if err := w.lay(snapshot); err != nil {
		return nil, err
	}
	after, err := readTarget(pid)
	if err != nil {
		return nil, err
	}
	if held != nil && !held.Lives() {
		return nil, exitedError(pid)
	}
	if err := w.identify(after); err != nil {
		return nil, err
	}
	if after.StartCode != w.before.StartCode || after.StackStart != w.before.StackStart {
		return nil, errAgain
	}
	return snapshot, nil
}

// lay adds the mappings to a snapshot.
func (w *observer) lay(snapshot *Snapshot) error {
	if w.layout != nil {
		snapshot.Maps, snapshot.MapsSnapshot = w.maps, w.layout
		return nil
	}
	later, err := w.readMaps()
	if err != nil {
		return err
	}
	snapshot.Maps = mapsBetween(w.maps, later)
	snapshot.MapsSnapshot = &MapsSnapshot{maps: snapshot.Maps, spans: appendSpans(nil, snapshot.Maps), stat: w.before}
	return nil
}

// readMaps reads the mappings. An exiting thread shows none. Then other threads of the process show them, if
// requested.
func (w *observer) readMaps() ([]procfs.Mapping, error) {
	pid := w.target.PID
	tids := []int{pid}
	if w.options.AllThreads {
		if all, err := procfs.Threads(pid); err == nil {
			tids = append(tids, all...)
		}
	}
	for _, tid := range tids {
		maps, err := procfs.TaskMaps(pid, tid)
		switch {
		case err == nil && len(maps) > 0:
			return maps, nil
		case err != nil && !errors.Is(err, procfs.ErrGone):
			return nil, w.procError(tid, err)
		}
	}
	return nil, exitedError(pid)
}

// identify compares the process with the expected process, and with the state at the beginning.
func (w *observer) identify(now procfs.Stat) error {
	t := w.target
	mismatch := func(property string, want, got uint64) error {
		return &RecycledError{PID: t.PID, Property: property, Want: want, Got: got}
	}
	switch {
	case now.StartTime != w.before.StartTime:
		return mismatch("start time", w.before.StartTime, now.StartTime)
	case t.StartTime != 0 && now.StartTime != t.StartTime:
		return mismatch("start time", t.StartTime, now.StartTime)
	case t.PPID != 0 && now.PPID != t.PPID:
		return mismatch("parent", uint64(t.PPID), uint64(now.PPID))
	case t.UID < 0:
		return nil
	}
	status, err := procfs.ReadStatus(t.PID)
	if err != nil {
		return exitedError(t.PID)
	}
	for _, uid := range status.UID[:3] {
		if uid != t.UID {
			return mismatch("user", uint64(t.UID), uint64(uid))
		}
	}
	return nil
}

// threads observes the main thread, or all.
func (w *observer) threads() (*Snapshot, error) {
	pid := w.target.PID
	tids := []int{pid}
	snapshot := &Snapshot{PID: pid}
	if w.options.AllThreads {
		all, err := procfs.Threads(pid)
		if err != nil {
			return nil, w.procError(pid, err)
		}
		all = slices.DeleteFunc(all, func(tid int) bool { return tid == pid })
		if len(all) >= maxThreads {
			snapshot.ThreadsLeftOut = len(all) - (maxThreads - 1)
			all = all[:maxThreads-1]
		}
		tids = append(tids, all...)
	}
	seen := false
	for _, tid := range tids {
		thread, engine := w.thread(tid)
		if err := w.ctx.Err(); err != nil {
			return nil, fmt.Errorf("process %d: observation canceled: %w", pid, context.Cause(w.ctx))
		}
		if thread.Err == nil || errors.Is(thread.Err, ErrNoStack) {
			seen = true
			switch snapshot.Engine {
			case "", engine:
				snapshot.Engine = engine
			default:
				snapshot.Engine = EngineMixed
			}
		}
		snapshot.Threads = append(snapshot.Threads, thread)
	}
	if !seen {
		return nil, snapshot.Threads[0].Err
	}
	snapshot.Also, snapshot.Found = w.also, w.found
	return snapshot, nil
}

const (
	maxAttempts = 2000
	firstPause  = 20 * time.Microsecond // between two attempts to find a thread asleep; doubles
	lastPause   = 5 * time.Millisecond
	// How long to wait for a sample before checking again whether the thread sleeps. A running thread gives a sample
	// within a tenth of a millisecond. A thread that was about to sleep never does. The wait doubles each time.
	firstSlice = 2 * time.Millisecond
	lastSlice  = 50 * time.Millisecond
)

// thread observes one thread in repeated attempts. The result's Err contains the outcome.
func (w *observer) thread(tid int) (thread Thread, engine string) {
	thread.TID = tid // also without an attempt
	if stat, err := procfs.ReadTaskStat(w.target.PID, tid); err == nil && tid != w.target.PID && stat.Worker() {
		thread = Thread{TID: tid, Name: stat.Comm, State: stat.State, Err: ErrKernelWorker}
		thread.seeKernel(w.target.PID)
		return thread, ""
	}
	failure := &ObserveError{PID: tid}
	canSample := true
	pause, slice := firstPause, firstSlice
	for failure.Attempts < maxAttempts && w.left() > 0 {
		failure.Attempts++
		thread, failure.Blocked = w.blocked(tid)
		switch {
		case failure.Blocked == nil:
			return thread, EngineBlocked
		case errors.Is(failure.Blocked, ErrExited), errors.Is(failure.Blocked, ErrNotPermitted):
			thread.Err = failure.Blocked
			return thread, ""
		case errors.Is(failure.Blocked, errAwake) && canSample:
			var err error
			thread, err = w.running(tid, min(slice, w.left()))
			if err == nil {
				return thread, EngineRunning
			}
			if errors.Is(err, ErrExited) {
				return Thread{TID: tid, Err: err}, ""
			}
			failure.Running = err
			canSample = errors.Is(err, errNoSample)
			slice = min(2*slice, lastSlice)
		case isEnding(w.target.PID, tid):
			thread.Err = exitedError(tid)
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

// left is the time until the deadline; not positive when the caller has canceled.
func (w *observer) left() time.Duration {
	if w.ctx.Err() != nil {
		return 0
	}
	return w.options.Deadline - time.Since(w.started)
}

// procError turns an error of reading a thread's files into this package's.
func (w *observer) procError(tid int, err error) error {
	switch {
	case errors.Is(err, procfs.ErrGone):
		return exitedError(tid)
	case errors.Is(err, procfs.ErrDenied):
		return w.denied(tid)
	}
	return err
}

// denied returns the reason why the kernel does not show a thread. Unlike in explain, a tracer is not a reason.
func (w *observer) denied(tid int) error {
	status, err1 := procfs.ReadTaskStatus(w.target.PID, tid)
	self, err2 := procfs.ReadTaskStatus(unix.Getpid(), unix.Gettid())
	switch {
	case errors.Is(err1, procfs.ErrGone):
		return exitedError(tid)
	case err1 != nil || err2 != nil:
		return &PermissionError{tid, ReasonUnknown, "its status cannot be read"}
	case isDead(status.State), isEnding(w.target.PID, tid):
		return exitedError(tid)
	}
	reason, detail := explainAccess(&self, &status)
	return &PermissionError{tid, reason, detail}
}

// mapsBetween returns the mappings that certainly existed at a moment between two readings. These are all mappings of
// the second reading, because code loaded meanwhile may have been running. Code that replaced other code is left out.
func mapsBetween(before, after []procfs.Mapping) []procfs.Mapping {
	i := 0
	return slices.DeleteFunc(after, func(m procfs.Mapping) bool {
		for i < len(before) && before[i].End <= m.Start {
			i++
		}
		for j := i; m.Perms&procfs.Exec != 0 && j < len(before) && before[j].Start < m.End; j++ {
			if before[j].Perms&procfs.Exec != 0 && before[j] != m {
				return true
			}
		}
		return false
	})
}

// narrow reports whether all of the process lies in the first 4 GiB. This holds for 32-bit programs, which have other
// registers. The kernel's own page at the end of the address space does not count.
func narrow(maps []procfs.Mapping) bool {
	for i := range maps {
		if maps[i].End > 1<<32 && maps[i].Path != "[vsyscall]" {
			return false
		}
	}
	return true
}
