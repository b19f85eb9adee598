package snapshot

import (
	"pg_stat_backtrace/ptrace/process"
	"time"
)

// The values of Snapshot.Engine.
const (
	EngineStop    = "stop"            // Capture: the process was stopped
	EngineBlocked = "blocked"         // Observe: it slept before and after its stack was copied
	EngineRunning = "running"         // Observe: it was on the CPU, and the kernel took a sample
	EngineMixed   = "blocked+running" // Observe: some threads slept, others were sampled
)

// Snapshot is a process at one moment.
type Snapshot struct {
	PID    int
	Engine string // how it was made: EngineStop and so on
	// Pause is an upper bound of the time for which the process was stopped. It begins at the last check before a thread was
	// seen stopped, and ends with the last detach. The comment of package ptrace says when this is not an upper bound.
	Pause time.Duration
	// Held is the part of Pause that this package caused: from the detection of the stop to the last detach. Other
	// tools report only this part.
	Held time.Duration
	// Maps are in address order. They were read just before the stop, or before and after an observation, or come
	// from Options.MapsSnapshot. They must not be changed.
	Maps         []process.Mapping
	MapsSnapshot *MapsSnapshot // for Options.MapsSnapshot of a later capture
	Threads      []Thread      // the main thread first, the others by id
	Also         []Stack       // the readable part of Options.Also
	Found        []Stack       // the readable part of the memory that Options.ExtraReads led to
	// Moved is set if the main thread was sampled on the CPU, and the memory of Options.ExtraReads may have been
	// elsewhere at the time of the sample. Found is then empty.
	Moved  bool
	Blocks []Stack // Options.Blocks, in that order; unreadable blocks have no Data
	// ThreadsLeftOut is the number of threads beyond MaxThreads, the limit of one capture.
	ThreadsLeftOut int

	lent *stackCopy // memory that Release gives back to the pool; nil: none
}

// Thread is one thread of a Snapshot.
type Thread struct {
	TID       int
	Name      string
	State     byte   // as process.Stat.State, before the stop
	Registers []byte // NT_PRSTATUS general registers in the kernel's layout and byte order; nil: none
	Floating  []byte // NT_FPREGSET, only on s390x, where functions save general registers in it
	// Syscall replaces the registers of a thread whose stack was read while it slept (EngineBlocked); else nil.
	Syscall *process.Syscall
	// Switches is how often a thread with Syscall had left the CPU: the sum of both kinds of switches in process.Status. If
	// the thread later sleeps in the same system call with the same sum, it has not run since.
	Switches uint64
	// WaitChannel and KernelStack are the place in the kernel where a thread was in uninterruptible sleep (state D),
	// as far as the kernel shows it. See process.WaitChannel and process.KernelStack. They are set only by
	// EngineBlocked, and with ErrKernelWorker.
	WaitChannel string
	KernelStack []string
	Stack       Stack
	// Others are structures and stacks found by means of Options.Coroutines (EngineStop only).
	Others []Stack
	// Err is the reason why something is missing: ErrExited (the thread ended meanwhile), ErrDeadline (it did not
	// stop while the others were stopped), ErrTraced, ErrKernelWorker. With registers but no stack it is ErrNoStack.
	// It is nil for a complete thread.
	Err error
}

// Stack is a copy of memory. For a thread's stack, this is from the red zone below the stack pointer to the end of the mapping.
type Stack struct {
	Start uint64 // address of Data[0]
	Data  []byte
	Cut   bool // Data ends before the end of the stack (Options.MaxStack, or unreadable memory)
}

// At returns the copy from addr on, or nil if the copy does not have size bytes from there.
func (s *Stack) At(addr uint64, size int) []byte {
	off := addr - s.Start
	if addr < s.Start || off > uint64(len(s.Data)) || uint64(len(s.Data))-off < uint64(size) {
		return nil
	}
	return s.Data[off:]
}
