package waits

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

// stackPointerWord is the index, in words, of the stack pointer in the kernel's struct pt_regs of x86_64.
const stackPointerWord = 19

// StackOptions select the waits whose stacks are copied. Both fields may be set. The zero value selects none.
type StackOptions struct {
	// Every means that the stack of one wait in Every is copied, chosen at random; 0: none.
	Every int
	// Longer means that the stacks of all waits that took at least Longer are copied; 0: none.
	Longer time.Duration
}

// on reports whether stacks are copied.
func (o StackOptions) on() bool { return o.Every > 0 || o.Longer > 0 }

// copiesStacks has the architectures, by GOARCH, on which the BPF programs can copy stacks.
//
//nolint:gochecknoglobals // a table
var copiesStacks = map[string]bool{"amd64": true}

// check returns why stacks cannot be copied with these hooks; nil if they can, or if none are to be copied.
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

// Stack returns the next copied stack; the caller owns its memory. It returns false if there is none at present.
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
