package snapshot

import "time"

// Options of a capture; the zero value is the default.
type Options struct {
	MaxStack int           // largest number of bytes of a stack; 0: 1 MiB; limited to 64 MiB
	RedZone  int           // bytes below the stack pointer that belong to the stack; 0: 128; negative: none
	Deadline time.Duration // time from the call to the stop of the target, or to its observation; 0: 3 s
	// Patience replaces Deadline, if shorter, for a target that is in uninterruptible sleep when Capture attaches to it.
	// Such a target does not stop before the sleep has ended. 0 means Deadline. For Capture only.
	Patience time.Duration
	// AllThreads captures every thread of the process, all of them stopped at the same time, instead of the main
	// thread alone.
	AllThreads bool
	// Also are up to four addresses in further stacks of the main thread. If a signal handler runs on an alternate stack,
	// the interrupted code is on another stack. Capture treats each address as a stack pointer, and copies the stack in the
	// same stop.
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
	MaxThreads      = 4096 // of one snapshot
	MaxAlso         = 4
	defaultMaxStack = 1 << 20
	largestMaxStack = 64 << 20
	defaultRedZone  = 128
	largestRedZone  = 64 << 10
	DefaultDeadline = 3 * time.Second
)

// WithDefaults returns the options with each zero value replaced by its default, and within the limits.
func (o Options) WithDefaults() Options {
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
		o.Deadline = DefaultDeadline
	}
	return o
}

// Block is memory to copy in the same stop as the stacks: Length bytes from Address on.
type Block struct {
	Address uint64
	Length  int
}
