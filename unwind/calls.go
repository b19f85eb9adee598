package unwind

import (
	"encoding/binary"

	"pg_stat_backtrace/unwind/a64"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/insn"
	"pg_stat_backtrace/unwind/rv64"
	"pg_stat_backtrace/unwind/zarch"
)

// instructionSets tells for each how long a call is at most, in bytes, how one is recognised, and how a stub of the
// procedure linkage table is, and the place that has the address that it goes to.
//
//nolint:gochecknoglobals // a table
var instructionSets = [...]struct {
	longest uint64
	before  func(p []byte, ra uint64) (called, direct bool, target uint64)
	stub    func(c *bareCode, addr uint64) (slot uint64, ok bool)
}{
	arch.Unfollowed: {},
	arch.X86:        {7, x86Call, x86Stub}, // an opcode, ModRM, SIB and four bytes of displacement
	arch.A64:        {a64.Length, plainCall(a64.Decode, a64.Length), a64Stub},
	arch.ZArch:      {zarch.Longest, plainCall(zarch.Decode, zarch.Longest, 4, 2), relativeStub(zarch.Decode)},
	arch.RV64:       {rv64.Longest, plainCall(rv64.Decode, rv64.Longest, 2), relativeStub(rv64.Decode)},
}

// calls judges whether the instruction before a return address can have called
// the function at entry (0: any). Refuted: it is no call, or the call of
// another function, which does not go on as this one.
func (w *walk) calls(ra, entry uint64) verdict {
	module, ok := w.modules.Find(ra - 1)
	if !ok {
		return refuted
	}
	if module.Code == nil {
		return undecided
	}
	if entry == 0 {
		if called, known := module.Told.called(ra - module.Bias); known {
			return called
		}
	}
	set := &instructionSets[w.arch.Instructions]
	p, err := module.Code.Code(ra-set.longest-module.Bias, set.longest)
	if err != nil || set.before == nil {
		return undecided
	}
	called, direct, target := set.before(p, ra)
	if entry == 0 {
		return module.Told.keepCalled(ra-module.Bias, called)
	}
	if called && (!direct || target == entry || w.goesOn(target)) {
		return proven
	}
	return refuted
}

// x86Call reports whether the code before an address ends with a call, and what it calls if it says so itself.
func x86Call(p []byte, ra uint64) (called, direct bool, target uint64) {
	switch {
	case endsIndirectCall(p):
		return true, false, 0
	case p[2] != 0xe8:
		return false, false, 0
	}
	return true, true, ra + uint64(int64(int32(binary.LittleEndian.Uint32(p[3:]))))
}

// plainCall does so for instructions that package insn describes, whose calls have the given lengths in bytes.
func plainCall(
	decode func(p []byte) (insn.Instruction, error), lengths ...uint64,
) func(p []byte, ra uint64) (called, direct bool, target uint64) {
	return func(p []byte, ra uint64) (called, direct bool, target uint64) {
		for _, length := range lengths {
			x, err := decode(p[uint64(len(p))-length:])
			if err == nil && x.Length == length && x.Flow == insn.Call {
				return true, x.Direct, ra - length + uint64(x.Target)
			}
		}
		return false, false, 0
	}
}

// endsIndirectCall tells whether the bytes can end with a call through a
// register or memory: FF /2 (Intel SDM, CALL).
func endsIndirectCall(p []byte) bool {
	for at := 1; at < len(p); at++ {
		opcode, modRM := p[at-1], p[at]
		if opcode != 0xff || modRM>>3&7 != 2 {
			continue
		}
		mod, rm, length := modRM>>6, modRM&7, 2
		if mod != 3 && rm == 4 {
			length++
			if at+1 < len(p) && mod == 0 && p[at+1]&7 == 5 {
				length += 4
			}
		}
		switch {
		case mod == 1:
			length++
		case mod == 2, mod == 0 && rm == 5:
			length += 4
		}
		if at-1+length == len(p) {
			return true
		}
	}
	return false
}

// goesOn reports whether the function at an address may go on as another one
// without calling it, or cannot be seen not to.
func (w *walk) goesOn(addr uint64) bool {
	module, ok := w.modules.Find(addr)
	if !ok || module.Code == nil || module.CFI == nil || !w.arch.Decoded {
		return true
	}
	fde, err := module.CFI.Find(addr - module.Bias)
	if err != nil {
		return true
	}
	f, err := function(w.arch, module, fde.Start, fde.End)
	if err != nil {
		return true
	}
	leaves, err := f.Leaves()
	return err != nil || leaves
}
