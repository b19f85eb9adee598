package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that this kernel or architecture, or where this process is, does not have what it takes.
var ErrUnsupported = errors.New("threads off the processor cannot be read here")

// Bounds.
const (
	MaxTargets = 64        // threads of one reader
	MaxStack   = 256 << 10 // bytes of one stack

	requestStart = MaxTargets * slotLength
	areaStart    = requestStart + slotLength // whatever a request takes of that
	areaLength   = 2 << 20
)

// Outcome is what came of a look at a thread.
type Outcome uint32

// The outcomes.
const (
	Elsewhere Outcome = iota // it belongs to another processor
	Read                     // registers and stack
	NoStack                  // registers; the stack pointer leads nowhere
	Moved                    // it ran
	Full                     // there is no room for the stack: see Reader.Empty
	Gone                     // there is no such thread
)

// Slot is what is asked for, and what was read, of one thread. All addresses and lengths are in bytes.
type Slot struct {
	PID     uint32 // of the thread, in the host's PID namespace
	Outcome Outcome
	End     uint64 // of its stack
	Most    uint64 // of the stack that is copied, MaxStack at most
	RedZone uint64 // below the stack pointer that belongs to the stack

	Started uint64 // when it was started, in ns since the system was
	At      uint64 // where its stack is in the reader's area
	Length  uint64
	Start   uint64 // address of the stack's first byte
	State   uint32 // __state of struct task_struct: 0 means that it could run
	_       uint32
	// Switches is how often it had left a processor.
	Switches uint64
	// Registers are as struct pt_regs has them, of which those that no stack is walked by are 0.
	Registers [21]uint64
	_         [8]byte
}

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
	slotSwitches  = int16(unsafe.Offsetof(Slot{}.Switches))
	slotRegisters = int(unsafe.Offsetof(Slot{}.Registers))
)

// Reader reads up to MaxTargets threads. It is for one thread at a time.
type Reader struct {
	table, program int // descriptors
	memory         []byte
	slots          *[MaxTargets]Slot
	request        *request
	attributes     runAttributes
}

// runAttributes is what BPF_PROG_TEST_RUN takes of union bpf_attr.
type runAttributes struct {
	program, _ uint32
	_          [9]uint64
}

// Kernel is what a program must know of the kernel that runs.
type Kernel struct{ layout layout }

// Host reads the kernel's description of itself. The error is ErrUnsupported.
func Host() (*Kernel, error) {
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
	return &Kernel{l}, nil
}

// Reader loads the program. The error is ErrUnsupported, or says which right is missing (fs.ErrPermission).
func (k *Kernel) Reader() (*Reader, error) {
	r := &Reader{table: -1, program: -1}
	if err := r.load(&k.layout); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// New is Reader for the Host.
func New() (*Reader, error) {
	k, err := Host()
	if err != nil {
		return nil, err
	}
	return k.Reader()
}

// Attributes of bpf(2), and its numbers (linux/bpf.h).
const (
	commandMap  = 0
	commandLoad = 5
	commandRun  = 10

	mapArray      = 2
	mapMappable   = 1 << 10
	typeSyscall   = 31
	flagSleepable = 1 << 4
)

type mapAttributes struct {
	kind, key, value, entries, flags uint32
	_                                [2]uint32
	name                             [16]byte
}

type loadAttributes struct {
	kind, count           uint32
	instructions, license uint64
	logLevel, logSize     uint32
	log                   uint64
	_, flags              uint32
	name                  [16]byte
	_                     [4]uint32
}

func bpf(command uintptr, attributes unsafe.Pointer, size uintptr) (int, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attributes), size)
	return int(fd), errno
}

