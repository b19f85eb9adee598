package unwind

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm"
)

// Imports is implemented by an ImageCode that can name functions of other images.
type Imports interface {
	// Imported returns the name of the function whose address the dynamic linker writes to slot, a link-time address.
	// The name is empty if the linker writes no function's address there.
	Imported(slot uint64) string
}

// imported returns the name of a function of another image if the code at an address is the function's stub in the
// procedure linkage table. Otherwise it returns an empty name.
func (c *bareCode) imported(addr uint64) string {
	imports, ok := c.module.Code.(Imports)
	if !ok {
		return ""
	}
	slot, ok := instructionSets[c.arch.Instructions].stub(c, addr)
	if !ok {
		return ""
	}
	return imports.Imported(slot - c.module.Bias)
}

// x86Stub recognises a stub: an optional endbr64, and a jump through a word at a relative address. slot is the address
// of that word.
func x86Stub(c *bareCode, addr uint64) (slot uint64, ok bool) {
	for range 2 {
		x, err := disasm.DecodeX86(c.Bytes(addr))
		if err != nil {
			return 0, false
		}
		addr += uint64(x.Len)
		switch m, inMemory := x.Args[0].(x86asm.Mem); {
		case x.Op == x86asm.NOP:
		case x.Op == x86asm.JMP && inMemory && m.Base == x86asm.RIP && m.Index == 0:
			return addr + uint64(m.Disp), true
		default:
			return 0, false
		}
	}
	return 0, false
}

// a64Stub recognises a stub: an optional marker (BTI), and instructions that load X17 from a page and an offset,
// compute the slot's address in X16, and jump to X17. slot is the address of the word that is loaded.
func a64Stub(c *bareCode, addr uint64) (slot uint64, ok bool) {
	var page uint64
	loaded := false
	for range 5 {
		x, err := disasm.DecodeA64(c.Bytes(addr))
		switch {
		case err != nil:
			return 0, false
		case x.Op == disasm.Page:
			page = addr&^0xfff + x.Imm
		case x.Access.Load && x.Access.Count == 1 && x.Access.Known && x.Access.Index == disasm.Offset && page != 0:
			slot, loaded = page+uint64(x.Access.Disp), true
		case x.Flow == disasm.Unknown:
			return slot, loaded
		case x.Flow != disasm.Next, x.Access.Size > 0, x.Writes&^(1<<16|1<<17) != 0:
			return 0, false
		}
		addr += disasm.LengthA64
	}
	return 0, false
}

// endless are functions of C and C++ run-time libraries that never return. Other code does not use these names.
//
//nolint:gochecknoglobals // a table
var endless = map[string]bool{
	"abort": true, "exit": true, "_exit": true, "_Exit": true, "quick_exit": true, "pthread_exit": true,
	"longjmp": true, "_longjmp": true, "siglongjmp": true, "__longjmp_chk": true,
	"__assert_fail": true, "__assert_perror_fail": true,
	"__stack_chk_fail": true, "__fortify_fail": true, "__chk_fail": true, "__libc_start_main": true,
	"__cxa_throw": true, "__cxa_rethrow": true, "__cxa_bad_cast": true, "__cxa_throw_bad_array_new_length": true,
	"_Unwind_Resume": true, "_ZSt9terminatev": true, "__cxa_call_unexpected": true, "__cxa_pure_virtual": true,
}
