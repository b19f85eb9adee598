package plan

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm"
)

// speculated is a call through PlanState.ExecProcNode that the compiler has split in two (gcc 16 does). It expects the
// function that the same source file stores in the field. The code compares the field with the address of this function. If
// they are equal, it calls the function directly, or has its body in place of the call. Otherwise it calls by the register.
type speculated struct {
	function uint64 // the expected function; 0 if unknown
	// direct and register are the return addresses of the direct call and of the call by the register, 0 if unknown.
	// body is set if the code for equal addresses is not a call, and so may be the body of the function.
	direct, register uint64
	body             bool
	// own is set if the structure with the field is proven to be the first argument of the call.
	own bool
}

// isCall reports whether an address is the return address of one of the two calls.
func (s *speculated) isCall(pc uint64) bool { return pc != 0 && (pc == s.direct || pc == s.register) }

// speculatedCalls returns the split calls (see speculated) in the function of frame k.
func (r *reader) speculatedCalls(k int) []speculated {
	const span = 8 << 10
	f := &r.stack.Frames[k]
	if f.Exact || f.Start == 0 || f.Start >= f.PC || !within(r.stack.Code, f.PC) {
		return nil
	}
	if known, ok := r.splits[f.PC]; ok {
		return known
	}
	from, to := max(f.Start, f.PC-min(f.PC, span)), max(f.PC, min(f.End, f.PC+span))
	c := code{base: from, bytes: make([]byte, to-from)}
	var out []speculated
	if r.read(from, c.bytes) {
		field := r.PlanState.ExecProcNode.Int()
		for at := from; at < to; at++ {
			switch {
			case r.stack.X86:
				if s, ok := c.x86(at, field); ok {
					out = append(out, s)
				}
			case r.stack.A64 && at%a64Length == 0:
				if s, ok := c.a64(at, field); ok {
					out = append(out, s)
				}
			}
		}
	}
	if r.splits == nil {
		r.splits = map[uint64][]speculated{}
	}
	r.splits[f.PC] = out
	return out
}

// code is a copy of instructions.
type code struct {
	base  uint64
	bytes []byte
}

// from returns the copied bytes from an address to the end of the copy; nil if the address is not in it.
func (c *code) from(addr uint64) []byte {
	if addr < c.base || addr-c.base > uint64(len(c.bytes)) {
		return nil
	}
	return c.bytes[addr-c.base:]
}

// x86 returns the split call that begins at an address: mov field(%base),%target; cmp ?,%target; je or jne. It returns
// false if there is none.
func (c *code) x86(at uint64, field int) (s speculated, ok bool) {
	const rexW, rexMask, load, shortest, most = 0x48, 0xfa, 0x8b, 5, 8
	if b := c.from(at); len(b) < shortest || b[0]&rexMask != rexW || b[1] != load || b[2]&0xc0 != 0x40 ||
		int(b[3]) != field && int(b[4]) != field {
		return s, false
	}
	first, at := c.decode(at)
	source, _ := first.Args[1].(x86asm.Mem)
	target, _ := first.Args[0].(x86asm.Reg)
	if first.Op != x86asm.MOV || source.Disp != int64(field) || source.Index != 0 || source.Segment != 0 {
		return s, false
	}
	s.own = source.Base == x86asm.RDI
	addresses := map[x86asm.Arg]uint64{} // by register
	compared := false
	for range most {
		x, next := c.decode(at)
		switch {
		case x.Op == x86asm.CMP && (x.Args[0] == target || x.Args[1] == target):
			s.function, compared = max(addresses[x.Args[0]], addresses[x.Args[1]]), true
		case compared && (x.Op == x86asm.JE || x.Op == x86asm.JNE):
			there, relative := x.Args[0].(x86asm.Rel)
			equal, other := next, next+uint64(there) // a negative distance wraps
			if x.Op == x86asm.JE {
				equal, other = other, equal
			}
			if !relative || !s.byRegister(c, other, source.Base, target) {
				return s, false
			}
			s.directly(c, equal, source.Base)
			return s, true
		case x.Op == x86asm.LEA && x.Args[0] != target:
			if m, _ := x.Args[1].(x86asm.Mem); m.Base == x86asm.RIP {
				addresses[x.Args[0]] = next + uint64(int64(int32(m.Disp))) // the decoder does not extend the sign
			}
		case x.Op == x86asm.MOV && x.Args[0] != target:
			s.passes(x, source.Base)
		default:
			return s, false
		}
		at = next
	}
	return s, false
}

