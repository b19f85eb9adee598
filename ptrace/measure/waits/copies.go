package waits

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

// stackPointerWord is the place of the stack pointer in the kernel's struct pt_regs of x86_64, in words.
const stackPointerWord = 19

// StackOptions say of which waits the stacks are copied. Both fields may be set. The zero value means none.
type StackOptions struct {
	// Every means that the stack of one wait in so many is copied, chosen by chance.
	Every int
	// Longer means that the stacks are copied of all waits that took at least so long.
	Longer time.Duration
}

// on reports whether stacks are copied.
func (o StackOptions) on() bool { return o.Every > 0 || o.Longer > 0 }

// copiesStacks has the architectures whose registers the BPF programs can copy, by GOARCH.
//
//nolint:gochecknoglobals // a table
var copiesStacks = map[string]bool{"amd64": true}

// check returns why stacks cannot be copied; nil if they can.
func (o StackOptions) check(hooks hooks) error {
	if !o.on() {
		return nil
	}
	if !copiesStacks[runtime.GOARCH] {
		return fmt.Errorf("%w: stacks of waits are copied on x86_64 only", errPrograms)
	}
	if hooks == atSwitches {
		return fmt.Errorf("%w: stacks are copied at system calls, and this method times sleeps", errPrograms)
	}
	return nil
}

// copiedStack is the stack of a wait.
type copiedStack struct {
	PID   int
	Event uint32
	Query uint64
	Took  time.Duration
	// Registers are struct pt_regs of x86_64, in words.
	Registers [21]uint64
	// Data begins at the stack pointer. Cut means that Data ends before the end of the stack.
	Data []byte
	Cut  bool
}

// Stack returns the next copied stack; the caller owns its memory. It returns false if there is none.
func (p *programs) Stack() (copiedStack, bool) {
	p.stacks.SetDeadline(time.Now())
	record, err := p.stacks.Read()
	const head = int(unsafe.Sizeof(waitsWaitStack{}))
	if err != nil || len(record.RawSample) < head {
		return copiedStack{}, false
	}
	h := (*waitsWaitStack)(unsafe.Pointer(unsafe.SliceData(record.RawSample)))
	if int(h.Length) > len(record.RawSample)-head {
		return copiedStack{}, false
	}
	return copiedStack{
		PID: int(h.Pid), Event: h.Event, Query: h.Query, Took: time.Duration(h.Took), Registers: h.Registers,
		Cut: h.Cut != 0, Data: record.RawSample[head:][:h.Length],
	}, true
}
