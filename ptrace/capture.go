package ptrace

import (
	"context"
	"errors"
	"time"

	"pg_stat_backtrace/ptrace/procfs"
)

// The values of Snapshot.Engine.
const (
	Engine        = "stop"    // Capture: the process was stopped
	EngineBlocked = "blocked" // Observe: it slept, before and after its stack was copied
	EngineRunning = "running" // Observe: it was on the CPU, and the kernel took a sample
	EngineMixed   = "blocked+running"
)

// Target is the process that may be captured. Everything but the number guards against another process having taken
// the number over; it is checked while the process cannot vanish.
type Target struct {
	PID       int
	StartTime uint64     // as procfs.Stat.StartTime; 0: any
	PPID      int        // 0: any
	UID       int        // real, effective and saved user; -1: any. Mind that the zero value is root.
	Held      *PidHandle // this process and no other; nil: any. It must be held until the call has returned.
}

// Options of a capture; the zero value is the default.
type Options struct {
	MaxStack int           // bytes of stack per thread at most; 0: 1 MiB; more than 64 MiB are not given
	RedZone  int           // bytes below the stack pointer that belong to the stack; 0: 128; negative: none
	Deadline time.Duration // from the call to the stop of the target, or to its observation; 0: 3 s
	// Patience is taken instead of Deadline, if shorter, for a target that is in uninterruptible sleep when it is
	// attached to: it does not stop before that has ended. 0: Deadline. Capture only.
	Patience time.Duration
	// AllThreads captures every thread of the process, all of them stopped at the same time, instead of the main
	// thread alone.
	AllThreads bool
	// Also are up to four addresses at which further stacks begin: where a signal handler runs on an alternate stack,
	// what it interrupted is on another one. From each, as from a stack pointer, memory is copied in the same stop.
	Also []uint64
	// MapsSnapshot is that of an earlier snapshot of the process, if the caller knows that what it uses of it still holds:
	// it is taken instead of reading the mappings once more, which is most of the cost of a capture. It is left aside when
	// the process runs another program now, and with AllThreads, because stacks of threads come and go.
	MapsSnapshot *MapsSnapshot
	// Coroutines says how other stacks of the threads are found, to be copied in the same stop; nil: not at all.
	Coroutines *Coroutines
	// ExtraReads is further memory to copy in the same stop, or while the main thread sleeps; nil: none.
	ExtraReads *ExtraReads
	// Blocks are further memory to copy in the same stop: 32 MiB and 262,144 blocks at most. It must not be changed
	// before Capture returns.
	Blocks []Block

	hook func(step) // for tests: called outside of the pause
}

// Limits and defaults of Options.
const (
	defaultMaxStack = 1 << 20
	largestMaxStack = 64 << 20
	defaultRedZone  = 128
	largestRedZone  = 64 << 10
	defaultDeadline = 3 * time.Second
)

// Snapshot is a process at one moment.
type Snapshot struct {
	PID    int
	Engine string // how it was made
	// Pause is how long the process stood still at most, from the last moment before a thread was seen stopped to the
	// detach of the last one; see the package's description for what that leaves out.
	Pause time.Duration
	// Held is the part of Pause that was ours: from the moment the stop was known to the detach of the last thread.
	// Other tools call that their pause.
	Held time.Duration
	// Maps are in address order: read just before the stop, or before and after an observation, or those of
	// Options.Layout. They must not be changed.
	Maps         []procfs.Mapping
	MapsSnapshot *MapsSnapshot // for Options.Layout of a later capture
	Threads      []Thread      // the main thread first, the others by id
	Also         []Stack       // what Options.Also asked for, as far as it was readable
	Found        []Stack       // what Options.ExtraReads led to, as far as it was readable
	Blocks       []Stack       // Options.Blocks, in that order; those that were not readable have no Data
	// ThreadsLeftOut counts threads beyond the 4096 that one capture takes.
	ThreadsLeftOut int

	lent *stackCopy // what Release gives back; nil: nothing
}

// Thread is one thread of a Snapshot.
type Thread struct {
	TID       int
	Name      string
	State     byte   // as procfs.Stat.State, before the stop
	Registers []byte // NT_PRSTATUS general registers in the kernel's layout and byte order; nil: none
	Floating  []byte // NT_FPREGSET, on s390x only, where general registers are kept in them
	// Syscall is all that is known of the registers of a thread that was seen asleep (EngineBlocked); else nil.
	Syscall *procfs.Syscall
	// Switches is how often such a thread had left the CPU: a thread that is seen asleep again, in the same call and with
	// the same number (of both kinds in procfs.Status), has not run since.
	Switches uint64
	// WaitChannel and KernelStack say where in the kernel a thread in uninterruptible sleep (state D) was seen, as far as
	// the kernel tells; see procfs.WaitChannel and procfs.KernelStack. EngineBlocked only, and ErrKernelWorker.
	WaitChannel string
	KernelStack []string
	Stack       Stack
	// Others are structures and stacks that Options.Coroutines led to (Engine only).
	Others []Stack
	// Err says what is missing and why: ErrExited (it ended meanwhile), ErrDeadline (it did not stop while the others
	// stood still), ErrTraced, ErrKernelWorker; with registers but no stack, ErrNoStack. Nil for a complete thread.
	Err error
}

// Stack is a copy of memory: from the red zone below the stack pointer to the end of its mapping.
type Stack struct {
	Start uint64 // address of Data[0]
	Data  []byte
	Cut   bool // Data ends before the mapping does, or a coroutine's stack (Options.MaxStack, or unreadable memory)
}

// At returns the copy from addr on, or nil unless it has size bytes there.
func (s *Stack) At(addr uint64, size int) []byte {
	off := addr - s.Start
	if addr < s.Start || off > uint64(len(s.Data)) || uint64(len(s.Data))-off < uint64(size) {
		return nil
	}
	return s.Data[off:]
}

// Capture stops the process t, copies the registers and the stack of its main thread (or of all threads), and lets it
// go. When Capture returns the target has been detached; only if the kernel itself does not answer (see
// DeadlineError.During) does the cleaning up go on behind it. Safe for concurrent use; captures of the same process
// wait for each other.
//
// Errors: ErrInvalidPID, ErrSelf, ErrExited, ErrNotPermitted, ErrTraced, ErrDumping, ErrRecycled, ErrDeadline and,
// wrapped, the error of ctx.
func Capture(ctx context.Context, t Target, o Options) (*Snapshot, error) {
	o = o.withDefaults()
	if err := checkPID(t.PID); err != nil {
		return nil, err
	}
	work.begin()
	defer work.end()
	started := time.Now()
	const attempts = 3
	for range attempts {
		f := &captureCall{ctx: ctx, target: t, options: o, started: started, limit: o.Deadline, done: make(chan struct{})}
		if err := f.enter(); err != nil {
			return nil, err
		}
		f.start()
		snapshot, err := f.wait()
		if !errors.Is(err, errAgain) {
			return snapshot, err
		}
		o.MapsSnapshot = nil
	}
	return nil, &RecycledError{PID: t.PID, Property: "program"}
}

func (o Options) withDefaults() Options {
	if o.MaxStack <= 0 {
		o.MaxStack = defaultMaxStack
	}
	o.MaxStack = min(o.MaxStack, largestMaxStack)
	switch {
	case o.RedZone == 0:
		o.RedZone = defaultRedZone
	case o.RedZone < 0:
		o.RedZone = 0
	}
	o.RedZone = min(o.RedZone, largestRedZone)
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	return o
}
