package functrace

import (
	"debug/elf"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pg_stat_backtrace/ptrace/measure/probe"
)

// Argument is an argument of a function that is to be read.
type Argument struct {
	// Number is the number of the argument; the first one has 1.
	Number int
	// Form is the type as which the value is read: 'x' (64 bits), 'd' and 'u' (32 bits with and without a sign), 'l' (64 bits with
	// a sign), 'b' (a byte), 's' (a string).
	Form byte
}

// Condition is a condition on an argument.
type Condition struct {
	Argument Argument
	Op       probe.Op
	Value    uint64
}

const (
	formHex    = 'x'
	formInt    = 'd'
	formUint   = 'u'
	formLong   = 'l'
	formByte   = 'b'
	formString = 's'
	forms      = "xdulbs"
)

// maxArgument is the highest number of an argument that is read.
const maxArgument = 12

// ParseArguments parses a list of arguments: a number N for the first N arguments, or a list such as "1,3:s,4:d", in
// which the letters are values of Argument.Form.
func ParseArguments(text string) ([]Argument, error) {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > probe.MaxArguments {
			return nil, fmt.Errorf("%d arguments: 1 to %d can be read", n, probe.MaxArguments)
		}
		list := make([]Argument, n)
		for i := range list {
			list[i] = Argument{i + 1, formHex}
		}
		return list, nil
	}
	words := strings.Split(text, ",")
	list, texts := make([]Argument, 0, len(words)), 0
	for _, one := range words {
		a, err := parseArgument(strings.TrimSpace(one))
		if err != nil {
			return nil, err
		}
		if a.Form == formString {
			texts++
		}
		list = append(list, a)
	}
	if texts > probe.MaxStrings {
		return nil, fmt.Errorf("%d strings: at most %d can be read", texts, probe.MaxStrings)
	}
	if len(list) > probe.MaxArguments {
		return nil, fmt.Errorf("%d arguments: at most %d can be read", len(list), probe.MaxArguments)
	}
	return list, nil
}

// parseArgument parses one argument of a list, such as "3" or "3:s".
func parseArgument(text string) (a Argument, err error) {
	number, form, has := strings.Cut(text, ":")
	a.Number, err = strconv.Atoi(number)
	if err != nil || a.Number < 1 || a.Number > maxArgument {
		return a, fmt.Errorf("%q is not the number of an argument, 1 to %d", number, maxArgument)
	}
	a.Form = formHex
	if has {
		if len(form) != 1 || !strings.Contains(forms, form) {
			return a, fmt.Errorf("%q is not a form of an argument: x, d, u, l, b or s", form)
		}
		a.Form = form[0]
	}
	return a, nil
}

