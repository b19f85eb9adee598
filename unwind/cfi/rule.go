package cfi

import "math/bits"

// maxColumns limits the register columns for which rows keep rules. All registers in the psABIs of the supported
// architectures are below it, except for example RISC-V's control registers. Rules for other columns are read and
// dropped.
const maxColumns = 128

// RuleKind is the way to find a register of the caller (DWARF 5 §6.4.1).
type RuleKind uint8

// The kinds of rules. The CFA's own rule is RuleRegister or RuleExpression.
const (
	// RuleUnspecified is the absence of a rule: by convention the register is unchanged.
	RuleUnspecified RuleKind = iota
	// RuleUndefined: the caller's value is lost.
	RuleUndefined
	// RuleSameValue: unchanged.
	RuleSameValue
	// RuleOffset: saved at CFA+Offset.
	RuleOffset
	// RuleValOffset: the value is CFA+Offset.
	RuleValOffset
	// RuleRegister: in another register. For the CFA: that register plus Offset.
	RuleRegister
	// RuleExpression: saved at the address that a DWARF expression yields. For
	// the CFA: that address is the CFA.
	RuleExpression
	// RuleValExpression: the value is the result of a DWARF expression.
	RuleValExpression
)

// Rule is one rule of a row.
type Rule struct {
	// Offset is the rule's offset in bytes; for expressions, where in the
	// section the expression starts.
	Offset int64
	length uint32 // of the expression
	// Register is the DWARF column that RuleRegister refers to.
	Register uint16
	// Column is the DWARF column that the rule is for; zero for the CFA's.
	Column uint8
	// Kind determines which of the other fields are used.
	Kind RuleKind
}

// columnSet is a set of columns below maxColumns.
type columnSet [maxColumns / 64]uint64

func (s *columnSet) has(c uint64) bool { return s[c/64]&(1<<(c%64)) != 0 }
func (s *columnSet) add(c uint64)      { s[c/64] |= 1 << (c % 64) }
func (s *columnSet) remove(c uint64)   { s[c/64] &^= 1 << (c % 64) }

// cfaRule is the CFA's rule while a row is computed. Register and offset keep their values under an expression,
// because operations that set one of them rely on it.
type cfaRule struct {
	set, isExpr bool
	register    uint64
	offset      int64
	expr        Rule
}

// rule makes the Rule of a complete row; RuleUnspecified if nothing defined it.
func (c *cfaRule) rule() Rule {
	switch {
	case !c.set || !c.isExpr && c.register >= maxColumns:
		return Rule{}
	case c.isExpr:
		return c.expr
	}
	return Rule{Kind: RuleRegister, Register: uint16(c.register), Offset: c.offset}
}

// state is a row under construction. A rule is valid only if its column is in set. This makes copying a state cheap.
type state struct {
	cfa    cfaRule
	signed bool // aarch64's RA_SIGN_STATE
	set    columnSet
	rules  [maxColumns]Rule
}

// reset forgets every rule.
func (s *state) reset() {
	s.cfa, s.signed, s.set = cfaRule{}, false, columnSet{}
}

// copyFrom makes s equal to o.
func (s *state) copyFrom(o *state) {
	s.cfa, s.signed, s.set = o.cfa, o.signed, o.set
	for c := range o.columns {
		s.rules[c] = o.rules[c]
	}
}

// put sets a column's rule.
func (s *state) put(column uint64, r Rule) {
	if column < maxColumns {
		r.Column = uint8(column)
		s.rules[column] = r
		s.set.add(column)
	}
}

// restore copies a column's rule from o.
func (s *state) restore(column uint64, o *state) {
	switch {
	case column >= maxColumns:
	case o.set.has(column):
		s.put(column, o.rules[column])
	default:
		s.set.remove(column)
	}
}

// columns yields the columns that have a rule.
func (s *state) columns(yield func(int) bool) {
	for i, word := range s.set {
		for ; word != 0; word &= word - 1 {
			if !yield(64*i + bits.TrailingZeros64(word)) {
				return
			}
		}
	}
}
