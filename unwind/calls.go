package unwind

import (
	"encoding/binary"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/codeflow"
	"pg_stat_backtrace/unwind/disasm"
)

// instructionSets defines for each instruction set the maximum length of a call in bytes, and a function that
// recognizes a call. If the walk can follow the instruction set, the table also has a function that recognizes a stub
// of the procedure linkage table. This function returns the address of the word (slot) that contains the stub's target.
//
//nolint:gochecknoglobals // a table
var instructionSets = [...]struct {
	longest uint64
	before  func(p []byte, ra uint64) (called, direct bool, target uint64)
	stub    func(c *bareCode, addr uint64) (slot uint64, ok bool)
}{
	arch.Unfollowed: {},
	arch.X86:        {7, x86Call, x86Stub}, // an opcode, ModRM, SIB and four bytes of displacement
	arch.A64:        {disasm.LengthA64, a64Call, a64Stub},
	arch.RV64:       {rv64Longest, rv64Call, nil},
	arch.ZArch:      {zarchLongest, zarchCall, nil},
}

// calls checks whether the instruction before a return address can have called the function at entry; an entry of 0
// stands for any function. The result is undecided if the code cannot be read, and refuted if the instruction is not a
// call. It is also refuted if the instruction calls another function directly, and that function cannot jump to a
// further function (see goesOn).
func (w *walk) calls(ra, entry uint64) trialResult {
	module, ok := w.find(ra - 1)
	if !ok {
		return refuted
	}
	if module.Code == nil {
		return undecided
	}
	if entry == 0 {
		if called, known := module.CodeCache.called(ra - module.Bias); known {
			return called
		}
	}
	called, direct, target, ok := w.before(&module, ra)
	if !ok {
		return undecided
	}
	if entry == 0 {
		return module.CodeCache.keepCalled(ra-module.Bias, called)
	}
	if called && !direct {
		target, direct = w.loadedTarget(ra, &module)
	}
	if called && (!direct || target == entry || w.goesOn(target)) {
		return proven
	}
	return refuted
}

// call is a call instruction within a function. The field back is its return address. If the field direct is set, the
// field function is the address of the called function.
type call struct {
	back, function uint64
	direct         bool
}

// before checks the instruction right before the address ra. The result called is set if the instruction is a call. The
// result direct is set if it is a direct call, and target is then the called function. ok is false if the code cannot
// be read.
func (w *walk) before(module *Module, ra uint64) (called, direct bool, target uint64, ok bool) {
	set := &instructionSets[w.arch.Instructions]
	if set.before == nil {
		return false, false, 0, false
	}
	p, err := module.Code.Code(ra-set.longest-module.Bias, set.longest)
	if err != nil {
		return false, false, 0, false
	}
	called, direct, target = set.before(p, ra)
	return called, direct, target, true
}

// calledBefore returns the function that the instruction before an address calls. The result direct is false if the
// instruction is no direct call or cannot be read.
func (w *walk) calledBefore(ra uint64) (function uint64, direct bool) {
	const cost = 16 // a read costs as much time as following 16 instructions
	module, ok := w.find(ra - 1)
	if !ok || module.Code == nil {
		return 0, false
	}
	w.instructions -= cost
	_, direct, function, _ = w.before(&module, ra)
	return function, direct
}

// callsIn returns the calls in the function that begins at an address; nil if the function is unknown, too long or
// contains no call.
func (w *walk) callsIn(start uint64) []call {
	if found, known := w.functions[start]; known {
		return found
	}
	set := &instructionSets[w.arch.Instructions]
	var found []call
	if code := w.body(start, codeflow.MaxCode); code != nil && set.before != nil {
		// Zeros in front of the code, so that the bytes before each address have the full length.
		code = append(make([]byte, set.longest, int(set.longest)+len(code)), code...)
		for n := set.longest + 1; n <= uint64(len(code)); n++ {
			back := start + n - set.longest
			if called, direct, function := set.before(code[n-set.longest:n], back); called {
				found = append(found, call{back, function, direct})
			}
		}
	}
	if w.functions == nil {
		w.functions = make(map[uint64][]call)
	}
	w.functions[start] = found
	return found
}

// jumps reports whether the function at start contains a jump to the address to, the beginning of another function.
// Small wrapper functions contain such jumps. It is false for functions of more than 1 KiB, and on architectures other
// than x86-64.
func (w *walk) jumps(start, to uint64) bool {
	const jmp, length = 0xe9, 5 // Intel SDM, JMP rel32
	const most = 1 << 10
	if w.arch.Instructions != arch.X86 || start == to {
		return false
	}
	code := w.body(start, most)
	for n := 0; n+length <= len(code); n++ {
		distance := int64(int32(binary.LittleEndian.Uint32(code[n+1:])))
		if code[n] == jmp && start+uint64(n)+length+uint64(distance) == to {
			return true
		}
	}
	return false
}

// body returns the code of the function that begins at an address. It is nil if no such function is known, if its
// length in bytes exceeds the parameter most, or if the code cannot be read.
func (w *walk) body(start, most uint64) []byte {
	const share = 4 // checking 4 bytes costs as much as following an instruction
	module, ok := w.find(start)
	if !ok || module.Code == nil || module.CFI == nil {
		return nil
	}
	fde, err := module.CFI.Find(start - module.Bias)
	if err != nil || fde.Start != start-module.Bias || fde.End-fde.Start > most {
		return nil
	}
	w.instructions -= int(fde.End-fde.Start) / share
	code, err := module.Code.Code(fde.Start, fde.End-fde.Start)
	if err != nil {
		return nil
	}
	return code
}

// x86Call checks whether p, the code before the return address ra, ends with a call. Its results are as in walk.before.
func x86Call(p []byte, ra uint64) (called, direct bool, target uint64) {
	switch {
	case endsIndirectCall(p):
		return true, false, 0
	case p[2] != 0xe8:
		return false, false, 0
	}
	return true, true, ra + uint64(int64(int32(binary.LittleEndian.Uint32(p[3:]))))
}

// a64Call is like x86Call, but for aarch64.
func a64Call(p []byte, ra uint64) (called, direct bool, target uint64) {
	x, err := disasm.DecodeA64(p)
	if err != nil || x.Flow != disasm.Call {
		return false, false, 0
	}
	return true, x.Direct, ra - disasm.LengthA64 + uint64(x.Target)
}

// endsIndirectCall reports whether the bytes may end with a call through a register or memory: opcode FF with 2 in the
// reg field of ModRM (Intel SDM, CALL).
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

// goesOn reports whether the function at an address may jump to another function without a call (a tail call). It is
// also true if the code cannot be read or understood.
func (w *walk) goesOn(addr uint64) bool {
	module, ok := w.find(addr)
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
