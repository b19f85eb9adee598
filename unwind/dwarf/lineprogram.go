package dwarf

import "fmt"

// Opcodes of line programs (DW_LNS_… and DW_LNE_…, §6.2.5).
const (
	lnsExtended       = 0
	lnsCopy           = 1
	lnsAdvancePC      = 2
	lnsAdvanceLine    = 3
	lnsSetFile        = 4
	lnsConstAddPC     = 8
	lnsFixedAdvancePC = 9
	lneEndSequence    = 1
	lneSetAddress     = 2
	lneDefineFile     = 3
)

// machine is the state of a line program's execution.
type machine struct {
	t     *lines
	h     *lineHeader
	u     *unit
	c     *cursor
	addr  uint64
	op    uint64 // index of the operation in a VLIW instruction
	file  uint64
	line  int64
	first int // row that begins the sequence
}

// run executes a line program. It removes the last sequence if the sequence has no end.
func (t *lines) run(c *cursor, h *lineHeader, u *unit) error {
	m := machine{t: t, h: h, u: u, c: c}
	m.reset()
	for c.left() > 0 && !c.bad {
		m.step()
		if len(t.rows) > maxRows {
			return fmt.Errorf("%w: more than %d rows", ErrTooLarge, maxRows)
		}
	}
	t.rows = t.rows[:m.first]
	return nil
}

// reset begins a sequence.
func (m *machine) reset() {
	m.addr, m.op, m.file, m.line, m.first = 0, 0, 1, 1, len(m.t.rows)
}

// step executes one instruction.
func (m *machine) step() {
	switch op := m.c.u8(); {
	case op >= m.h.opcodeBase:
		adjusted := uint64(op - m.h.opcodeBase)
		m.advance(adjusted / m.h.lineRange)
		m.line += m.h.lineBase + int64(adjusted%m.h.lineRange)
		m.emit()
	case op == lnsExtended:
		m.extended()
	default:
		m.standard(op)
	}
}

// standard executes a standard opcode. It skips an unknown opcode and its operands.
func (m *machine) standard(op uint8) {
	switch op {
	case lnsCopy:
		m.emit()
	case lnsAdvancePC:
		m.advance(m.c.uleb())
	case lnsAdvanceLine:
		m.line += m.c.sleb()
	case lnsSetFile:
		m.file = m.c.uleb()
	case lnsConstAddPC:
		m.advance(uint64(255-m.h.opcodeBase) / m.h.lineRange)
	case lnsFixedAdvancePC:
		m.addr += uint64(m.c.u16())
		m.op = 0
	default: // also opcodes for registers that are not used, such as the column
		for range m.h.operands[op-1] {
			m.c.uleb()
		}
	}
}

// extended executes an extended opcode, which begins with its length.
func (m *machine) extended() {
	length := m.c.uleb()
	if length == 0 {
		return
	}
	end := m.c.offset() + length
	if length > uint64(m.c.left()) {
		m.c.fail()
		return
	}
	switch m.c.u8() {
	case lneEndSequence:
		m.t.add(m.u, m.first, m.addr)
		m.reset()
	case lneSetAddress:
		if length == 9 || length == 5 {
			m.addr = m.c.sized(length == 9)
			m.op = 0
		}
	case lneDefineFile:
		if m.t.version < 5 && len(m.t.files) < maxLineFiles {
			m.t.files = append(m.t.files, file{name: m.c.str(), dir: m.c.uleb()})
		}
	}
	if m.c.offset() > end {
		m.c.fail()
		return
	}
	m.c.seek(end)
}

// advance moves the address forward by n operations (§6.2.5.1).
func (m *machine) advance(n uint64) {
	if m.h.maxOps == 1 {
		m.addr += n * m.h.minLength
		return
	}
	m.addr += m.h.minLength * ((m.op + n) / m.h.maxOps)
	m.op = (m.op + n) % m.h.maxOps
}

// emit appends a row. If the previous row has the same address, the new row replaces it. If the previous row has the
// same file and line, emit appends nothing.
func (m *machine) emit() {
	r := row{addr: m.addr, file: uint32(m.file), line: uint32(max(m.line, 0))}
	if n := len(m.t.rows); n > m.first {
		last := &m.t.rows[n-1]
		if last.addr == r.addr {
			*last = r
			return
		}
		if last.file == r.file && last.line == r.line && last.addr < r.addr {
			return
		}
	}
	m.t.rows = append(m.t.rows, r)
}
