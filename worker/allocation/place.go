package allocation

import (
	"bytes"
	"fmt"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm/x86"
	"pg_stat_backtrace/unwind/elfimage"
)

// maxSkipped bounds the instructions between a function's entry and its probe.
const maxSkipped = 3

// landing is ENDBR64, the instruction that marks where indirect calls may go.
//
//nolint:gochecknoglobals // a constant
var landing = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// probePlace returns where to probe a function: at the first instruction that the kernel emulates, if nothing before it
// changes the stack pointer or an argument, else at the entry. A probe at another instruction makes the process execute
// it in a single step, which is slow: stepped.
func probePlace(m *elfimage.Image, entry uint64) (addr uint64, stepped bool, err error) {
	code, err := m.Code(entry, (maxSkipped+1)*x86.Longest)
	if err != nil {
		return 0, false, fmt.Errorf("read the code: %w", err)
	}
	at := 0
	for range maxSkipped + 1 {
		if bytes.HasPrefix(code[at:], landing) {
			at += len(landing)
			continue
		}
		inst, err := x86.Decode(code[at:])
		if err != nil {
			break
		}
		if emulated(code[at:]) {
			return entry + uint64(at), false, nil
		}
		if !harmless(&inst) {
			break
		}
		at += inst.Len
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

// harmless reports whether an instruction leads to the next one and leaves the stack pointer and the arguments alone.
func harmless(inst *x86asm.Inst) bool {
	switch inst.Op {
	case x86asm.TEST, x86asm.CMP:
		return true
	case x86asm.MOV, x86asm.LEA, x86asm.XOR:
		to, ok := inst.Args[0].(x86asm.Reg)
		return ok && !vital(to)
	}
	return false
}

// vital reports whether a register is the stack pointer or holds one of the first three arguments, in any width.
func vital(r x86asm.Reg) bool {
	switch r {
	case x86asm.RSP, x86asm.ESP, x86asm.SP, x86asm.SPB, x86asm.RDI, x86asm.EDI, x86asm.DI, x86asm.DIB,
		x86asm.RSI, x86asm.ESI, x86asm.SI, x86asm.SIB, x86asm.RDX, x86asm.EDX, x86asm.DX, x86asm.DL, x86asm.DH:
		return true
	}
	return r < x86asm.AL || r > x86asm.R15 // not a general register
}
