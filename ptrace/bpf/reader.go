package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that this kernel or architecture, or where this process is, does not have what it takes.
var ErrUnsupported = errors.New("processes cannot be sampled without a stop here")

// Bounds.
const (
	MaxTargets = 64        // threads of one reader
	MaxStack   = 256 << 10 // bytes of one stack

	requestStart = MaxTargets * slotLength
	areaStart    = requestStart + slotLength // whatever a request takes of that

	// What all readers and clocks of a host may take for stacks together; each has room for more than one whatever there
	// is.
	allAreas  = 32 << 20
	leastArea = MaxStack + MaxStack/4
	mostArea  = 2 << 20
)

// Outcome is what came of a look at a thread.
type Outcome uint32

// The outcomes.
const (
	Unwanted  Outcome = iota
	Elsewhere         // it belongs to another processor
	Read              // registers and stack
	NoStack           // registers; the stack pointer leads nowhere
	Moved             // it ran, or is returning from a signal
	Full              // there is no room for the stack: see Reader.Empty
	Gone              // there is no such thread
)

// Slot is what is asked for, and what was read, of one thread. All addresses and lengths are in bytes.
type Slot struct {
	PID     uint32 // of the thread, in the host's PID namespace
	Outcome Outcome
	End     uint64 // of its stack
	Most    uint32 // of the stack that is copied, MaxStack at most
	RedZone uint32 // below the stack pointer that belongs to the stack

	Started uint64 // when it was started, in ns since the system was
	At      uint64 // where its stack is in the reader's area
	Length  uint64
	Start   uint64 // address of the stack's first byte
	State   uint32 // __state of struct task_struct: 0 means that it could run
	Wanted  uint32 // not 0: the next Read reads it, and sets this to 0
	// Switches is how often it had left a processor.
	Switches uint64
	// Registers are as struct pt_regs has them, of which those that no stack is walked by are 0.
	Registers [21]uint64

	// Known is not 0 if it was off the processor when it was last read, Again how often a Clock has found it so since,
	// without it having run; and Before is what Again was when it was read anew. If a Clock has noted it, that counts in
	// the note.
	Known, Again, Before uint32
	// Other is, of a note of a Clock's, the number of its slot; of a slot whose thread was noted last, that of the note.
	Other uint32
}

// A Slot is as long as the programs expect: a power of two.
var _ [slotLength]byte = [unsafe.Sizeof(Slot{})]byte{}

// Values of Slot.Known.
const (
	knownRead  = 1
	knownNoted = 2
)

const (
	slotLength    = 256
	slotPID       = int16(unsafe.Offsetof(Slot{}.PID))
	slotOutcome   = int16(unsafe.Offsetof(Slot{}.Outcome))
	slotEnd       = int16(unsafe.Offsetof(Slot{}.End))
	slotMost      = int16(unsafe.Offsetof(Slot{}.Most))
	slotRedZone   = int16(unsafe.Offsetof(Slot{}.RedZone))
	slotStarted   = int16(unsafe.Offsetof(Slot{}.Started))
	slotAt        = int16(unsafe.Offsetof(Slot{}.At))
	slotLengthOf  = int16(unsafe.Offsetof(Slot{}.Length))
	slotStart     = int16(unsafe.Offsetof(Slot{}.Start))
	slotState     = int16(unsafe.Offsetof(Slot{}.State))
	slotWanted    = int16(unsafe.Offsetof(Slot{}.Wanted))
	slotKnown     = int16(unsafe.Offsetof(Slot{}.Known))
	slotAgain     = int16(unsafe.Offsetof(Slot{}.Again))
	slotBefore    = int16(unsafe.Offsetof(Slot{}.Before))
	slotOther     = int16(unsafe.Offsetof(Slot{}.Other))
	slotSwitches  = int16(unsafe.Offsetof(Slot{}.Switches))
	slotRegisters = int(unsafe.Offsetof(Slot{}.Registers))
)

// Reader reads up to MaxTargets threads. It is for one thread at a time.
type Reader struct {
	table, program int // descriptors
	area           uint64
	memory         []byte
	slots          *[MaxTargets]Slot
	request        *request
	attributes     runAttributes
}

// Kernel is what a program must know of the kernel that runs.
type Kernel struct {
	layout layout
	area   int // bytes for stacks of a Reader, and of a Clock
	direct uint64
	probed bool // whether direct was looked for
}

