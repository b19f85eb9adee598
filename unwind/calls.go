package unwind

import "encoding/binary"

// longestCall is the length of the longest call instruction: an opcode, ModRM,
// SIB and four bytes of displacement.
const longestCall = 7

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
	p, err := module.Code.Code(ra-longestCall-module.Bias, longestCall)
	if err != nil {
		return undecided
	}
	switch {
	case endsIndirectCall(p):
		return proven
	case p[2] != 0xe8:
		return refuted
	}
	target := ra + uint64(int64(int32(binary.LittleEndian.Uint32(p[3:]))))
	if entry == 0 || target == entry || w.goesOn(target) {
		return proven
	}
	return refuted
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
	if !ok || module.Code == nil || module.CFI == nil {
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
