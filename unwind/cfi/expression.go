package cfi

import (
	"fmt"

	"pg_stat_backtrace/unwind/arch"
)

// Bounds of a DWARF expression.
const (
	maxExpression = 1 << 16 // bytes
	maxStack      = 64      // values
	maxExprOps    = 1000    // operations executed: DW_OP_skip and DW_OP_bra may loop
)

// evaluator runs one DWARF expression (DWARF 5 §2.5.1). It does not support operations that §6.4.2 excludes, or that
// have no meaning in call frame information: frame base, objects, debugging entries, composite locations.
type evaluator struct {
	row   *Row
	regs  *arch.Registers
	mem   Memory
	r     reader
	start int // offset of the expression in the section
	mask  uint64
	depth int
	err   error
	stack [maxStack]uint64
}

// evaluate runs the DWARF expression of a rule. withCFA is set for the rules of registers, whose expressions start with
// the CFA on the stack. It is not set for the expression that defines the CFA itself.
func (r *Row) evaluate(rule Rule, withCFA bool, cfa uint64, regs *arch.Registers, mem Memory) (uint64, error) {
	t := r.table
	start := int(rule.Offset)
	e := evaluator{
		row: r, regs: regs, mem: mem, start: start, mask: t.addrMask,
		r: reader{data: t.sections[r.section].Data[:start+int(rule.length)], pos: start, big: t.big},
	}
	if withCFA {
		e.push(cfa)
	}
	for ops := 0; e.err == nil && e.r.more(); ops++ {
		if ops == maxExprOps {
			e.fail("too many operations")
			break
		}
		e.step()
		if e.r.failed {
			e.fail("truncated")
		}
	}
	v := e.pop()
	return v, e.err
}

// fail records the first error.
func (e *evaluator) fail(what string) {
	if e.err == nil {
		e.err = fmt.Errorf("%w: expression at offset %#x: %s", ErrBadCFI, e.start, what)
	}
}

func (e *evaluator) push(v uint64) {
	if e.depth == maxStack {
		e.fail("stack overflow")
		return
	}
	e.stack[e.depth] = v & e.mask
	e.depth++
}

func (e *evaluator) pop() uint64 {
	if e.depth == 0 {
		e.fail("stack underflow")
		return 0
	}
	e.depth--
	return e.stack[e.depth]
}

// pick pushes a copy of the n-th value from the top.
func (e *evaluator) pick(n int) {
	if n >= e.depth {
		e.fail("stack underflow")
		return
	}
	e.push(e.stack[e.depth-1-n])
}

// rotate moves the top of the stack below the next n-1 values.
func (e *evaluator) rotate(n int) {
	if n > e.depth {
		e.fail("stack underflow")
		return
	}
	s := e.stack[e.depth-n : e.depth]
	top := s[n-1]
	copy(s[1:], s)
	s[0] = top
}

// register pushes the sum of a register's value and an offset.
func (e *evaluator) register(column uint64, offset int64) {
	v, err := e.row.register(column, e.regs)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.push(v + uint64(offset))
}

// deref replaces the address on top of the stack by the value in memory at this address.
func (e *evaluator) deref(size int) {
	addr := e.pop()
	var v uint64
	var ok bool
	switch size {
	case 1, 2, 4, 8:
		v, ok = e.mem.Read(addr, size)
	default:
		e.fail("size of a memory access")
	}
	if !ok && e.err == nil {
		e.err = fmt.Errorf("%w: %#x", ErrMemory, addr)
	}
	e.push(v)
}

// jump moves the reader by a distance within the expression. The end of the expression is a valid target.
func (e *evaluator) jump(distance int64) {
	to := int64(e.r.pos) + distance
	if to < int64(e.start) || to > int64(len(e.r.data)) {
		e.fail("branch out of the expression")
		return
	}
	e.r.pos = int(to)
}

// signed returns a value of address size as a signed number.
func (e *evaluator) signed(v uint64) int64 {
	if e.mask>>32 == 0 {
		return int64(int32(uint32(v)))
	}
	return int64(v)
}
