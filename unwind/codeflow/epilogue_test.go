package codeflow_test

import (
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/codeflow"
	"pg_stat_backtrace/unwind/disasm"
)

// Register numbers of arch.AMD64.
const (
	rbx = 3
	rbp = 6
	rsp = 7
	r12 = 12
	rip = 16
)

const (
	start = 0x1000   // of the code
	sp    = 0x7f0000 // of the frame
)

// begin is where the code begins, to which a call returns.
var begin = codeflow.Place{Addr: start}

// stack is memory where each word from sp on is its own address with a mark.
type stack struct{ end uint64 }

const mark = 1 << 60

func (s stack) Word(addr uint64) (uint64, bool) {
	return addr | mark, addr >= sp-64 && addr < s.end && addr%8 == 0
}

// code is a sequence of instructions at the address start. Call frame information covers the code behind them.
type code struct {
	bytes []byte
	entry bool   // the return address is on top of the stack there
	end   uint64 // of a function, 0: not known
	// stubs are the stubs of functions of other images. The value is true if the function returns.
	stubs map[uint64]bool
}

func (c code) Bytes(addr uint64) []byte {
	if addr < start || addr-start >= uint64(len(c.bytes)) {
		return nil
	}
	return c.bytes[addr-start:]
}

func (c code) Covered(addr uint64) (covered, entry bool) {
	behind := addr >= start+uint64(len(c.bytes))
	return behind, behind && c.entry
}

func (c code) Ends(addr uint64) bool { return c.end != 0 && addr == c.end }

func (c code) Stub(addr uint64) bool {
	_, known := c.stubs[addr]
	return known
}

func (c code) Returns(entry uint64) (returns, known bool) {
	returns, known = c.stubs[entry]
	return returns, known
}
func (c code) Remember(uint64, bool) {}

// plenty is a budget that is not used up.
func plenty() *int {
	n := 1 << 20
	return &n
}

// Instructions.
var (
	push, pop   = []byte{0x53}, []byte{0x5b} // rbx
	popFP       = []byte{0x5d}
	sub40       = []byte{0x48, 0x83, 0xec, 0x28}
	add40       = []byte{0x48, 0x83, 0xc4, 0x28}
	ret         = []byte{0xc3}
	leave       = []byte{0xc9}
	trap        = []byte{0x0f, 0x0b}
	halt        = []byte{0xf4}
	callRAX     = []byte{0xff, 0xd0}
	jumpRAX     = []byte{0xff, 0xe0}
	jumpMemory  = []byte{0xff, 0x25, 0, 0, 0, 0}
	jumpTable   = []byte{0xff, 0x24, 0xc2}             // jmp *[rdx+rax*8]
	loadRBX     = []byte{0x48, 0x8b, 0x5c, 0x24, 0x08} // mov rbx, [rsp+8]
	storeRBX    = []byte{0x48, 0x89, 0x5c, 0x24, 0x08}
	storeEAX    = []byte{0x89, 0x44, 0x24, 0x08}
	changeRBX   = []byte{0x89, 0xc3} // mov ebx, eax
	swap        = []byte{0x48, 0x93} // xchg rax, rbx
	cpuid       = []byte{0x0f, 0xa2}
	vzeroupper  = []byte{0xc5, 0xf8, 0x77}
	vmovups     = []byte{0xc5, 0xf8, 0x11, 0x44, 0x24, 0x08} // to rsp+8
	noCode      = []byte{0x06}
	mulxRBX     = []byte{0xc4, 0xe2, 0xe3, 0xf6, 0xc1} // mulx rcx, rbx, rax
	alignSP     = []byte{0x48, 0x83, 0xe4, 0xf0}
	spFromR12   = []byte{0x4c, 0x89, 0xe4}
	spFromRAX   = []byte{0x48, 0x89, 0xc4}
	spBelowFP   = []byte{0x48, 0x8d, 0x65, 0xf8} // lea rsp, [rbp-8]
	endbr       = []byte{0xf3, 0x0f, 0x1e, 0xfa}
	storeGlobal = []byte{0xc6, 0x05, 0, 0, 0, 0, 1}
)

