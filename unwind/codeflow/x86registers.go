package codeflow

import "golang.org/x/arch/x86/x86asm"

// Register numbers: the DWARF columns of the psABI's figure 3.36, as in package arch.
const (
	rax = iota
	rdx
	rcx
	rbx
	rsi
	rdi
	rbp
	rsp
	r8
	r9
	r10
	r11
	r12
	r13
	r14
	r15
	rip
)

// encoded are the registers in the order of their encoding in instructions. The names of x86asm have the same order.
//
//nolint:gochecknoglobals // a table
var encoded = [...]int{rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15}

// number returns the register number of the operand a, which may be a part of a register. The result is false if a is
// no general register.
func number(a x86asm.Arg) (int, bool) {
	r, ok := a.(x86asm.Reg)
	switch {
	case !ok:
		return 0, false
	case r >= x86asm.AL && r <= x86asm.BL:
		return encoded[r-x86asm.AL], true
	case r >= x86asm.AH && r <= x86asm.BH:
		return encoded[r-x86asm.AH], true
	case r >= x86asm.SPB && r <= x86asm.R15B:
		return encoded[r-x86asm.SPB+4], true
	case r >= x86asm.AX && r <= x86asm.R15W:
		return encoded[r-x86asm.AX], true
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return encoded[r-x86asm.EAX], true
	case r >= x86asm.RAX && r <= x86asm.R15:
		return encoded[r-x86asm.RAX], true
	}
	return 0, false
}

// whole returns the register number of the operand a. The result is false if a is not a 64-bit general register.
func whole(a x86asm.Arg) (int, bool) {
	if r, ok := a.(x86asm.Reg); ok && r >= x86asm.RAX && r <= x86asm.R15 {
		return encoded[r-x86asm.RAX], true
	}
	return 0, false
}

// hidden are the registers that an instruction changes without naming them (Intel SDM, volume 2). It lists only
// registers whose values may be needed later.
//
//nolint:gochecknoglobals // a table
var hidden = map[x86asm.Op][]int{
	x86asm.MUL: {rax, rdx}, x86asm.IMUL: {rax, rdx}, x86asm.DIV: {rax, rdx}, x86asm.IDIV: {rax, rdx},
	x86asm.CBW: {rax}, x86asm.CWDE: {rax}, x86asm.CDQE: {rax},
	x86asm.CWD: {rdx}, x86asm.CDQ: {rdx}, x86asm.CQO: {rdx},
	x86asm.CPUID: {rax, rbx, rcx, rdx}, x86asm.RDTSC: {rax, rdx}, x86asm.RDTSCP: {rax, rdx, rcx},
	x86asm.XGETBV: {rax, rdx}, x86asm.SYSCALL: {rax, rcx, r11}, x86asm.LAHF: {rax}, x86asm.XLATB: {rax},
	x86asm.CMPXCHG: {rax}, x86asm.CMPXCHG8B: {rax, rdx}, x86asm.CMPXCHG16B: {rax, rdx},
	x86asm.MOVSB: {rsi, rdi, rcx}, x86asm.MOVSW: {rsi, rdi, rcx}, x86asm.MOVSQ: {rsi, rdi, rcx},
	x86asm.MOVSD: {rsi, rdi, rcx},
	x86asm.STOSB: {rdi, rcx}, x86asm.STOSW: {rdi, rcx}, x86asm.STOSD: {rdi, rcx}, x86asm.STOSQ: {rdi, rcx},
	x86asm.LODSB: {rax, rsi, rcx}, x86asm.LODSW: {rax, rsi, rcx}, x86asm.LODSD: {rax, rsi, rcx},
	x86asm.LODSQ: {rax, rsi, rcx},
	x86asm.SCASB: {rdi, rcx}, x86asm.SCASW: {rdi, rcx}, x86asm.SCASD: {rdi, rcx}, x86asm.SCASQ: {rdi, rcx},
	x86asm.CMPSB: {rsi, rdi, rcx}, x86asm.CMPSW: {rsi, rdi, rcx}, x86asm.CMPSD: {rsi, rdi, rcx},
	x86asm.CMPSQ: {rsi, rdi, rcx},
	x86asm.LOOP:  {rcx}, x86asm.LOOPE: {rcx}, x86asm.LOOPNE: {rcx},
}
