package golang

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrRuntimeVersion means that the layout of the run time's structures is unknown for this version of Go.
	ErrRuntimeVersion = errors.New("goroutine: unknown version of Go")
	// ErrNotFound means that the run time's list of goroutines was not found.
	ErrNotFound = errors.New("goroutine: no list of goroutines")
	// ErrDamaged means that memory does not contain a valid goroutine.
	ErrDamaged = errors.New("goroutine: not a goroutine")
)

// maxGoroutines bounds the number of goroutines.
const maxGoroutines = 1 << 20

// Read fills p with memory at an address; false if not all of it can be read.
type Read func(addr uint64, p []byte) bool

// Runtime is Go's run time in one program. It is immutable.
type Runtime struct {
	order   binary.ByteOrder
	layout  Layout
	list    uint64
	reasons []string
}

// List returns the address of the variable runtime.allgs.
func (r *Runtime) List() uint64 { return r.list }

// ListSize is the number of bytes of the variable runtime.allgs: a slice's pointer, length and capacity.
const ListSize = 24

// ThreadSize is how many bytes of a thread's structure (runtime.m) the method Thread needs.
const ThreadSize = 256

// Size returns how many bytes of a goroutine's structure (runtime.g) Decode needs.
func (r *Runtime) Size() int { return r.layout.size() }

// All returns the addresses of all goroutines' structures. The run time never moves or frees these structures. The
// error is ErrNotFound.
func (r *Runtime) All(read Read) ([]uint64, error) {
	var head [ListSize]byte
	if !read(r.list, head[:]) {
		return nil, fmt.Errorf("%w: the list at 0x%x cannot be read", ErrNotFound, r.list)
	}
	return elements(r.order, head[:], read)
}

// elements returns the elements of a slice of pointers in the program's memory. head has the slice's pointer, length
// and capacity.
func elements(order binary.ByteOrder, head []byte, read Read) ([]uint64, error) {
	addr, n, room := order.Uint64(head), order.Uint64(head[8:]), order.Uint64(head[16:])
	if addr == 0 || addr%8 != 0 || n == 0 || n > room || n > maxGoroutines {
		return nil, fmt.Errorf("%w: 0x%x with %d of %d", ErrNotFound, addr, n, room)
	}
	p := make([]byte, 8*n)
	if !read(addr, p) {
		return nil, fmt.Errorf("%w: %d elements at 0x%x cannot be read", ErrNotFound, n, addr)
	}
	all := make([]uint64, n)
	for i := range all {
		all[i] = order.Uint64(p[8*i:])
	}
	return all, nil
}

// Goroutine is one goroutine.
type Goroutine struct {
	// Addr is the address of the goroutine's structure. ID is its number.
	Addr, ID uint64
	// StackLow and StackHigh are the limits of the goroutine's stack.
	StackLow, StackHigh uint64
	// Thread is the address of the structure of the thread on which the goroutine runs, or 0.
	Thread uint64
	Status Status
	// Reason is why the goroutine waits, in Go's words. It is empty if the goroutine does not wait, or if the reason is
	// unknown.
	Reason string
	// Locked is set if the goroutine is bound to one thread.
	Locked bool
	// PC, SP, BP and LR are the registers with which the goroutine resumes. They are out of date while the goroutine
	// runs. BP is the frame pointer and LR the link register; 0 means unknown.
	PC, SP, BP, LR uint64
	// Parent is the number of the goroutine that created this goroutine, 0 if unknown. MadeAt is an address in the
	// function that created it, 0 if unknown.
	Parent, MadeAt uint64
}

// Status is the status of a goroutine: _Gidle and so on in runtime/runtime2.go.
type Status uint32

// The statuses.
const (
	Idle        Status = 0
	Runnable    Status = 1
	Running     Status = 2
	InSyscall   Status = 3
	Waiting     Status = 4
	Dead        Status = 6
	CopiesStack Status = 8
	Preempted   Status = 9
	Leaked      Status = 10
	DeadExtra   Status = 11
)