func jump(by int8) []byte   { return []byte{0xeb, byte(by)} }
func branch(by int8) []byte { return []byte{0x74, byte(by)} }
func call(by int32) []byte {
	return []byte{0xe8, byte(by), byte(by >> 8), byte(by >> 16), byte(by >> 24)}
}

// Sources of a caller's register, in addition to places in the stack relative to sp.
const (
	same = -1
	lost = -2
)

// follow is code that is followed from its beginning. cfa is the caller's stack pointer, relative to sp. fp and bx
// are the sources of RBP and RBX.
type follow struct {
	name        string
	code        []byte
	cfa, fp, bx int
	err         error
}

func follows() []follow {
	cat := slices.Concat[[]byte]
	return []follow{
		{"at its end", ret, 8, same, same, nil},
		{"at its beginning", cat(endbr, push, sub40, callRAX, add40, pop, ret), 8, same, same, nil},
		{"before the call", cat(callRAX, add40, ret), 48, same, same, nil},
		{"saved registers", cat(pop, popFP, ret), 24, 8, 0, nil},
		{"frame pointer", cat(callRAX, leave, ret), 0x110, 0x100, same, nil},
		{"by the frame pointer", cat(spBelowFP, pop, popFP, ret), 0x110, 0x100, 0xf8, nil},
		{"a return that takes arguments", []byte{0xc2, 16, 0}, 24, same, same, nil},
		{"stored and loaded again", cat(storeRBX, changeRBX, loadRBX, ret), 8, same, same, nil},
		{"what was loaded was overwritten", cat(storeEAX, loadRBX, ret), 8, same, lost, nil},
		{"changed", cat(changeRBX, ret), 8, same, lost, nil},
		{"changed by exchange", cat(swap, ret), 8, same, lost, nil},
		{"changed unnamed", cat(cpuid, ret), 8, same, lost, nil},
		{"another stack pointer kept in a register", cat(alignSP, callRAX, spFromR12, ret), 0x208, same, same, nil},
		{"a store to a variable", cat(storeGlobal, ret), 8, same, same, nil},
		{"two ways", cat(branch(2), pop, ret, pop, ret), 16, same, 0, nil},
		{"two ways, one with a register lost", cat(branch(3), changeRBX, ret, ret), 8, same, lost, nil},
		{"two ways that do not agree", cat(branch(1), pop, ret), 0, 0, 0, codeflow.ErrAmbiguous},
		{"two ways to one return that do not agree", cat(branch(5), add40, ret, pop, jump(-4)), 0, 0, 0,
			codeflow.ErrAmbiguous},
		{"a loop", cat(branch(-2), ret), 8, same, same, nil},
		{"a loop that changes a register", cat(branch(2), ret, []byte{0x90}, changeRBX, jump(-8)), 8, same, lost, nil},
		{"a loop of pushes", cat(push, branch(-3), ret), 0, 0, 0, codeflow.ErrAmbiguous},
		{"one way ends in a trap", cat(branch(2), trap, add40, ret), 48, same, same, nil},
		{"one way is not known", cat(branch(2), jumpRAX, add40, ret), 48, same, same, nil},
		{"one way is not decoded", cat(branch(1), noCode, ret), 8, same, same, nil},
		{"no code", cat(noCode, ret), 0, 0, 0, disasm.ErrX86Code},
		{"what was loaded was overwritten by a vector", cat(vmovups, loadRBX, ret), 8, same, lost, nil},
		{"vector instructions", cat(vzeroupper, mulxRBX, ret), 8, same, lost, nil},
		{"the stack pointer is lost", cat(spFromRAX, ret), 0, 0, 0, codeflow.ErrNoReturn},
		{"through a register", jumpRAX, 0, 0, 0, codeflow.ErrNoReturn},
		{"nothing but a trap", trap, 0, 0, 0, codeflow.ErrNeverReturns},
		{"an endless loop", jump(-2), 0, 0, 0, codeflow.ErrNeverReturns},
		{"into covered code", push, 0, 0, 0, codeflow.ErrNoReturn},
		{"behind a call of what never returns", cat(call(1), ret, halt), 0, 0, 0, codeflow.ErrNeverReturns},
		{"behind a call of what calls such", cat(call(1), ret, call(1), ret, halt), 0, 0, 0, codeflow.ErrNeverReturns},
		{"behind a call of what may return", cat(call(1), ret, branch(1), halt, ret), 8, same, same, nil},
		{"behind a call of itself", cat(call(-5), ret), 8, same, same, nil},
		{"the return address is not known", cat(bytesOf(add40, 20), ret), 0, 0, 0, codeflow.ErrMemory},
	}
}

