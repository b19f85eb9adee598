package probe

import (
	"errors"
	"fmt"
	"unsafe"
)

// Limits, with the same values in probe.bpf.c.
const (
	MaxArguments  = 8
	MaxConditions = 4
	MaxStrings    = 4
	MaxString     = 63 // bytes of a string that are copied
	Buckets       = 40 // of a Latency
	MaxProbes     = 1024
)

// ErrUnsupported means that this kernel or architecture cannot run the BPF programs.
var ErrUnsupported = errors.New("functions cannot be traced by this kernel")

// Kind says where the value of an Argument is.
type Kind uint32

// The kinds.
const (
	Register Kind = iota // in a register
	Memory               // in memory, at Offset from the address in a register
	Constant             // not in the process: the value is Offset
)

// Argument says where the BPF program finds a value at a hit.
type Argument struct {
	Kind Kind
	// Register is the index of a register, as in NT_PRSTATUS.
	Register int
	Offset   int64
	// Size is the number of bytes: 1, 2, 4 or 8.
	Size   int
	Signed bool
	// String means that the value is the address of a string. Length is 1 plus the index, in Probe.Arguments, of the
	// argument with the string's length; 0: a null byte ends the string.
	String bool
	Length int
}

// Op is the operation by which a condition compares two values.
type Op uint32

// The operations. The operation And is true if the two values have a bit in common.
const (
	Equal Op = iota
	NotEqual
	Less
	LessEqual
	Greater
	GreaterEqual
	And
)

// Condition is a condition on a value: What Op Value.
type Condition struct {
	What   Argument
	Op     Op
	Signed bool
	Value  uint64
}

// Probe describes what the BPF program does at an instruction.
type Probe struct {
	// Stack makes the program copy stacks. Without Stack and Arguments, hits are only counted.
	Stack bool
	// Go says that the stack may be a goroutine's.
	Go         bool
	Arguments  []Argument
	Conditions []Condition // hits that do not meet all of them are only counted (Figures.Failed)
}

// The following types have the layouts of probe.bpf.c.
type (
	argument struct {
		kind, register            uint32
		offset                    int64
		size, signed, str, length uint32
	}
	condition struct {
		what       argument
		op, signed uint32
		value      uint64
	}
	probe struct {
		flags, arguments, conditions, _ uint32
		argument                        [MaxArguments]argument
		condition                       [MaxConditions]condition
	}
	figuresKey struct {
		Started uint64
		Probe   uint32
		PID     uint32
	}
	control struct {
		stacks int64
		every  uint32
		_      uint32
	}
	hit struct {
		at, started                          uint64
		pid, tid, probe, uid                 uint32
		registers                            [registerWords]uint64
		threadPointer                        uint64
		stackStart, stackLength, stackWanted uint64
		arguments                            [MaxArguments]uint64
		strings                              [MaxStrings][MaxString + 1]byte
		unreadable, numStrings               uint32
	}
)

const hitSize = int(unsafe.Sizeof(hit{}))

const (
	wantsStack = 1 << iota
	wantsArguments
	isGo
)

// pack returns the probe in the layout of probe.bpf.c.
func (p *Probe) pack() (out probe, err error) {
	if len(p.Arguments) > MaxArguments || len(p.Conditions) > MaxConditions {
		return out, fmt.Errorf("%d arguments and %d conditions: at most %d and %d are possible", len(p.Arguments),
			len(p.Conditions), MaxArguments, MaxConditions)
	}
	if p.Stack {
		out.flags |= wantsStack
	}
	if p.Go {
		out.flags |= isGo
	}
	if len(p.Arguments) > 0 {
		out.flags |= wantsArguments
	}
	out.arguments, out.conditions = uint32(len(p.Arguments)), uint32(len(p.Conditions))
	for i := range p.Arguments {
		out.argument[i] = p.Arguments[i].pack()
	}
	for i, c := range p.Conditions {
		out.condition[i] = condition{what: c.What.pack(), op: uint32(c.Op), signed: flag(c.Signed), value: c.Value}
	}
	return out, nil
}

func (a *Argument) pack() argument {
	return argument{
		kind: uint32(a.Kind), register: uint32(a.Register), offset: a.Offset, size: uint32(a.Size),
		signed: flag(a.Signed), str: flag(a.String), length: uint32(a.Length),
	}
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
