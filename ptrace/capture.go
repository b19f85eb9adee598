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

// Target is the process to capture. All fields except PID guard against a reuse of the id by another process. Capture
// checks them while the process cannot end.
type Target struct {
	PID       int
	StartTime uint64     // as procfs.Stat.StartTime; 0: any
	PPID      int        // 0: any
	UID       int        // real, effective and saved user; -1: any. Mind that the zero value is root.
	Held      *PidHandle // only this process; nil: any. The caller must not release it before the call returns.
}

// Options of a capture; the zero value is the default.
type Options struct {
	MaxStack int           // bytes of stack per thread at most; 0: 1 MiB; more than 64 MiB are not given
	RedZone  int           // bytes below the stack pointer that belong to the stack; 0: 128; negative: none
	Deadline time.Duration // from the call to the stop of the target, or to its observation; 0: 3 s
	// Patience replaces Deadline, if shorter, for a target in uninterruptible sleep at the time of the attach. Such a
	// target does not stop before the sleep has ended. 0 means Deadline. For Capture only.
	Patience time.Duration
	// AllThreads captures every thread of the process, all of them stopped at the same time, instead of the main
	// thread alone.
	AllThreads bool
	// Also are up to four addresses at which further stacks begin. If a signal handler runs on an alternate stack,
	// the interrupted code is on another stack. Capture copies memory from each of them, as from a stack pointer, in
	// the same stop.
	Also []uint64
	// MapsSnapshot comes from an earlier snapshot of the process. Capture uses it instead of reading the mappings
	// again, which is most of the cost of a capture. The caller must know that the mappings it needs are still valid.
	// Capture ignores it if the process now runs another program, and with AllThreads, because threads' stacks come
	// and go.
	MapsSnapshot *MapsSnapshot
	// Coroutines describes how to find other stacks of the threads, to copy them in the same stop; nil disables this.
	Coroutines *Coroutines
	// ExtraReads is further memory to copy in the same stop, or while the main thread sleeps; nil means no such
	// memory.
	ExtraReads *ExtraReads
	// Blocks are further memory to copy in the same stop: at most 32 MiB and 262,144 blocks. The caller must not
	// change them before Capture returns.
	Blocks []Block
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
	// Pause is the longest possible time for which the process was stopped. It begins at the last moment before a
	// thread was seen stopped, and ends with the last detach. See the package's description for its limits.
	Pause time.Duration
	// Held is the part of Pause that this package caused: from the detection of the stop to the last detach. Other
	// tools report only this part.
	Held time.Duration
	// Maps are in address order. They were read just before the stop, or before and after an observation, or come
	// from Options.MapsSnapshot. They must not be changed.
	Maps         []procfs.Mapping
	MapsSnapshot *MapsSnapshot // for Options.MapsSnapshot of a later capture
	Threads      []Thread      // the main thread first, the others by id
	Also         []Stack       // the readable part of Options.Also
	Found        []Stack       // the readable part of the memory that Options.ExtraReads led to
	Blocks       []Stack       // Options.Blocks, in that order; unreadable blocks have no Data
	// ThreadsLeftOut counts threads beyond the 4096 that one capture takes.
	ThreadsLeftOut int

	lent *stackCopy // buffer for Release to return; nil: none
}

// Thread is one thread of a Snapshot.
type Thread struct {
	TID       int
	Name      string
	State     byte   // as procfs.Stat.State, before the stop
	Registers []byte // NT_PRSTATUS general registers in the kernel's layout and byte order; nil: none
	Floating  []byte // NT_FPREGSET, on s390x only, where general registers are kept in them
	// Syscall replaces the registers of a thread that was read asleep (EngineBlocked); else nil.
	Syscall *procfs.Syscall
	// Switches is how often such a thread had left the CPU. If the thread is later asleep in the same call with the
	// same number (of both kinds in procfs.Status), it has not run since.
	Switches uint64
	// WaitChannel and KernelStack are the place in the kernel where a thread was in uninterruptible sleep (state D),
	// as far as the kernel shows it. See procfs.WaitChannel and procfs.KernelStack. They are set only by
	// EngineBlocked, and with ErrKernelWorker.
	WaitChannel string
	KernelStack []string
	Stack       Stack
	// Others are structures and stacks found through Options.Coroutines (Engine only).
	Others []Stack
	// Err is the reason why something is missing: ErrExited (the thread ended meanwhile), ErrDeadline (it did not
	// stop while the others were stopped), ErrTraced, ErrKernelWorker. With registers but no stack it is ErrNoStack.
	// It is nil for a complete thread.
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

// Capture stops the process t, copies the registers and the stack of its main thread (or of all threads), and resumes
// it. When Capture returns, the target is detached. Only if the kernel itself does not answer (see
// DeadlineError.During), the detach happens later. Capture is safe for concurrent use. Captures of the same process
// wait for each other.
//
// Errors: ErrInvalidPID, ErrSelf, ErrExited, ErrNotPermitted, ErrTraced, ErrDumping, ErrRecycled, ErrDeadline and,
// wrapped, the error of ctx.
func Capture(ctx context.Context, t Target, o Options) (*Snapshot, error) {
	return captureWith(ctx, t, o, nil)
}

// captureWith is Capture with a function for tests, which is called outside of the pause; nil: none.
func captureWith(ctx context.Context, t Target, o Options, hook func(step)) (*Snapshot, error) {
	o = o.withDefaults()
	if err := checkPID(t.PID); err != nil {
		return nil, err
	}
	work.begin()
	defer work.end()
	started := time.Now()
	const attempts = 3
	for range attempts {
		f := &captureCall{
			ctx: ctx, target: t, options: o, hook: hook, started: started, limit: o.Deadline, done: make(chan struct{}),
		}
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