// load makes the table and the program that works on it.
func (r *Reader) load(l *layout) error {
	name := [16]byte{}
	copy(name[:], "pgsb_reader")
	size := areaStart + areaLength
	table := mapAttributes{kind: mapArray, key: 4, value: uint32(size), entries: 1, flags: mapMappable, name: name}
	var errno unix.Errno
	if r.table, errno = bpf(commandMap, unsafe.Pointer(&table), unsafe.Sizeof(table)); errno != 0 {
		return loadError("make a table", errno)
	}
	var err error
	if r.memory, err = unix.Mmap(r.table, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map a table of the kernel's: %w", err)
	}
	r.slots = (*[MaxTargets]Slot)(unsafe.Pointer(&r.memory[0]))
	r.request = (*request)(unsafe.Pointer(&r.memory[requestStart]))
	words, license := program(l, r.table), []byte("Dual MIT/GPL\x00")
	load := loadAttributes{
		kind: typeSyscall, count: uint32(len(words)), instructions: uint64(uintptr(unsafe.Pointer(&words[0]))),
		license: uint64(uintptr(unsafe.Pointer(&license[0]))), flags: flagSleepable, name: name,
	}
	// A signal, such as the runtime's, ends the verification.
	for r.program, errno = bpf(commandLoad, unsafe.Pointer(&load), unsafe.Sizeof(load)); errno == unix.EAGAIN; {
		r.program, errno = bpf(commandLoad, unsafe.Pointer(&load), unsafe.Sizeof(load))
	}
	if errno != 0 {
		log := make([]byte, 1<<20)
		load.logLevel, load.logSize, load.log = 1, uint32(len(log)), uint64(uintptr(unsafe.Pointer(&log[0])))
		_, _ = bpf(commandLoad, unsafe.Pointer(&load), unsafe.Sizeof(load))
		log, _, _ = bytes.Cut(log, []byte{0})
		return fmt.Errorf("%w%s", loadError("load a program", errno), reasonIn(log))
	}
	runtime.KeepAlive(words)
	runtime.KeepAlive(license)
	r.attributes = runAttributes{program: uint32(r.program)}
	return nil
}

// loadError words a refusal.
func loadError(what string, errno unix.Errno) error {
	switch errno {
	case unix.EPERM:
		return fmt.Errorf("the kernel refuses to %s: CAP_BPF and CAP_PERFMON are missing, or a security module "+
			"forbids it: %w", what, errno)
	case unix.ENOSYS, unix.EINVAL, unix.EACCES:
		return fmt.Errorf("%w: the kernel refuses to %s, as one before Linux 6.10 does: %w", ErrUnsupported, what, errno)
	}
	return fmt.Errorf("%s in the kernel: %w", what, errno)
}

// reasonIn is what the kernel's verifier said last before its statistics.
func reasonIn(log []byte) string {
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	if len(lines) < 2 {
		return ""
	}
	return fmt.Sprintf(" (%s)", lines[len(lines)-2])
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

// Read looks at the threads of the first slots that belong to a processor, on which the caller should run. What it
// reads of their stacks is behind what was read before, until Empty.
//
//go:nosplit
//go:norace
func (r *Reader) Read(slots, processor int) unix.Errno {
	r.request.targets, r.request.processor = uint32(slots), int32(processor)
	_, _, errno := unix.RawSyscall(unix.SYS_BPF, commandRun, uintptr(unsafe.Pointer(&r.attributes)),
		unsafe.Sizeof(r.attributes))
	return errno
}

// Room reports whether there is room for a stack of any length.
//
//go:nosplit
//go:norace
func (r *Reader) Room() bool { return r.request.used < areaLength-MaxStack }

// Now is when the last Read had ended, on the monotonic clock in nanoseconds.
//
//go:nosplit
//go:norace
func (r *Reader) Now() int64 { return int64(r.request.now) }

// Stacks is all that was read of stacks since Empty, until the next Read: that of a slot is at its At.
func (r *Reader) Stacks() []byte { return r.memory[areaStart:][:r.request.used:r.request.used] }

// Stack is the stack that was read for a slot, until Empty and the next Read.
func (r *Reader) Stack(s *Slot) []byte { return r.Stacks()[s.At:][:s.Length:s.Length] }

// Empty forgets all stacks.
func (r *Reader) Empty() { r.request.used = 0 }
