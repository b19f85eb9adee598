package cfi

import (
	"math/bits"
	"sync"
)

const (
	// maxRemembered bounds the states that DW_CFA_remember_state saves at one time; compilers save one or two.
	maxRemembered = 32
	// maxOps limits the instructions for one row, of CIE and FDE together. The largest FDE of node or libLLVM has
	// 2,236.
	maxOps = 1 << 16
)

// machine executes call frame instructions (DWARF 5 §6.4.2) until it has the row for an address.
type machine struct {
	table   *Table
	section sectionID
	cie     *cie
	r       reader
	loc     uint64 // start address of the row under construction
	ops     int
	what    string // why the current instruction is invalid
	now     state
	initial state // rules after the CIE's instructions, for DW_CFA_restore
	saved   []state
	depth   int
	inCIE   bool
}

// machines are reused, because their states take some kilobytes.
var machines = sync.Pool{New: func() any { return new(machine) }}

// run computes the row of an FDE that covers pc. It stores the row in m.now and returns the row's limits.
func (m *machine) run(t *Table, f *FDE, c *cie, pc uint64) (start, end uint64, err error) {
	m.table, m.section, m.cie = t, f.section, c
	m.ops, m.depth, m.what = 0, 0, ""
	m.now.reset()
	m.initial.reset()
	data := t.sections[f.section].Data

	m.r = reader{data: data[:c.end], pos: c.body, big: t.big}
	m.loc, m.inCIE = 0, true
	if _, _, err = m.until(^uint64(0), ^uint64(0), c.off); err != nil {
		return 0, 0, err
	}
	m.initial.copyFrom(&m.now)

	m.r = reader{data: data[:f.end], pos: f.body, big: t.big}
	m.loc, m.inCIE, m.depth = f.Start, false, 0
	return m.until(pc, f.End, f.off)
}

// until executes instructions until the location is beyond pc. It returns the limits of the row that covers pc. The
// parameter limit is the end of the FDE's last row.
func (m *machine) until(pc, limit, entryOff uint64) (start, end uint64, err error) {
	for m.r.more() {
		start = m.loc
		if m.ops++; m.ops > maxOps {
			return 0, 0, badAt(m.section, entryOff, "too many call frame instructions")
		}
		if !m.step() || m.r.failed {
			if m.what == "" {
				m.what = "truncated call frame instruction"
			}
			return 0, 0, badAt(m.section, entryOff, m.what)
		}
		if m.loc > pc {
			return start, min(m.loc, limit), nil
		}
	}
	return m.loc, limit, nil
}

// release returns the machine for reuse. It removes the pointers through which the machine would keep an image in
// memory.
func (m *machine) release() {
	m.table, m.cie, m.r = nil, nil, reader{}
	machines.Put(m)
}

// bad sets the reason why an instruction is invalid, and returns false.
func (m *machine) bad(what string) bool {
	m.what = what
	return false
}

// advance moves the location by a number of code units. If the location would overflow, it becomes the last address.
func (m *machine) advance(delta uint64) bool {
	if m.inCIE {
		return m.bad("location advanced in a CIE")
	}
	high, low := bits.Mul64(delta, m.cie.codeAlign)
	loc, carry := bits.Add64(m.loc, low, 0)
	if high != 0 || carry != 0 {
		loc = ^uint64(0)
	}
	m.loc = loc
	return true
}

// setLocation moves the location to an address. The address must not be lower than the location.
func (m *machine) setLocation() bool {
	sec := &m.table.sections[m.section]
	loc := m.table.pointer(&m.r, m.cie.fdeEnc, bases{section: sec.Addr, data: m.table.data})
	if m.inCIE || loc < m.loc {
		return m.bad("location set backwards")
	}
	m.loc = loc
	return true
}

// remember pushes the current row onto the stack of saved states.
func (m *machine) remember() bool {
	if m.depth == maxRemembered {
		return m.bad("too many remembered states")
	}
	if m.depth == len(m.saved) {
		m.saved = append(m.saved, state{})
	}
	m.saved[m.depth].copyFrom(&m.now)
	m.depth++
	return true
}

// recall replaces the current row, including the CFA's rule, by the last saved state, and removes this state from the
// stack.
func (m *machine) recall() bool {
	if m.depth == 0 {
		return m.bad("no remembered state to restore")
	}
	m.depth--
	m.now.copyFrom(&m.saved[m.depth])
	return true
}
