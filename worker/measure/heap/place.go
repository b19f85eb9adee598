package heap

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm"
	"pg_stat_backtrace/unwind/elfimage"
)

// maxSkipped is the greatest number of instructions between a function's entry and its probe.
const maxSkipped = 3

// landing is ENDBR64, the instruction that marks a target of indirect calls.
//
//nolint:gochecknoglobals // read only
var landing = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// probePlace returns the address at which a function is probed: the first instruction that the kernel emulates, if no instruction
// before it changes the stack pointer or an argument, else the entry. stepped is set for the entry: the kernel then single-steps
// the instruction, which is slow.
func probePlace(m *elfimage.Image, entry uint64) (addr uint64, stepped bool, err error) {
	code, err := m.Code(entry, (maxSkipped+1)*disasm.LongestX86)
	if err != nil {
		return 0, false, fmt.Errorf("read the code: %w", err)
	}
	at := 0
	for range maxSkipped + 1 {
		if emulated(code[at:]) {
			return entry + uint64(at), false, nil
		}
		n := harmless(code[at:])
		if n == 0 {
			break
		}
		at += n
	}
	return entry, true, nil
}

// emulated reports whether the kernel emulates an instruction at a probe: pushes of registers, direct jumps and calls,
// and the nop of one byte (arch/x86/kernel/uprobes.c).
func emulated(code []byte) bool {
	op := code[0]
	if op&0xf0 == 0x40 && len(code) > 1 { // REX
		return code[1]&0xf8 == 0x50
	}
	return op&0xf8 == 0x50 || op == 0x90 || op == 0xe8 || op == 0xe9 || op == 0xeb || op&0xf0 == 0x70 ||
		op == 0x0f && len(code) > 1 && code[1]&0xf0 == 0x80
}

// harmless returns the length of an instruction that does not jump and does not change the stack pointer or the arguments; 0 for
// any other instruction.
func harmless(code []byte) int {
	if bytes.HasPrefix(code, landing) {
		return len(landing)
	}
	inst, err := disasm.DecodeX86(code)
	if err != nil {
		return 0
	}
	if inst.Op == x86asm.TEST || inst.Op == x86asm.CMP {
		return inst.Len
	}
	to, ok := inst.Args[0].(x86asm.Reg)
	if ok && !vital(to) && (inst.Op == x86asm.MOV || inst.Op == x86asm.LEA || inst.Op == x86asm.XOR) {
		return inst.Len
	}
	return 0
}

// vital reports whether a register must not change: the stack pointer, a register of the first three arguments, in any width, or a
// register that is not a general one.
func vital(r x86asm.Reg) bool {
	kept := []x86asm.Reg{
		x86asm.RSP, x86asm.ESP, x86asm.SP, x86asm.SPB, x86asm.RDI, x86asm.EDI, x86asm.DI, x86asm.DIB,
		x86asm.RSI, x86asm.ESI, x86asm.SI, x86asm.SIB, x86asm.RDX, x86asm.EDX, x86asm.DX, x86asm.DL, x86asm.DH,
	}
	return r < x86asm.AL || r > x86asm.R15 || slices.Contains(kept, r) // registers outside of AL to R15 are not general ones
}