// Host reads the kernel's description of itself, for so many readers with a clock as there are processors: the more,
// the less room has each. The error is ErrUnsupported.
func Host(processors int) (*Kernel, error) {
	if savedRegisters == nil {
		return nil, fmt.Errorf("%w: architecture %s", ErrUnsupported, runtime.GOARCH)
	}
	const hosts = "pid:[4026531836]" // PROC_PID_INIT_INO, linux/proc_ns.h
	if space, err := os.Readlink("/proc/self/ns/pid"); err != nil || space != hosts {
		return nil, fmt.Errorf("%w: this process is not in the host's PID namespace", ErrUnsupported)
	}
	described, err := os.ReadFile("/sys/kernel/btf/vmlinux")
	if err != nil {
		return nil, fmt.Errorf("%w: the kernel does not describe its types: %w", ErrUnsupported, err)
	}
	l, err := layoutOf(described)
	if err != nil {
		return nil, err
	}
	return &Kernel{layout: l, area: min(max(allAreas/2/processors, leastArea), mostArea)}, nil
}

// Reader loads the program. The error is ErrUnsupported, or says which right is missing (fs.ErrPermission).
func (k *Kernel) Reader() (*Reader, error) {
	r := &Reader{table: -1, program: -1, area: uint64(k.area)}
	if err := r.load(&k.layout); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Check says why there can be no Reader and Clock here, if so.
func Check() error {
	k, err := Host(1)
	if err != nil {
		return err
	}
	r, err := k.Reader()
	if err != nil {
		return err
	}
	defer r.Close()
	c, err := k.Clock(r)
	if err != nil {
		return err
	}
	c.Close()
	return nil
}

// load makes the table and the program that works on it.
func (r *Reader) load(l *layout) error {
	var err error
	if r.table, r.memory, err = newTable(areaStart + int(r.area)); err != nil {
		return err
	}
	r.slots = (*[MaxTargets]Slot)(unsafe.Pointer(&r.memory[0]))
	r.request = (*request)(unsafe.Pointer(&r.memory[requestStart]))
	types, err := loadTypes()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(types) }()
	words, functions := readerProgram(l, r.table, r.area)
	if r.program, err = loadProgram(words, types, functions); err != nil {
		return err
	}
	r.attributes = runAttributes{program: uint32(r.program)}
	return nil
}

// Close gives everything back.
func (r *Reader) Close() {
	if r.memory != nil {
		_ = unix.Munmap(r.memory)
	}
	for _, fd := range []int{r.program, r.table} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	r.memory, r.slots, r.request, r.table, r.program = nil, nil, nil, -1, -1
}

// Slot is that of a thread: its first four members say what is read.
//
//go:nosplit
//go:norace
func (r *Reader) Slot(i int) *Slot { return &r.slots[i] }

// Read looks at the threads of the first slots that are wanted and belong to a processor, on which the caller should
// run. What it reads of their stacks is behind what was read before, until Empty.
//
//go:nosplit
//go:norace
func (r *Reader) Read(slots, processor int) unix.Errno {
	r.Aim(slots, processor)
	_, _, errno := unix.RawSyscall(unix.SYS_BPF, commandRun, uintptr(unsafe.Pointer(&r.attributes)),
		unsafe.Sizeof(r.attributes))
	return errno
}

// Aim says which slots and which processor are meant, to a Clock.
//
//go:nosplit
//go:norace
func (r *Reader) Aim(slots, processor int) {
	r.request.targets, r.request.processor = uint32(slots), int32(processor)
}

// Room reports whether there is room for a stack of any length.
//
//go:nosplit
//go:norace
func (r *Reader) Room() bool { return r.request.used < r.area-MaxStack }

// Stacks is all that was read of stacks since Empty, until the next Read: that of a slot is at its At.
func (r *Reader) Stacks() []byte { return r.memory[areaStart:][:r.request.used:r.request.used] }

// Stack is the stack that was read for a slot, until Empty and the next Read.
func (r *Reader) Stack(s *Slot) []byte { return r.Stacks()[s.At:][:s.Length:s.Length] }

// Empty forgets all stacks.
func (r *Reader) Empty() { r.request.used = 0 }