func TestFollow(t *testing.T) {
	for _, tt := range follows() {
		t.Run(tt.name, func(t *testing.T) {
			var regs arch.Registers
			for reg, v := range map[int]uint64{rsp: sp, rbp: sp + 0x100, rbx: 0xb, r12: sp + 0x200} {
				regs.Set(reg, v)
			}
			got, err := codeflow.Follow(arch.AMD64, code{bytes: tt.code}, begin, regs, stack{sp + 0x300}, plenty())
			if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			want := func(reg, from int, before uint64) {
				v, known := got.Get(reg)
				switch {
				case from == lost && known, from == same && v != before, from >= 0 && v != uint64(sp+from)|mark:
					t.Errorf("register %d: %#x, known: %t", reg, v, known)
				}
			}
			want(rip, tt.cfa-8-len16(tt.code), 0)
			want(rbp, tt.fp, sp+0x100)
			want(rbx, tt.bx, 0xb)
			if v, _ := got.Get(rsp); v != uint64(sp+tt.cfa) {
				t.Errorf("stack pointer %#x", v)
			}
			if got.Known()&^(1<<rip|1<<rsp|1<<rbp|1<<rbx|1<<r12) != 0 {
				t.Errorf("more registers than a call keeps: %#x", got.Known())
			}
		})
	}
}

// len16 returns the number of bytes that a return pops in addition to the return address.
func len16(code []byte) int {
	if code[0] == 0xc2 {
		return int(code[1])
	}
	return 0
}

func bytesOf(p []byte, times int) []byte { return slices.Repeat(p, times) }

// TestJumpToFunctionIsReturn checks that a jump to the start of a function counts as a return if call frame
// information marks the start.
func TestJumpToFunctionIsReturn(t *testing.T) {
	var regs arch.Registers
	regs.Set(rsp, sp)
	for _, entry := range []bool{true, false} {
		where := code{bytes: slices.Concat(pop, jump(0)), entry: entry}
		got, err := codeflow.Follow(arch.AMD64, where, begin, regs, stack{sp + 64}, plenty())
		want, wrong := uint64(sp+16), error(nil)
		if !entry {
			want, wrong = 0, codeflow.ErrNoReturn
		}
		if v, _ := got.Get(rsp); v != want || !errors.Is(err, wrong) {
			t.Errorf("entry %t: %#x, %v", entry, v, err)
		}
	}
}

// TestFallsInto checks code that falls through into the next function. This counts if no call is on the way that
// would have to return first.
func TestFallsInto(t *testing.T) {
	var regs arch.Registers
	regs.Set(rsp, sp)
	cat := slices.Concat[[]byte]
	for _, tt := range []struct {
		name         string
		code         []byte
		exact, entry bool
		err          error
	}{
		{"the processor stands there", pop, true, true, nil},
		{"it would if a call returned", pop, false, true, codeflow.ErrNoReturn},
		{"behind a call", cat(callRAX, pop), true, true, codeflow.ErrNoReturn},
		{"behind a call on one of two ways", cat(branch(2), callRAX, pop), true, true, nil},
		{"and that one first", cat(branch(2), jump(2), callRAX, pop), true, true, nil},
		{"into the middle of a function", pop, true, false, codeflow.ErrNoReturn},
	} {
		where := code{bytes: tt.code, entry: tt.entry}
		got, err := codeflow.Follow(arch.AMD64, where, codeflow.Place{Addr: start, Exact: tt.exact}, regs,
			stack{sp + 64}, plenty())
		want := uint64(sp + 16)
		if tt.err != nil {
			want = 0
		}
		ra, _ := got.Get(rip)
		if v, _ := got.Get(rsp); v != want || !errors.Is(err, tt.err) || err == nil && ra != (sp+8)|mark {
			t.Errorf("%s: %#x, %#x, %v", tt.name, v, ra, err)
		}
	}
}

