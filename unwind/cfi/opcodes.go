package cfi

// Call frame instructions (DWARF 5 §7.24, and the vendors' extensions).
const (
	cfaAdvanceLoc       = 0x40 // in the high two bits; the low six bits contain the delta
	cfaOffset           = 0x80
	cfaRestore          = 0xc0
	cfaNop              = 0x00
	cfaSetLoc           = 0x01
	cfaAdvanceLoc1      = 0x02
	cfaAdvanceLoc2      = 0x03
	cfaAdvanceLoc4      = 0x04
	cfaOffsetExtended   = 0x05
	cfaRestoreExtended  = 0x06
	cfaUndefined        = 0x07
	cfaSameValue        = 0x08
	cfaRegister         = 0x09
	cfaRememberState    = 0x0a
	cfaRestoreState     = 0x0b
	cfaDefCFA           = 0x0c
	cfaDefCFARegister   = 0x0d
	cfaDefCFAOffset     = 0x0e
	cfaDefCFAExpression = 0x0f
	cfaExpression       = 0x10
	cfaOffsetExtendedSF = 0x11
	cfaDefCFASF         = 0x12
	cfaDefCFAOffsetSF   = 0x13
	cfaValOffset        = 0x14
	cfaValOffsetSF      = 0x15
	cfaValExpression    = 0x16
	cfaMIPSAdvanceLoc8  = 0x1d
	cfaNegateRAStatePC  = 0x2c // DW_CFA_AARCH64_negate_ra_state_with_pc
	cfaNegateRAState    = 0x2d // DW_CFA_AARCH64_negate_ra_state, elsewhere DW_CFA_GNU_window_save
	cfaGNUArgsSize      = 0x2e
	cfaGNUNegOffsetExt  = 0x2f

	cfaPrimary = 0xc0
	cfaOperand = 0x3f
)

// step executes one instruction. It returns false, and sets m.what, if the instruction is invalid.
func (m *machine) step() bool {
	op := m.r.u8()
	low := uint64(op & cfaOperand)
	switch op & cfaPrimary {
	case cfaAdvanceLoc:
		return m.advance(low)
	case cfaOffset:
		m.now.put(low, Rule{Kind: RuleOffset, Offset: m.factored()})
		return true
	case cfaRestore:
		return m.restore(low)
	}
	switch op {
	case cfaNop:
		return true
	case cfaSetLoc:
		return m.setLocation()
	case cfaAdvanceLoc1:
		return m.advance(uint64(m.r.u8()))
	case cfaAdvanceLoc2:
		return m.advance(uint64(m.r.u16()))
	case cfaAdvanceLoc4:
		return m.advance(uint64(m.r.u32()))
	case cfaMIPSAdvanceLoc8:
		return m.advance(m.r.u64())
	case cfaRememberState:
		return m.remember()
	case cfaRestoreState:
		return m.recall()
	case cfaGNUArgsSize: // exceptions need it, unwinding does not
		m.r.uleb()
		return true
	case cfaNegateRAState, cfaNegateRAStatePC:
		m.now.signed = !m.now.signed
		return true
	}
	return m.stepCFA(op)
}

// stepCFA executes the instructions that define the CFA.
func (m *machine) stepCFA(op byte) bool {
	cfa := &m.now.cfa
	switch op {
	case cfaDefCFA:
		cfa.register = m.r.uleb()
		cfa.offset = int64(m.r.uleb())
	case cfaDefCFASF:
		cfa.register = m.r.uleb()
		cfa.offset = m.factoredSigned()
	case cfaDefCFARegister:
		cfa.register = m.r.uleb()
	case cfaDefCFAOffset:
		cfa.offset = int64(m.r.uleb())
		return true
	case cfaDefCFAOffsetSF:
		cfa.offset = m.factoredSigned()
		return true
	case cfaDefCFAExpression:
		cfa.set, cfa.isExpr = true, true
		cfa.expr = m.expression(RuleExpression)
		return true
	default:
		return m.stepRegister(op)
	}
	cfa.set, cfa.isExpr = true, false
	return true
}

// stepRegister executes the instructions that set one register's rule.
func (m *machine) stepRegister(op byte) bool {
	if op == cfaNop || op > cfaGNUNegOffsetExt {
		return m.bad("unknown call frame instruction")
	}
	column := m.r.uleb()
	switch op {
	case cfaRestoreExtended:
		return m.restore(column)
	case cfaUndefined:
		m.now.put(column, Rule{Kind: RuleUndefined})
	case cfaSameValue:
		m.now.put(column, Rule{Kind: RuleSameValue})
	case cfaRegister:
		return m.inRegister(column, m.r.uleb())
	case cfaOffsetExtended:
		m.now.put(column, Rule{Kind: RuleOffset, Offset: m.factored()})
	case cfaOffsetExtendedSF:
		m.now.put(column, Rule{Kind: RuleOffset, Offset: m.factoredSigned()})
	case cfaGNUNegOffsetExt:
		m.now.put(column, Rule{Kind: RuleOffset, Offset: -m.factored()})
	case cfaValOffset:
		m.now.put(column, Rule{Kind: RuleValOffset, Offset: m.factored()})
	case cfaValOffsetSF:
		m.now.put(column, Rule{Kind: RuleValOffset, Offset: m.factoredSigned()})
	case cfaExpression:
		m.now.put(column, m.expression(RuleExpression))
	case cfaValExpression:
		m.now.put(column, m.expression(RuleValExpression))
	default:
		return m.bad("unknown call frame instruction")
	}
	return true
}

// factored reads an unsigned offset in units of the data alignment, and returns it in bytes.
func (m *machine) factored() int64 {
	return int64(m.r.uleb()) * m.cie.dataAlign
}

func (m *machine) factoredSigned() int64 { return m.r.sleb() * m.cie.dataAlign }

// restore sets a column's rule to the rule that the column had after the CIE's instructions.
func (m *machine) restore(column uint64) bool {
	if m.inCIE {
		return m.bad("rule restored in a CIE")
	}
	m.now.restore(column, &m.initial)
	return true
}

// inRegister sets the rule that a column's value is in another register.
func (m *machine) inRegister(column, register uint64) bool {
	if register >= maxColumns {
		return m.bad("register number out of range")
	}
	m.now.put(column, Rule{Kind: RuleRegister, Register: uint16(register)})
	return true
}

// expression reads the length of a DWARF expression and skips its bytes. The returned rule contains the expression's
// place in the section.
func (m *machine) expression(kind RuleKind) Rule {
	size := m.r.uleb()
	if size > maxExpression || size > uint64(len(m.r.data)-m.r.pos) {
		m.what = "expression too long"
		m.r.failed = true
		return Rule{}
	}
	rule := Rule{Kind: kind, Offset: int64(m.r.pos), length: uint32(size)}
	m.r.take(int(size))
	return rule
}