// passes sets own if an instruction makes the structure, whose address is in base, the first argument.
func (s *speculated) passes(x x86asm.Inst, base x86asm.Reg) {
	s.own = s.own || x.Op == x86asm.MOV && x.Args[0] == x86asm.RDI && x.Args[1] == base
}

// byRegister finds the call by the register, in the code for unequal addresses.
func (s *speculated) byRegister(c *code, at uint64, base, target x86asm.Reg) bool {
	const most = 4
	for range most {
		x, next := c.decode(at)
		switch {
		case x.Op == x86asm.CALL:
			s.register = next
			return x.Args[0] == target
		case x.Op == x86asm.MOV && x.Args[0] != target:
			s.passes(x, base)
		default:
			return false
		}
		at = next
	}
	return false
}

// directly finds the direct call of the expected function, in the code for equal addresses.
func (s *speculated) directly(c *code, at uint64, base x86asm.Reg) {
	const most = 6
	for range most {
		x, next := c.decode(at)
		switch x.Op {
		case x86asm.CALL:
			there, relative := x.Args[0].(x86asm.Rel)
			called := next + uint64(there) // a negative distance wraps
			if s.function == 0 {
				s.function = called
			}
			s.direct = next
			s.body = !relative || called != s.function && c.jump(s.function) != called
			return
		case x86asm.MOV, x86asm.LEA:
			s.passes(x, base)
		default:
			s.body = true
			return
		}
		at = next
	}
	s.body = true
}

// jump returns the address to which a function jumps after it has only set arguments; 0 for other functions.
func (c *code) jump(function uint64) uint64 {
	const most = 6
	at := function
	for range most {
		x, next := c.decode(at)
		switch x.Op {
		case x86asm.JMP:
			there, relative := x.Args[0].(x86asm.Rel)
			if !relative {
				return 0
			}
			return next + uint64(there) // a negative distance wraps
		case x86asm.MOV, x86asm.LEA, x86asm.NOP:
		default:
			return 0
		}
		at = next
	}
	return 0
}

// decode returns the instruction at an address, and the address of the next instruction. If the bytes are no
// instruction, x is empty and next is the same address.
func (c *code) decode(at uint64) (x x86asm.Inst, next uint64) {
	b := c.from(at)
	if len(b) == 0 {
		return x, at
	}
	x, err := disasm.DecodeX86(b)
	if err != nil {
		return x86asm.Inst{}, at
	}
	return x, at + uint64(x.Len) // not negative
}

// a64 returns the split call that begins at an address: ldr target, [base, field]; cmp target, ?; a branch by a
// condition. It returns false if there is none. It never sets own.
func (c *code) a64(at uint64, field int) (s speculated, ok bool) {
	const most, compare, compareMask, branch, branchMask, unused, low = 8, 0xeb00001f, 0xffe0fc1f, 0x54000000, 0xff000010, 8, 5
	b := c.from(at)
	words := wordsA64(b[:min((most+1)*a64Length, len(b))])
	if len(words) == 0 || words[0]&^0x3ff != a64Load|uint32(field)/wordSize<<10 { // an offset fits
		return s, false
	}
	target := words[0] & 0x1f
	compared := false
	for _, w := range words[1:] {
		at += a64Length
		switch {
		case w&compareMask == compare && (w>>5&0x1f == target || w>>16&0x1f == target):
			compared = true
		case compared && w&branchMask == branch:
			there := at + uint64(int64(int32(w<<unused)>>(unused+low))*a64Length) // signed, of 19 bits
			s.direct, s.register = c.firstCallA64(at+a64Length), c.firstCallA64(there)
			s.body = s.direct == 0 || s.register == 0
			return s, true
		case w&a64BranchMask == a64Branch, w&0x1f == target:
			return s, false
		}
	}
	return s, false
}

// firstCallA64 returns the return address of the first call from an address on, 0 if a branch comes before it.
func (c *code) firstCallA64(at uint64) uint64 {
	const most = 8
	b := c.from(at)
	for _, w := range wordsA64(b[:min(most*a64Length, len(b))]) {
		at += a64Length
		switch {
		case w&a64CallMask == a64Call, w&a64ByMask == a64CallBy:
			return at
		case w&a64BranchMask == a64Branch:
			return 0
		}
	}
	return 0
}
