package epilogue

import "pg_stat_backtrace/unwind/a64"

const a64PC = 32 // package arch's number

// ofA64 is aarch64: a call leaves the return address in X30.
//
//nolint:gochecknoglobals // a table
var ofA64 = machine{
	pc: a64PC, sp: a64.SP, link: a64.LR,
	// AAPCS64, 6.1.1: calls keep X19 to X29 and SP. X30 holds the return address while a function is entered, and is then
	// the function's.
	scratch:   []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, a64.LR},
	decode:    decodeA64,
	change:    changeA64,
	returnsTo: linkedAddress,
}

func decodeA64(p []byte, addr uint64, out *instruction) error {
	x, err := a64.Decode(p)
	if err != nil {
		return err
	}
	out.a64 = x
	out.next = addr + a64.Length
	out.flow, out.to = a64Flows[x.Flow], 0
	if x.Direct {
		out.to = addr + uint64(x.Target)
	}
	return nil
}

//nolint:gochecknoglobals // a table
var a64Flows = [...]flow{
	a64.Next: on, a64.Jump: jump, a64.Branch: branch, a64.Call: calls, a64.Return: returns,
	a64.Ends: ends, a64.Unknown: lost,
}

// linkedAddress returns from a function: the return address is in the register that the instruction names, and in X30
// where a jump leads to another function.
func linkedAddress(s *state, _ Memory, x *instruction) (ra, sp uint64, ok bool) {
	link := a64.LR
	if x.flow == returns {
		link = x.a64.Rn
	}
	ra, ok = s.regs.Get(link)
	sp, _ = s.regs.Get(a64.SP)
	return ra, sp, ok
}

// changeA64 makes the changes of an instruction that goes on; false if they cannot be followed.
func changeA64(s *state, mem Memory, at *instruction) bool {
	x := &at.a64
	if x.Access.Size > 0 {
		return s.accessA64(mem, x)
	}
	value, known := s.resultA64(x)
	for reg := range a64PC {
		if x.Writes>>reg&1 != 0 {
			s.regs.Clear(reg)
		}
	}
	if x.Op != a64.Other && x.Rd != a64.None {
		s.set(x.Rd, value, known)
	}
	return true
}

// resultA64 is what an instruction computes.
func (s *state) resultA64(x *a64.Instruction) (uint64, bool) {
	if x.Op == a64.Set {
		return x.Imm, true
	}
	a, known := s.regs.Get(x.Rn)
	b, also := uint64(0), true
	if x.Op == a64.AddRegister || x.Op == a64.SubRegister {
		b, also = s.regs.Get(x.Rm)
	}
	known = known && also
	switch x.Op {
	case a64.Add:
		return a + x.Imm, known
	case a64.AddRegister:
		return a + b<<x.Imm, known
	case a64.SubRegister:
		return a - b<<x.Imm, known
	case a64.And:
		return a & x.Imm, known
	case a64.Insert:
		return a&^(0xffff<<x.Shift) | x.Imm<<x.Shift, known
	case a64.Other, a64.Set, a64.Page:
	}
	return 0, false
}

// accessA64 loads and stores registers.
func (s *state) accessA64(mem Memory, x *a64.Instruction) bool {
	m := &x.Access
	base, known := s.regs.Get(m.Base)
	addr := base
	if m.Index != a64.Post {
		addr += uint64(m.Disp)
	}
	var loaded [len(m.Whole)]uint64
	var found [len(m.Whole)]bool
	for i := range m.Count {
		// Where the address is not known, it is no address of this frame's.
		if m.Load && known && m.Known {
			loaded[i], found[i] = s.word(mem, addr+uint64(i)*slot)
		}
	}
	if m.Store && known && m.Known && !s.storeA64(m, addr) {
		return false
	}
	for reg := range a64PC {
		if x.Writes>>reg&1 != 0 {
			s.regs.Clear(reg)
		}
	}
	for i, reg := range m.Whole {
		if m.Load && i < m.Count && reg != a64.None {
			s.set(reg, loaded[i], found[i]) //nolint:gosec // both are as long as m.Whole
		}
	}
	if m.Index != a64.Offset && m.Base != a64.None {
		s.set(m.Base, base+uint64(m.Disp), known)
	}
	return true
}

// storeA64 notes what is stored; false if that is more than can be remembered.
func (s *state) storeA64(m *a64.Access, addr uint64) bool {
	if m.Count == 0 {
		return s.write(store{addr: addr, size: m.Size})
	}
	for i, reg := range m.Whole[:m.Count] {
		value, known := uint64(0), true
		if reg != a64.None {
			value, known = s.regs.Get(reg)
		}
		if !s.write(store{addr + uint64(i)*slot, slot, value, known}) {
			return false
		}
	}
	return true
}
