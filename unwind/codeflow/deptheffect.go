package codeflow

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm"
)

const depthSlot = 8 // bytes that a push takes

// effectOf returns the effect of an instruction and its operand, see the type depthInst. For jumps, the operand is
// relative to the end of the instruction.
func effectOf(x *x86asm.Inst) (depthEffect, int64) {
	switch x.Op {
	case x86asm.PUSH, x86asm.PUSHF, x86asm.PUSHFQ:
		if x.DataSize == 16 {
			return depthLost, 0
		}
		return grows, depthSlot
	case x86asm.POP, x86asm.POPF, x86asm.POPFQ:
		if x.DataSize == 16 || isStackPointer(x.Args[0]) {
			return depthLost, 0
		}
		return grows, -depthSlot
	case x86asm.LEAVE:
		return byFrame, depthSlot
	case x86asm.ENTER:
		return depthLost, 0
	case x86asm.RET, x86asm.LRET, x86asm.IRET, x86asm.IRETD, x86asm.IRETQ, x86asm.HLT, x86asm.UD1, x86asm.UD2,
		x86asm.SYSRET, x86asm.SYSEXIT:
		return depthEnds, 0
	case x86asm.INT:
		if x.Args[0] == x86asm.Imm(3) {
			return depthEnds, 0
		}
		return nothing, 0
	case x86asm.JMP, x86asm.LJMP:
		if target, ok := x.Args[0].(x86asm.Rel); ok {
			return depthJump, int64(target)
		}
		return anywhere, 0
	case x86asm.CALL, x86asm.LCALL:
		return depthCalls, 0
	case x86asm.CMP, x86asm.TEST:
		return nothing, 0
	default:
	}
	if target, ok := x.Args[0].(x86asm.Rel); ok {
		return depthBranch, int64(target)
	}
	if isStackPointer(x.Args[0]) {
		return depthSetting(x)
	}
	if isStackPointer(x.Args[1]) && (x.Op == x86asm.XCHG || x.Op == x86asm.XADD || x.Op == disasm.OtherX86) {
		return depthLost, 0
	}
	return nothing, 0
}

// depthSetting returns the effect of an instruction that writes to its first operand. Only a write to the stack pointer
// has an effect.
func depthSetting(x *x86asm.Inst) (depthEffect, int64) {
	amount, immediate := x.Args[1].(x86asm.Imm)
	switch {
	case x.Args[0] != x86asm.RSP:
		return depthLost, 0
	case x.Op == x86asm.SUB && immediate:
		return grows, int64(amount)
	case x.Op == x86asm.ADD && immediate:
		return grows, -int64(amount)
	case x.Op == x86asm.MOV && x.Args[1] == x86asm.RBP:
		return byFrame, 0
	case x.Op == x86asm.LEA:
		m, ok := x.Args[1].(x86asm.Mem)
		switch {
		case !ok || m.Index != 0:
		case m.Base == x86asm.RSP:
			return grows, -m.Disp
		case m.Base == x86asm.RBP:
			return byFrame, m.Disp
		}
	}
	return depthLost, 0
}

func isStackPointer(a x86asm.Arg) bool {
	return a == x86asm.RSP || a == x86asm.ESP || a == x86asm.SP || a == x86asm.SPB
}
