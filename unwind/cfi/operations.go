package cfi

// Operations of DWARF expressions (DWARF 5 §7.7.1) that may occur in call frame
// information, and GCC's operation for encoded addresses.
const (
	opAddr           = 0x03
	opDeref          = 0x06
	opConst1u        = 0x08
	opConst1s        = 0x09
	opConst2u        = 0x0a
	opConst2s        = 0x0b
	opConst4u        = 0x0c
	opConst4s        = 0x0d
	opConst8u        = 0x0e
	opConst8s        = 0x0f
	opConstu         = 0x10
	opConsts         = 0x11
	opDup            = 0x12
	opDrop           = 0x13
	opOver           = 0x14
	opPick           = 0x15
	opSwap           = 0x16
	opRot            = 0x17
	opAbs            = 0x19
	opAnd            = 0x1a
	opDiv            = 0x1b
	opMinus          = 0x1c
	opMod            = 0x1d
	opMul            = 0x1e
	opNeg            = 0x1f
	opNot            = 0x20
	opOr             = 0x21
	opPlus           = 0x22
	opPlusUconst     = 0x23
	opShl            = 0x24
	opShr            = 0x25
	opShra           = 0x26
	opXor            = 0x27
	opBra            = 0x28
	opEq             = 0x29
	opGe             = 0x2a
	opGt             = 0x2b
	opLe             = 0x2c
	opLt             = 0x2d
	opNe             = 0x2e
	opSkip           = 0x2f
	opLit0           = 0x30
	opLit31          = 0x4f
	opReg0           = 0x50
	opReg31          = 0x6f
	opBreg0          = 0x70
	opBreg31         = 0x8f
	opRegx           = 0x90
	opBregx          = 0x92
	opDerefSize      = 0x94
	opNop            = 0x96
	opGNUEncodedAddr = 0xf1
)

// step executes one operation.
func (e *evaluator) step() {
	op := e.r.u8()
	switch {
	case op >= opLit0 && op <= opLit31:
		e.push(uint64(op - opLit0))
	case op >= opBreg0 && op <= opBreg31:
		e.register(uint64(op-opBreg0), e.r.sleb())
	case op >= opReg0 && op <= opReg31:
		// In debugging entries this operation is a register's name. Like GCC's run time, this package takes it as the
		// register's contents.
		e.register(uint64(op-opReg0), 0)
	case op >= opAddr && op <= opConsts && op != opDeref:
		e.constant(op)
	case op >= opAnd && op <= opXor || op >= opEq && op <= opNe:
		e.arithmetic(op)
	default:
		e.other(op)
	}
}

// constant pushes the operation's constant operand.
func (e *evaluator) constant(op byte) {
	switch op {
	case opAddr:
		e.push(e.r.uint(e.row.table.addrSize) + e.row.Bias)
	case opConst1u:
		e.push(uint64(e.r.u8()))
	case opConst1s:
		e.push(uint64(e.r.i8()))
	case opConst2u:
		e.push(uint64(e.r.u16()))
	case opConst2s:
		e.push(uint64(e.r.i16()))
	case opConst4u:
		e.push(uint64(e.r.u32()))
	case opConst4s:
		e.push(uint64(e.r.i32()))
	case opConst8u, opConst8s:
		e.push(e.r.u64())
	case opConstu:
		e.push(e.r.uleb())
	case opConsts:
		e.push(uint64(e.r.sleb()))
	default:
		e.fail("unknown operation")
	}
}

// other executes stack, memory and control flow operations.
func (e *evaluator) other(op byte) {
	switch op {
	case opDup:
		e.pick(0)
	case opDrop:
		e.pop()
	case opOver:
		e.pick(1)
	case opPick:
		e.pick(int(e.r.u8()))
	case opSwap:
		e.rotate(2)
	case opRot:
		e.rotate(3)
	case opDeref:
		e.deref(e.row.table.addrSize)
	case opDerefSize:
		e.deref(int(e.r.u8()))
	case opAbs:
		if v := e.signed(e.pop()); v < 0 {
			e.push(uint64(-v))
		} else {
			e.push(uint64(v))
		}
	case opRegx:
		e.register(e.r.uleb(), 0)
	case opBregx:
		column := e.r.uleb()
		e.register(column, e.r.sleb())
	case opSkip:
		e.jump(e.r.i16())
	case opBra:
		distance := e.r.i16()
		if e.pop() != 0 {
			e.jump(distance)
		}
	case opNop:
	case opGNUEncodedAddr:
		e.encoded(e.r.u8())
	default:
		e.fail("operation not allowed in call frame information")
	}
}

// encoded pushes an encoded address. If the address is indirect, it is read from the process's memory, where the
// dynamic linker has relocated it.
func (e *evaluator) encoded(enc byte) {
	t := e.row.table
	b := bases{section: t.sections[e.row.section].Addr, data: t.data, fn: e.row.FDEStart, hasFn: true}
	e.push(t.pointer(&e.r, enc&^peIndir, b) + e.row.Bias)
	if enc&peIndir != 0 {
		e.deref(t.addrSize)
	}
}

// arithmetic executes operations that replace one or two values on the stack by a result.
func (e *evaluator) arithmetic(op byte) {
	switch op {
	case opNeg:
		e.push(-e.pop())
		return
	case opNot:
		e.push(^e.pop())
		return
	case opPlusUconst:
		e.push(e.pop() + e.r.uleb())
		return
	}
	b, a := e.pop(), e.pop()
	if op >= opEq && op <= opNe {
		e.push(compare(op, e.signed(a), e.signed(b)))
		return
	}
	e.push(e.binary(op, a, b))
}

// binary computes a op b. As in GCC's run time, division is signed, and the remainder is unsigned.
func (e *evaluator) binary(op byte, a, b uint64) uint64 {
	if b == 0 && (op == opDiv || op == opMod) {
		e.fail("division by zero")
		return 0
	}
	switch op {
	case opAnd:
		return a & b
	case opDiv:
		return uint64(e.signed(a) / e.signed(b))
	case opMinus:
		return a - b
	case opMod:
		return a % b
	case opMul:
		return a * b
	case opOr:
		return a | b
	case opPlus:
		return a + b
	case opShl:
		return a << b
	case opShr:
		return a >> b
	case opShra:
		return uint64(e.signed(a) >> b)
	case opXor:
		return a ^ b
	}
	e.fail("unknown operation")
	return 0
}

// compare computes a op b: 1 for true, 0 for false. Comparisons are signed (DWARF 5 §2.5.1.5).
func compare(op byte, a, b int64) uint64 {
	var is bool
	switch op {
	case opEq:
		is = a == b
	case opGe:
		is = a >= b
	case opGt:
		is = a > b
	case opLe:
		is = a <= b
	case opLt:
		is = a < b
	case opNe:
		is = a != b
	}
	if is {
		return 1
	}
	return 0
}