// scanned is added to a status while the garbage collector reads the goroutine's stack.
const scanned = 0x1000

// Exists reports whether the goroutine exists. The run time keeps the structures of ended goroutines and uses them
// again.
func (s Status) Exists() bool { return s != Idle && s != Dead && s != DeadExtra }

// String returns the word for the status in Go's own stack traces.
func (s Status) String() string {
	switch s {
	case Idle:
		return "idle"
	case Runnable:
		return "runnable"
	case Running:
		return "running"
	case InSyscall:
		return "syscall"
	case Waiting:
		return "waiting"
	case Dead:
		return "dead"
	case CopiesStack:
		return "copystack"
	case Preempted:
		return "preempted"
	case Leaked:
		return "leaked"
	case DeadExtra:
		return "waiting for cgo callback"
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// State returns the reason why a goroutine waits, or else its status, as in Go's own stack traces.
func (g *Goroutine) State() string {
	if g.Reason != "" {
		return g.Reason
	}
	return g.Status.String()
}

// Decode decodes the structure of the goroutine at an address. p must have Size bytes of the structure. The error is
// ErrDamaged.
func (r *Runtime) Decode(addr uint64, p []byte) (Goroutine, error) {
	l := &r.layout
	if len(p) < l.size() {
		return Goroutine{}, fmt.Errorf("%w: %d bytes of it", ErrDamaged, len(p))
	}
	word := func(off int) uint64 { return r.order.Uint64(p[off:]) }
	status := r.order.Uint32(p[l.Status:])
	g := Goroutine{
		Addr: addr, ID: word(l.ID), StackLow: word(offStackLow), StackHigh: word(offStackHigh), Thread: word(offThread),
		Status: Status(status &^ scanned), Locked: word(l.Locked) != 0,
		PC: word(offPC), SP: word(offSP), BP: word(l.BP),
	}
	if l.LR != 0 {
		g.LR = word(l.LR)
	}
	if g.Status > DeadExtra {
		return g, fmt.Errorf("%w: 0x%x has status %d", ErrDamaged, addr, status)
	}
	if !g.Status.Exists() {
		return g, nil
	}
	if self := word(offSelf); self != addr || g.StackLow >= g.StackHigh || g.ID == 0 {
		return g, fmt.Errorf("%w: 0x%x, with number %d, says that it is 0x%x", ErrDamaged, addr, g.ID, self)
	}
	if sp := word(l.SyscallSP); sp != 0 { // as unwinder.initAt of runtime/traceback.go
		g.PC, g.SP, g.BP, g.LR = word(l.SyscallPC), sp, 0, 0
		if l.SyscallBP != 0 {
			g.BP = word(l.SyscallBP)
		}
	}
	if g.Status != Running && (g.SP < g.StackLow || g.SP > g.StackHigh) {
		return g, fmt.Errorf("%w: goroutine %d has its stack pointer at 0x%x, outside its stack", ErrDamaged, g.ID, g.SP)
	}
	if reason := int(p[l.Reason]); (g.Status == Waiting || g.Status == Leaked) && reason < len(r.reasons) {
		g.Reason = r.reasons[reason]
	}
	if l.Parent != 0 {
		g.Parent = word(l.Parent)
	}
	if l.MadeAt != 0 {
		g.MadeAt = word(l.MadeAt)
	}
	return g, nil
}

// Thread decodes a thread's structure. p has its first ThreadSize bytes. Thread returns the kernel's thread id, and the
// address of the goroutine that the thread runs, or that is in a system call on the thread. Both results are 0 if p is
// too short or the id is invalid.
func (r *Runtime) Thread(p []byte) (tid int, current uint64) {
	if len(p) < ThreadSize {
		return 0, 0
	}
	id := r.order.Uint64(p[r.layout.ThreadID:])
	if id > 1<<31 {
		return 0, 0
	}
	return int(id), r.order.Uint64(p[r.layout.Current:])
}
