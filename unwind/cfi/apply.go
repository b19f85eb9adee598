package cfi

import (
	"fmt"

	"pg_stat_backtrace/unwind/arch"
)

// Memory reads a process's memory, or the part of the memory in a snapshot. Values are in the target's byte order. The
// boolean result is false if the snapshot does not contain the address.
type Memory interface {
	// Word reads an address-sized number at addr.
	Word(addr uint64) (uint64, bool)
	// Read reads an unsigned number of 1, 2, 4 or 8 bytes at addr.
	Read(addr uint64, size int) (uint64, bool)
}

// word reads an address-sized number. It returns ErrMemory without context, because most callers only mark a register
// as unknown.
func word(mem Memory, addr uint64) (uint64, error) {
	if v, ok := mem.Word(addr); ok {
		return v, nil
	}
	return 0, ErrMemory
}

// Apply computes the CFA and the caller's registers. regs are the registers of the frame at an address that the row
// covers. PC in the result is the return address without authentication code. SP in the result is SP after the return.
//
// Registers without a rule keep their value. If the place of a register's value cannot be read, the register becomes
// unknown. This is an error only for the return address: ErrMemory or ErrRegister, wrapped. ErrUndefinedRA means that
// there is no caller. ErrBadCFI means that an expression cannot be evaluated. If an error occurs after the CFA was
// computed, Apply still returns the CFA.
func (r *Row) Apply(regs *arch.Registers, mem Memory) (cfa uint64, caller arch.Registers, err error) {
	cfa, err = r.cfa(regs, mem)
	if err != nil {
		return 0, arch.Registers{}, err
	}
	if r.RAUndefined {
		return cfa, arch.Registers{}, ErrUndefinedRA
	}
	caller = *regs
	if err = r.step(regs, &caller, cfa, mem); err != nil {
		return cfa, arch.Registers{}, err
	}
	return cfa, caller, nil
}

// cfa computes the canonical frame address from the CFA's rule.
func (r *Row) cfa(regs *arch.Registers, mem Memory) (uint64, error) {
	switch r.CFA.Kind {
	case RuleRegister:
		base, err := r.register(uint64(r.CFA.Register), regs)
		if err != nil {
			return 0, fmt.Errorf("CFA by column %d: %w", r.CFA.Register, err)
		}
		return (base + uint64(r.CFA.Offset)) & r.table.addrMask, nil
	case RuleExpression:
		return r.evaluate(r.CFA, false, 0, regs, mem)
	default:
		return 0, fmt.Errorf("%w: no rule for the CFA", ErrBadCFI)
	}
}

// step computes the caller's registers in caller, which is a copy of the frame's registers when step is called.
func (r *Row) step(regs, caller *arch.Registers, cfa uint64, mem Memory) error {
	a := r.table.arch
	caller.Set(a.SP, cfa+uint64(a.CFAToSP))
	returns := a.Index(uint64(r.ra))
	ruled := returns != a.PC // whether the return address needs a rule: in a link register it needs none
	for _, rule := range r.rules {
		reg := a.Index(uint64(rule.Column))
		if reg < 0 {
			continue
		}
		v, err := r.value(rule, cfa, regs, mem)
		if reg == returns {
			ruled = ruled || rule.Kind != RuleSameValue
			if err != nil {
				return fmt.Errorf("return address by CFA %#x: %w", cfa, err)
			}
		}
		if err != nil {
			caller.Clear(reg)
		} else {
			caller.Set(reg, v)
		}
	}
	pc, ok := caller.Get(returns)
	switch {
	case !ruled:
		return fmt.Errorf("%w: no rule for the return address", ErrBadCFI)
	case !ok:
		return fmt.Errorf("%w: return address", ErrRegister)
	}
	caller.Set(a.PC, a.StripCode(pc))
	return nil
}

// register reads a register by its DWARF column. It returns ErrRegister without context, because most callers only mark
// a register as unknown.
func (r *Row) register(column uint64, regs *arch.Registers) (uint64, error) {
	if v, ok := regs.Get(r.table.arch.Index(column)); ok {
		return v, nil
	}
	return 0, ErrRegister
}

// value computes the caller's value of the rule's register.
func (r *Row) value(rule Rule, cfa uint64, regs *arch.Registers, mem Memory) (uint64, error) {
	switch rule.Kind {
	case RuleOffset:
		return word(mem, cfa+uint64(rule.Offset))
	case RuleValOffset:
		return cfa + uint64(rule.Offset), nil
	case RuleRegister:
		return r.register(uint64(rule.Register), regs)
	case RuleExpression:
		at, err := r.evaluate(rule, true, cfa, regs, mem)
		if err != nil {
			return 0, err
		}
		return word(mem, at)
	case RuleValExpression:
		return r.evaluate(rule, true, cfa, regs, mem)
	case RuleSameValue, RuleUnspecified:
		return r.register(uint64(rule.Column), regs)
	case RuleUndefined:
	}
	return 0, ErrRegister
}
