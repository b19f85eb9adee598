package cfi

import "math/bits"

// maxColumns limits the register columns for which rows keep rules. Nearly all registers in the psABIs of the supported
// architectures have lower columns; RISC-V's control registers do not. Rules for other columns are read and ignored.
const maxColumns = 128

// RuleKind is the way to find a register of the caller (DWARF 5 §6.4.1).
type RuleKind uint8

// The kinds of rules. The CFA's own rule is RuleRegister or RuleExpression.
const (
	// RuleUnspecified is the absence of a rule: by convention, the caller's value is unchanged in the register.
	RuleUnspecified RuleKind = iota
	// RuleUndefined: the caller's value is lost.
	RuleUndefined
	// RuleSameValue: the caller's value is unchanged in the register.
	RuleSameValue
	// RuleOffset: the caller's value is saved at address CFA+Offset.
	RuleOffset
	// RuleValOffset: the caller's value is CFA+Offset.
	RuleValOffset
	// RuleRegister: the caller's value is in another register. For the CFA: the CFA is the register's value plus
	// Offset.
	RuleRegister
	// RuleExpression: the caller's value is saved at the address that a DWARF expression gives. For the CFA: the
	// expression gives the CFA itself.
	RuleExpression
	// RuleValExpression: the caller's value is the result of a DWARF expression.
	RuleValExpression
)

// Rule is one rule of a row: how to find the caller's value of one register, or the CFA.
type Rule struct {
	// Offset is the rule's offset in bytes. For expressions it is the offset of the expression in the section.
	Offset int64
	length uint32 // length of the expression in bytes
	// Register is the DWARF column that RuleRegister refers to.
	Register uint16
	// Column is the DWARF column of the rule's own register; 0 for the CFA's rule.
	Column uint8
	// Kind determines which of the other fields are used.
	Kind RuleKind
}

// columnSet is a set of columns below maxColumns.
type columnSet [maxColumns / 64]uint64

func (s *columnSet) has(c uint64) bool { return s[c/64]&(1<<(c%64)) != 0 }
func (s *columnSet) add(c uint64)      { s[c/64] |= 1 << (c % 64) }
func (s *columnSet) remove(c uint64)   { s[c/64] &^= 1 << (c % 64) }

// cfaRule is the CFA's rule while a row is computed. If the rule is an expression, the fields register and offset keep
// their former values, because a later instruction may set only one of them.
type cfaRule struct {
	set, isExpr bool
	register    uint64
	offset      int64
	expr        Rule
}

// rule returns the CFA's rule; RuleUnspecified if no instruction has defined it, or its register is not supported.
func (c *cfaRule) rule() Rule {
	switch {
	case !c.set || !c.isExpr && c.register >= maxColumns:
		return Rule{}
	case c.isExpr:
		return c.expr
	}
	return Rule{Kind: RuleRegister, Register: uint16(c.register), Offset: c.offset}
}

// state is a row under construction. A rule in the field rules is valid only if its column is in the field set, so
// copyFrom copies only these rules.
type state struct {
	cfa    cfaRule
	signed bool // aarch64's RA_SIGN_STATE: the return address is signed
	set    columnSet
	rules  [maxColumns]Rule
}

// reset removes every rule.
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

// restore sets a column's rule to the rule that the column has in o. If o has none, restore removes the rule.
func (s *state) restore(column uint64, o *state) {
	switch {
	case column >= maxColumns:
	case o.set.has(column):
		s.put(column, o.rules[column])
	default:
		s.set.remove(column)
	}
}

// columns yields the columns that have a rule, in ascending order.
func (s *state) columns(yield func(int) bool) {
	for i, word := range s.set {
		for ; word != 0; word &= word - 1 {
			if !yield(64*i + bits.TrailingZeros64(word)) {
				return
			}
		}
	}
}
