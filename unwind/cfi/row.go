package cfi

// Row is the call frame information for an address: how to find the CFA and, from the CFA, the caller's registers. A
// Row is a value, but it shares its rules with the Table's cache. The rules must not be changed.
type Row struct {
	// The row is valid for the addresses [Start, End).
	Start, End uint64
	// FDEStart and FDEEnd are the limits of the FDE, which usually covers one function.
	FDEStart, FDEEnd uint64
	// Bias is added to the addresses in expressions (DW_OP_addr). The Table leaves it zero; the caller sets it to the
	// image's load bias.
	Bias uint64
	// CFA is the rule for the canonical frame address: RuleRegister or RuleExpression.
	CFA Rule

	rules []Rule // sorted by column, without unspecified rules
	table *Table
	ra    uint8 // column of the return address

	section sectionID

	// Signal is set if the frame belongs to a signal trampoline; see FDE.
	Signal bool
	// RAUndefined is set if the return address is undefined: the frame is the outermost frame.
	RAUndefined bool
	// RASigned is set if the return address has an authentication code (aarch64).
	RASigned bool
}

// Rules returns the row's rules, sorted by column, without unspecified rules. Callers must not change them.
func (r *Row) Rules() []Rule { return r.rules }

// Rule returns a column's rule. Its kind is RuleUnspecified if there is no rule.
func (r *Row) Rule(column int) Rule {
	for _, rule := range r.rules {
		if int(rule.Column) == column {
			return rule
		}
	}
	return Rule{}
}

// ReturnColumn is the DWARF column of the return address.
func (r *Row) ReturnColumn() int { return int(r.ra) }

// Expression returns the bytes of the DWARF expression of a rule of this row; nil if the rule has none.
func (r *Row) Expression(rule Rule) []byte {
	if rule.Kind != RuleExpression && rule.Kind != RuleValExpression || r.table == nil {
		return nil
	}
	return r.table.sections[r.section].Data[rule.Offset:][:rule.length]
}
