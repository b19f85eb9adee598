package codeflow

import "pg_stat_backtrace/unwind/disasm"

// plainly makes a decode function for machine from a decoder of package disasm.
func plainly(decode func(p []byte) (disasm.Instruction, error)) func(p []byte, addr uint64, out *instruction) error {
	return func(p []byte, addr uint64, out *instruction) error {
		x, err := decode(p)
		if err != nil {
			return err
		}
		out.plain = x
		out.next = addr + x.Length
		out.flow, out.to = flows[x.Flow], 0
		if x.Direct {
			out.to = addr + uint64(x.Target)
		}
		return nil
	}
}

//nolint:gochecknoglobals // a table
var flows = [...]flow{
	disasm.Next: on, disasm.Jump: jump, disasm.Branch: branch, disasm.Call: calls, disasm.Return: returns,
	disasm.Ends: ends, disasm.Unknown: lost,
}

// linkedAddress is a machine.returnsTo. For a return instruction, the return address is in the register that the
// instruction names. After a jump to another function, it is in the link register.
func linkedAddress(m *machine, s *state, _ Memory, x *instruction) (ra, sp uint64, ok bool) {
	link := m.link
	if x.flow == returns {
		link = x.plain.Rn
	}
	ra, ok = s.regs.Get(link)
	sp, _ = s.regs.Get(m.sp)
	return ra, sp, ok
}

// changePlain is a machine.change for instructions of package disasm.
func changePlain(s *state, mem Memory, at *instruction) bool {
	x := &at.plain
	if x.Access.Size > 0 {
		return s.access(mem, x)
	}
	value, known := s.computed(x)
	for reg := range disasm.Registers {
		if x.Writes>>reg&1 != 0 {
			s.regs.Clear(reg)
		}
	}
	if x.Op != disasm.Other && x.Rd != disasm.None {
		s.set(x.Rd, value, known)
	}
	return true
}

// computed returns the value that an instruction writes to its register Rd. The boolean result is false if the value is
// unknown.
func (s *state) computed(x *disasm.Instruction) (uint64, bool) {
	if x.Op == disasm.Set {
		return x.Imm, true
	}
	a, known := s.regs.Get(x.Rn)
	b, also := uint64(0), true
	if x.Op == disasm.AddRegister || x.Op == disasm.SubRegister {
		b, also = s.regs.Get(x.Rm)
	}
	known = known && also
	switch x.Op {
	case disasm.Add:
		return a + x.Imm, known
	case disasm.AddRegister:
		return a + b<<x.Imm, known
	case disasm.SubRegister:
		return a - b<<x.Imm, known
	case disasm.And:
		return a & x.Imm, known
	case disasm.Insert:
		return a&^(0xffff<<x.Shift) | x.Imm<<x.Shift, known
	case disasm.Other, disasm.Set, disasm.Page:
	}
	return 0, false
}

// access applies the effect of loads and stores.
func (s *state) access(mem Memory, x *disasm.Instruction) bool {
	m := &x.Access
	base, known := s.regs.Get(m.Base)
	addr := base
	if m.Index != disasm.Post {
		addr += uint64(m.Disp)
	}
	var loaded [len(m.Whole)]uint64
	var found [len(m.Whole)]bool
	for i := range m.Count {
		// By assumption, an unknown address is not in this frame.
		if m.Load && known && m.Known {
			loaded[i], found[i] = s.word(mem, addr+uint64(i)*slot)
		}
	}
	if m.Store && known && m.Known && !s.storeAll(m, addr) {
		return false
	}
	for reg := range disasm.Registers {
		if x.Writes>>reg&1 != 0 {
			s.regs.Clear(reg)
		}
	}
	for i, reg := range m.Whole {
		if m.Load && i < m.Count && reg != disasm.None {
			s.set(reg, loaded[i], found[i])
		}
	}
	if m.Index != disasm.Offset && m.Base != disasm.None {
		s.set(m.Base, base+uint64(m.Disp), known)
	}
	return true
}

// storeAll records the values that a store instruction writes. The result is false if the state then has more than
// maxStores writes.
func (s *state) storeAll(m *disasm.Access, addr uint64) bool {
	if m.Count == 0 {
		return s.write(store{addr: addr, size: m.Size})
	}
	for i, reg := range m.Whole[:m.Count] {
		value, known := uint64(0), true
		if reg != disasm.None {
			value, known = s.regs.Get(reg)
		}
		if !s.write(store{addr + uint64(i)*slot, slot, value, known}) {
			return false
		}
	}
	return true
}
