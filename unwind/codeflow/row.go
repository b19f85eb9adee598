package codeflow

import (
	"errors"
	"math/rand/v2"
	"slices"

	"pg_stat_backtrace/unwind/arch"
)

// Row is the effect of the code from one place up to the function's return, for any frame. Like a row of call frame
// information, it gives the locations of the caller's registers. Following the code takes a thousand times as long as
// applying a known row. A Row is immutable.
type Row struct {
	never  bool   // no path returns
	cells  []term // addresses of the words of memory that values need, each after the words on which its address depends
	values []rule
}

// rule is the source of one of the caller's registers.
type rule struct {
	reg  int
	from term
}

// term is a value: a base plus a known number of bytes. The base is a register of the frame, the content of a cell, or
// 0.
type term struct {
	of     int // a register, arch.MaxRegisters plus the number of a cell, or absolute
	offset int64
}

const absolute = -1

// Apply computes the caller's registers from a frame's registers and the memory. The error is ErrNeverReturns if no
// path returns, and ErrMemory if the caller's program counter or stack pointer depends on an unknown value. In the
// second case, Follow may still find the value.
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

// Derive finds the row of a place. It follows the code with a symbol as the value of each register and word of memory.
// Symbols are numbers that are far apart, so that each result identifies the symbol from which it was computed. Derive
// follows the code twice with different symbols. If the two results differ, the code does more with a value than an
// addition, for example an alignment. The place then has no row, and the error is ErrAmbiguous. Other errors are errors
// of Follow.
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

// equal reports whether two rows are equal. Both list their cells in the order in which the code reads them, so the
// lists can be compared.
func (r *Row) equal(o *Row) bool {
	return r.never == o.never && slices.Equal(r.cells, o.cells) && slices.Equal(r.values, o.values)
}

const (
	// apart is the base-2 logarithm of the distance between symbols. A symbol plus an offset must stay nearer to this
	// symbol than to others.
	apart = 48
	// unaligned is added to the symbols of the second run, so that an alignment to 8 bytes or more gives another
	// result.
	unaligned = 0x7c
	// maxCells bounds the words of memory that a row reads.
	maxCells = 32
)

// symbols assigns symbols to unknown values. It is also the Memory of a frame in which addresses and contents are
// symbols.
type symbols struct {
	skew   uint64
	of     map[uint64]int // the register or cell of each symbol, by the symbol's high bits; see the type term
	cells  []term
	byAddr map[uint64]uint64
}

func newSymbols(skew uint64) *symbols {
	return &symbols{skew: skew, of: make(map[uint64]int), byAddr: make(map[uint64]uint64)}
}

// The high bits of symbols. After a call, the follower treats all memory below the stack pointer as unknown
// (state.lost). The call may also have written to memory at any address that is only a symbol. So these symbols are
// below the stack pointer's symbol. Only the frame pointer's symbol is above it, because the frame pointer points above
// the stack pointer.
const (
	highAny   = 1
	highStack = 0xff00
	highFrame = 0xff80
	highEnd   = 0xfffe
)

// register makes the symbol of a register.
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

// symbol makes a symbol for a register or cell, numbered as in term.of. The symbol's high bits are from low to end,
// exclusive.
func (s *symbols) symbol(of int, low, end uint64) uint64 {
	for {
		high := low + rand.Uint64N(end-low) //nolint:gosec // two of them must differ, no more
		if _, used := s.of[high]; !used {
			s.of[high] = of
			return high<<apart + s.skew
		}
	}
}

// term returns the term that a number stands for. The result is false if the number is not near a symbol.
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
