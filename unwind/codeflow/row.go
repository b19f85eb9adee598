package codeflow

import (
	"errors"
	"math/rand/v2"
	"slices"

	"pg_stat_backtrace/unwind/arch"
)

// Row is the effect of the code from one place on any frame, whatever values the frame has. Like a row of call frame
// information, it gives the locations of the caller's registers. Following the code takes a thousand times as long as
// applying a known row. Applying a row does not change it.
type Row struct {
	never  bool   // no path returns
	cells  []term // the addresses of words of memory used by values, each after the words that it depends on
	values []rule
}

// rule is the source of one of the caller's registers.
type rule struct {
	reg  int
	from term
}

// term is a known number of bytes added to a base: a register of the frame, the content of a cell, or nothing.
type term struct {
	of     int // the register; or arch.MaxRegisters and the number of a cell; or absolute
	offset int64
}

const absolute = -1

// Apply returns the caller's registers, computed from a frame's registers and the memory. The error is
// ErrNeverReturns if there is no caller. The error is ErrMemory if the program counter or the stack pointer depends
// on an unknown value. Following the code may still find them.
func (r *Row) Apply(a *arch.Arch, regs *arch.Registers, mem Memory) (arch.Registers, error) {
	var caller arch.Registers
	if r.never {
		return caller, ErrNeverReturns
	}
	var words [maxCells]uint64
	var known [maxCells]bool
	value := func(t term) (uint64, bool) {
		v, ok := uint64(0), true
		switch {
		case t.of >= arch.MaxRegisters:
			v, ok = words[t.of-arch.MaxRegisters], known[t.of-arch.MaxRegisters]
		case t.of != absolute:
			v, ok = regs.Get(t.of)
		}
		return v + uint64(t.offset), ok
	}
	for i, c := range r.cells {
		if addr, ok := value(c); ok {
			words[i], known[i] = mem.Word(addr)
		}
	}
	for _, rule := range r.values {
		v, ok := value(rule.from)
		switch {
		case ok && rule.reg == a.PC:
			caller.Set(rule.reg, a.StripCode(v))
		case ok:
			caller.Set(rule.reg, v)
		case rule.reg == a.PC, rule.reg == a.SP:
			return caller, ErrMemory
		}
	}
	return caller, nil
}

// Derive finds the row of a place by following the code with symbols as values. Symbols are numbers so far apart that
// each result identifies its symbol. Derive follows the code twice with different symbols. The place has no row if
// the two results differ: the code then does more to a value than an addition, for example an alignment. The error is
// an error of Follow, or ErrAmbiguous.
func Derive(a *arch.Arch, code Code, at Place, budget *int) (*Row, error) {
	m := machineOf(a)
	if m == nil {
		return nil, ErrNoReturn
	}
	plain := a.WithCodeMask(0)
	var rows [2]*Row
	for i := range rows {
		row, err := derive(plain, m, code, at, newSymbols(uint64(i)*unaligned), budget)
		if err != nil {
			return nil, err
		}
		rows[i] = row
	}
	if !rows[0].equal(rows[1]) {
		return nil, ErrAmbiguous
	}
	return rows[0], nil
}

func derive(a *arch.Arch, m *machine, code Code, at Place, known *symbols, budget *int) (*Row, error) {
	var regs arch.Registers
	for reg := range a.NumRegisters {
		regs.Set(reg, known.register(a, reg))
	}
	for _, reg := range m.scratch {
		if reg != m.link {
			regs.Clear(reg)
		}
	}
	caller, err := Follow(a, code, at, regs, known, budget)
	if errors.Is(err, ErrNeverReturns) {
		return &Row{never: true}, nil
	}
	if err != nil {
		return nil, err
	}
	row := &Row{cells: known.cells}
	for reg := range a.NumRegisters {
		v, ok := caller.Get(reg)
		if !ok {
			continue
		}
		from, ok := known.term(v)
		switch {
		case ok:
			row.values = append(row.values, rule{reg, from})
		case reg == m.pc, reg == m.sp:
			return nil, ErrAmbiguous
		}
	}
	return row, nil
}

// equal reports whether two rows are equal. The cells are in the order in which the code has read them.
func (r *Row) equal(o *Row) bool {
	return r.never == o.never && slices.Equal(r.cells, o.cells) && slices.Equal(r.values, o.values)
}

const (
	// apart is the distance between symbols, minus one for each bit. A number added to a symbol stays nearer to it.
	apart = 48
	// unaligned is added to the symbols of the second run, so that aligning one to 8 bytes or more changes the
	// result.
	unaligned = 0x7c
	// maxCells bounds the words of memory that a row reads.
	maxCells = 32
)

// symbols assigns numbers to unknown values. It is also the memory of a frame whose addresses and contents are such
// numbers.
type symbols struct {
	skew   uint64
	of     map[uint64]int // by their high bits: see term
	cells  []term
	byAddr map[uint64]uint64
}

func newSymbols(skew uint64) *symbols {
	return &symbols{skew: skew, of: make(map[uint64]int), byAddr: make(map[uint64]uint64)}
}

// The high bits of symbols. The symbol of the stack pointer is higher than all others except the frame pointer's,
// because a call may have written to memory below the stack pointer. The frame pointer points above it.
const (
	highAny   = 1
	highStack = 0xff00
	highFrame = 0xff80
	highEnd   = 0xfffe
)

// register creates the symbol of a register.
func (s *symbols) register(a *arch.Arch, reg int) uint64 {
	switch reg {
	case a.SP:
		return s.symbol(reg, highStack, highFrame)
	case a.FP:
		return s.symbol(reg, highFrame, highEnd)
	default:
		return s.symbol(reg, highAny, highStack)
	}
}

// symbol makes a number between two.
func (s *symbols) symbol(of int, low, end uint64) uint64 {
	for {
		high := low + rand.Uint64N(end-low) //nolint:gosec // two of them must differ, no more
		if _, used := s.of[high]; !used {
			s.of[high] = of
			return high<<apart + s.skew
		}
	}
}

// term returns the meaning of a number. It is false if the number is not derived from one symbol.
func (s *symbols) term(v uint64) (term, bool) {
	high := (v + 1<<(apart-1)) >> apart
	offset := int64(v - high<<apart)
	if high == 0 {
		return term{absolute, offset}, true
	}
	of, ok := s.of[high]
	return term{of, offset - int64(s.skew)}, ok
}

// Word implements Memory.
func (s *symbols) Word(addr uint64) (uint64, bool) {
	if v, ok := s.byAddr[addr]; ok {
		return v, true
	}
	at, ok := s.term(addr)
	if !ok || at.of == absolute || len(s.cells) == maxCells {
		return 0, false
	}
	v := s.symbol(arch.MaxRegisters+len(s.cells), highAny, highStack)
	s.cells = append(s.cells, at)
	s.byAddr[addr] = v
	return v, true
}