// TestEnds checks that a call at a function's end never returns, whatever it calls: another function is behind it.
func TestEnds(t *testing.T) {
	var regs arch.Registers
	regs.Set(rsp, sp)
	p := slices.Concat(branch(2), callRAX, add40, ret) // a trap or a way behind the call
	for _, end := range []uint64{0, start + 4, start + 5} {
		got, err := codeflow.Follow(arch.AMD64, code{bytes: p, end: end}, begin, regs, stack{sp + 64}, plenty())
		if v, _ := got.Get(rsp); v != sp+48 || err != nil {
			t.Errorf("%#x: %#x, %v", end, v, err)
		}
	}
	for _, tt := range []struct {
		name string
		code []byte
		end  uint64
		err  error
	}{
		{"another function behind it", slices.Concat(callRAX, pop, ret), start + 2, codeflow.ErrNeverReturns},
		{"the same one", slices.Concat(callRAX, pop, ret), start + 3, nil},
		{"on one of two ways", slices.Concat(branch(2), callRAX, pop, ret), start + 4, nil},
		{"in what is called", slices.Concat(call(1), ret, callRAX, ret), start + 8, codeflow.ErrNeverReturns},
		{"an instruction that is no call", slices.Concat(pop, ret), start + 1, nil},
	} {
		_, err := codeflow.Follow(arch.AMD64, code{bytes: tt.code, end: tt.end}, begin, regs, stack{sp + 64}, plenty())
		if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestStubs checks calls and jumps to functions of other images whose properties are known.
func TestStubs(t *testing.T) {
	var regs arch.Registers
	regs.Set(rsp, sp)
	const returning, never = 0x2000, 0x3000
	to := func(at int, target int32) []byte {
		return slices.Concat([]byte{0xe9}, call(target - start - int32(at) - 5)[1:])
	}
	calls := func(at int, target int32) []byte { return call(target - start - int32(at) - 5) }
	for _, tt := range []struct {
		name string
		code []byte
		cfa  uint64
		err  error
	}{
		{"a call that returns", slices.Concat(calls(0, returning), pop, ret), 16, nil},
		{"one that does not", slices.Concat(calls(0, never), pop, ret), 0, codeflow.ErrNeverReturns},
		{"on one of two ways", slices.Concat(branch(5), calls(2, never), pop, ret), 16, nil},
		{"it goes on in another image", slices.Concat(pop, to(1, returning)), 16, nil},
		{"for ever", slices.Concat(pop, to(1, never)), 0, codeflow.ErrNeverReturns},
		{"for ever, on one of two ways", slices.Concat(branch(5), to(2, never), pop, ret), 16, nil},
		{
			"a call of what goes on for ever in another image",
			slices.Concat(call(1), ret, to(6, never)), 0, codeflow.ErrNeverReturns,
		},
		{"a call of what goes on in another image", slices.Concat(call(1), ret, to(6, returning)), 8, nil},
		{"it goes on by way of memory", slices.Concat(pop, jumpMemory), 16, nil},
		{"for ever, by way of memory", slices.Concat(pop, pop, jumpMemory), 0, codeflow.ErrNeverReturns},
		{"it stands where that is done", jumpMemory, 8, nil},
		{"by way of a variable", slices.Concat(pop, pop, pop, jumpMemory), 32, nil},
		{"by way of a table", slices.Concat(pop, pop, pop, jumpTable), 0, codeflow.ErrNoReturn},
	} {
		stubs := map[uint64]bool{returning: true, never: false, start: false, start + 1: true, start + 2: false}
		where := code{bytes: tt.code, stubs: stubs}
		got, err := codeflow.Follow(arch.AMD64, where, begin, regs, stack{sp + 64}, plenty())
		if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if v, _ := got.Get(rsp); err == nil && v != sp+tt.cfa {
			t.Errorf("%s: %#x", tt.name, v)
		}
	}
}

// TestBounds checks that following endless code ends.
func TestBounds(t *testing.T) {
	var regs, without arch.Registers
	regs.Set(rsp, sp)
	nops := func(n int) []byte { return append(slices.Repeat([]byte{0x90}, n), ret...) }
	for _, tt := range []struct {
		name   string
		regs   arch.Registers
		code   []byte
		budget int
		err    error
	}{
		{"a way that is too long", regs, nops(1 << 15), 1 << 20, codeflow.ErrTooLong},
		{"a budget that is used up", regs, nops(10), 2, codeflow.ErrTooLong},
		{"more pushes than are remembered", regs, append(bytesOf(push, 200), ret...), 1 << 20, codeflow.ErrNoReturn},
		{"no stack pointer", without, ret, 1 << 20, codeflow.ErrNoReturn},
	} {
		left := tt.budget
		_, err := codeflow.Follow(arch.AMD64, code{bytes: tt.code}, begin, tt.regs, stack{sp + 64}, &left)
		if !errors.Is(err, tt.err) ||
			left < 0 || errors.Is(tt.err, codeflow.ErrTooLong) && left == tt.budget {
			t.Errorf("%s: %v, %d of %d left", tt.name, err, left, tt.budget)
		}
	}
}

// TestStraight checks the limits of a straight line. It has a limited length and no jumps. It has no calls except one
// at its end, unless the calls are known to return.
func TestStraight(t *testing.T) {
	t.Parallel()
	call := []byte{0xe8, 0, 0, 0, 0}
	for _, tt := range []struct {
		name string
		code []byte
		pc   uint64
		back bool // calls return
		want bool
	}{
		{"at the start", ret, start, false, true},
		{"before the start", ret, start - 1, false, false},
		{"behind a call", slices.Concat(push, call, ret), start + 6, false, true},
		{"behind two", slices.Concat(call, call, ret), start + 10, false, false},
		{"behind two that return", slices.Concat(push, call, push, call, ret), start + 12, true, true},
		{"farther on", slices.Concat(call, call, push, ret), start + 11, true, true},
		{"behind a jump and a call", slices.Concat(jump(0), call), start + uint64(len(jump(0))) + 5, true, false},
		{"within an instruction", slices.Concat(push, call, ret), start + 3, false, false},
		{"behind a return", slices.Concat(ret, call, ret), start + 6, false, false},
		{"behind a branch", slices.Concat(branch(0), call, ret), start + uint64(len(branch(0))) + 5, false, false},
		{"far away", slices.Repeat([]byte{0x90}, 200), start + 199, false, false},
		{"where no code is", push, start + 2, false, false},
	} {
		if got := codeflow.Straight(arch.AMD64, code{bytes: tt.code}, start, tt.pc, tt.back); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if codeflow.Straight(arch.PPC64LE, code{bytes: ret}, start, start, false) {
		t.Error("an architecture whose instructions are not followed")
	}
}

// FuzzFollow checks that following ends for any code, and that a result has a program counter and a stack pointer.
func FuzzFollow(f *testing.F) {
	for _, p := range [][]byte{ret, slices.Concat(pop, popFP, ret), slices.Concat(branch(1), pop, ret), jump(-2)} {
		f.Add(p, uint64(sp), uint64(0x7f0100))
	}
	f.Fuzz(func(t *testing.T, p []byte, top, fp uint64) {
		var regs arch.Registers
		regs.Set(rsp, top)
		regs.Set(rbp, fp)
		got, err := codeflow.Follow(arch.AMD64, code{bytes: p, entry: true}, begin, regs, stack{sp + 0x300}, plenty())
		const both = 1<<rip | 1<<rsp
		if err == nil && got.Known()&both != both {
			t.Errorf("%#x", got.Known())
		}
		if row, err := codeflow.Derive(arch.AMD64, code{bytes: p, entry: true}, begin, plenty()); err == nil {
			got, err := row.Apply(arch.AMD64, &regs, stack{sp + 0x300})
			if err == nil && got.Known()&both != both {
				t.Errorf("by the row: %#x", got.Known())
			}
		}
	})
}
