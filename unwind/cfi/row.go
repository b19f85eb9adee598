package cfi

// Row is the call frame information for an address: how to find the CFA and, from it, the caller's registers. Row is
// a value that shares its rules with the Table's cache. The rules must not be changed.
type Row struct {
	// Start and End limit the addresses that this row is for.
	Start, End uint64
	// FDEStart and FDEEnd are the limits of the function in the call frame information.
	FDEStart, FDEEnd uint64
	// Bias is added to the addresses in expressions (DW_OP_addr). The Table leaves it zero. The caller sets it to the
	// image's load bias.
	Bias uint64
	// CFA is the rule for the canonical frame address: RuleRegister or RuleExpression.
	CFA Rule

	rules []Rule // by column, without unspecified ones
	table *Table
	ra    uint8 // column of the return address

	section sectionID

	// Signal is set if a signal interrupted this frame; see FDE.
	Signal bool
	// RAUndefined is set if the return address is undefined: this is the outermost frame.
	RAUndefined bool
	// RASigned: the return address carries an authentication code (aarch64).
	RASigned bool
}

// Rules returns the row's rules, sorted by column, without unspecified ones. Callers must not change them.
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

// Expression returns the DWARF expression of a rule of this row, or nil if the rule has none.
func (r *Row) Expression(rule Rule) []byte {
	if rule.Kind != RuleExpression && rule.Kind != RuleValExpression || r.table == nil {
		return nil
	}
	return r.table.sections[r.section].Data[rule.Offset:][:rule.length]
}