// ParseConditions parses conditions such as "arg1>8192 && arg2:d!=-1". A hit must meet all of them.
func ParseConditions(text string) ([]Condition, error) {
	words := strings.Split(text, "&&")
	list := make([]Condition, 0, len(words))
	for _, one := range words {
		c, err := parseCondition(strings.TrimSpace(one))
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	if len(list) > probe.MaxConditions {
		return nil, fmt.Errorf("%d conditions: at most %d are possible", len(list), probe.MaxConditions)
	}
	return list, nil
}

func parseCondition(text string) (c Condition, err error) {
	bad := func(why string) error {
		return fmt.Errorf("condition %q: %s; a condition is like arg1>8192 or arg2:d!=-1", text, why)
	}
	rest, ok := strings.CutPrefix(text, "arg")
	at := strings.IndexAny(rest, "=!<>&")
	if !ok || at < 0 {
		return Condition{}, bad("no argument and operator")
	}
	if c.Argument, err = parseArgument(strings.TrimSpace(rest[:at])); err != nil {
		return Condition{}, bad(err.Error())
	}
	if c.Argument.Form == formString {
		return Condition{}, bad("strings cannot be compared")
	}
	rest = rest[at:]
	for _, op := range []struct {
		text string
		op   probe.Op
	}{
		{"==", probe.Equal}, {"!=", probe.NotEqual}, {"<=", probe.LessEqual}, {">=", probe.GreaterEqual},
		{"<", probe.Less}, {">", probe.Greater}, {"&", probe.And}, {"=", probe.Equal},
	} {
		value, has := strings.CutPrefix(rest, op.text)
		if !has {
			continue
		}
		value = strings.TrimSpace(value)
		c.Op = op.op
		if c.Value, err = c.Argument.parse(value); err != nil {
			return Condition{}, bad(err.Error())
		}
		return c, nil
	}
	return Condition{}, bad("no operator")
}

// parse parses a number. It returns an error if an argument of this form cannot have the value, since such a condition would never
// be met.
func (a Argument) parse(text string) (uint64, error) {
	signed, err := strconv.ParseInt(text, 0, 64)
	switch {
	case err == nil && signed < 0 && a.Form == formHex:
		return 0, fmt.Errorf("%s needs the form d (32 bits, such as an int) or l (64 bits)", text)
	case err == nil && a.signed():
		if bits := 8 * a.size(); signed<<(64-bits)>>(64-bits) != signed {
			return 0, fmt.Errorf("%s does not fit into %d bits", text, bits)
		}
		return uint64(signed), nil
	}
	v, err := strconv.ParseUint(text, 0, 64)
	switch bits := 8 * a.size(); {
	case err != nil && (signed < 0 || errors.Is(err, strconv.ErrRange)):
		return 0, fmt.Errorf("%s does not fit into %d bits without a sign", text, bits)
	case err != nil:
		return 0, fmt.Errorf("%q is not a number", text)
	case a.signed() || v<<(64-bits)>>(64-bits) != v:
		return 0, fmt.Errorf("%s does not fit into %d bits", text, bits)
	}
	return v, nil
}

func (a Argument) signed() bool { return a.Form == formInt || a.Form == formLong }

func (a Argument) size() int {
	switch a.Form {
	case formInt, formUint:
		return 4
	case formByte:
		return 1
	}
	return 8
}

// errStackArgument means that an argument is on the stack, at an unknown distance from the stack pointer.
var errStackArgument = errors.New("its place on the stack is not known at the probed instruction")

// place returns the place of an argument at the probed instruction, by the ABI: System V for C, ABIInternal for Go. pushed is
// Point.Pushed. It returns errStackArgument if the place is not known.
func (a Argument) place(machine elf.Machine, golang bool, pushed int64) (probe.Argument, error) {
	out := probe.Argument{Size: a.size(), Signed: a.signed(), String: a.Form == formString}
	registers, onStack := argumentRegisters(machine, golang)
	if a.Number <= len(registers) {
		out.Register = registers[a.Number-1]
		return out, nil
	}
	if golang || pushed < 0 {
		return out, fmt.Errorf("argument %d: %w", a.Number, errStackArgument)
	}
	const word = 8
	out.Kind, out.Register = probe.Memory, conventions[machine].stackPointer
	out.Offset = pushed + onStack + word*int64(a.Number-len(registers)-1)
	return out, nil
}

// convention is a calling convention: the registers that pass integers and pointers, as indexes in NT_PRSTATUS, and the distance of
// further arguments from the stack pointer at the function's beginning.
type convention struct {
	registers, golang []int // of C and of Go
	onStack           int64 // distance of the first argument on the stack, in bytes; C only
	stackPointer      int   // index of the stack pointer in NT_PRSTATUS
}

// Indexes in NT_PRSTATUS of x86_64.
const (
	r11, r10, r9, r8, ax, cx, dx, si, di, bx = 6, 7, 8, 9, 10, 11, 12, 13, 14, 5
)

// conventions are the calling conventions of the psABIs and of Go's ABIInternal.
//
//nolint:gochecknoglobals // read only
var conventions = map[elf.Machine]convention{
	elf.EM_AARCH64: {
		registers:    []int{0, 1, 2, 3, 4, 5, 6, 7},
		golang:       []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		stackPointer: 31,
	},
	elf.EM_X86_64: {
		registers:    []int{di, si, dx, cx, r8, r9},
		golang:       []int{ax, bx, cx, di, si, r8, r9, r10, r11},
		onStack:      8, // the return address is at the stack pointer
		stackPointer: 19,
	},
}

// argumentRegisters returns the registers that pass arguments, and the distance of the first argument on the stack from the stack
// pointer.
func argumentRegisters(machine elf.Machine, golang bool) (registers []int, onStack int64) {
	c := conventions[machine]
	if golang {
		return c.golang, 0
	}
	return c.registers, c.onStack
}

// argumentPlaces returns the places of the values that the BPF program reads: the arguments, and after all of them the lengths of
// Go's strings.
func argumentPlaces(list []Argument, machine elf.Machine, golang bool, pushed int64) ([]probe.Argument, error) {
	out := make([]probe.Argument, 0, len(list))
	for _, a := range list {
		p, err := a.place(machine, golang, pushed)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	if !golang {
		return out, nil
	}
	for i, a := range list {
		if a.Form != formString {
			continue
		}
		length, err := Argument{a.Number + 1, formLong}.place(machine, true, pushed)
		if err != nil {
			return nil, err
		}
		out = append(out, length)
		out[i].Length = len(out)
	}
	if len(out) > probe.MaxArguments {
		return nil, fmt.Errorf("with the lengths of strings %d values are needed, and at most %d can be read", len(out),
			probe.MaxArguments)
	}
	return out, nil
}

// conditions returns the conditions in the form of package probe.
func conditions(list []Condition, machine elf.Machine, golang bool, pushed int64) ([]probe.Condition, error) {
	out := make([]probe.Condition, 0, len(list))
	for _, c := range list {
		p, err := c.Argument.place(machine, golang, pushed)
		if err != nil {
			return nil, err
		}
		out = append(out, probe.Condition{What: p, Op: c.Op, Signed: c.Argument.signed(), Value: c.Value})
	}
	return out, nil
}

// format returns the values of arguments as texts, such as arg1=3 and arg2="x". A value that could not be read is "?". Bit i of
// unreadable is set for such an argument i.
func format(list []Argument, values []uint64, unreadable uint32, strs []string) []string {
	out := make([]string, 0, len(list))
	for i, a := range list {
		text := a.format(values[i])
		missing := unreadable&(1<<i) != 0
		if a.Form == formString {
			if missing = missing || len(strs) == 0; !missing {
				text, strs = strconv.Quote(strs[0]), strs[1:]
			}
		}
		if missing {
			text = "?"
		}
		out = append(out, fmt.Sprintf("arg%d=%s", a.Number, text))
	}
	return out
}

// format returns a value as text. In the form 'x', large values are hexadecimal, since they may be addresses.
func (a Argument) format(v uint64) string {
	const large = 1 << 32
	switch {
	case a.signed():
		return strconv.FormatInt(int64(v), 10)
	case a.Form == formHex && v >= large:
		return "0x" + strconv.FormatUint(v, 16)
	}
	return strconv.FormatUint(v, 10)
}
