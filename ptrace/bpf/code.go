package bpf

import "fmt"

// register is one of the machine for which the kernel's verifier and compiler are made: r0 has results, r1 to r5 are
// arguments, r6 to r9 survive calls, r10 is the frame pointer.
type register uint8

const (
	r0 register = iota
	r1
	r2
	r3
	r4
	r5
	r6
	r7
	r8
	r9
	r10
)

// Operation codes (Documentation/bpf/standardization/instruction-set.rst).
const (
	opLoad1      = 0x71 // LDX | MEM | B
	opLoad2      = 0x69 // LDX | MEM | H
	opLoad4      = 0x61 // LDX | MEM | W
	opLoad8      = 0x79 // LDX | MEM | DW
	opStore4     = 0x63 // STX | MEM | W
	opStore8     = 0x7b // STX | MEM | DW
	opConstant4  = 0x62 // ST | MEM | W
	opWide       = 0x18 // LD | IMM | DW
	opMove       = 0xbf
	opSet        = 0xb7
	opAdd        = 0x0f
	opAddValue   = 0x07
	opSubtract   = 0x1f
	opMultiply   = 0x2f
	opAndValue   = 0x57
	opShift      = 0x67 // to the left, by a value
	opShiftRight = 0x77 // by a value
	opGo         = 0x05
	opIfZero     = 0x15 // JEQ, with a value
	opIfNot      = 0x55 // JNE, with a value
	opIfEqual    = 0x1d // JEQ, with a register
	opIfNotEqual = 0x5d // JNE, with a register
	opIfAtLeast  = 0x3d // JGE, with a register
	opIfGreater  = 0x2d // JGT, with a register
	opIfMost     = 0xbd // JLE, with a register
	opIfMostOf   = 0xb5 // JLE, with a value
	opIfFrom     = 0x35 // JGE, with a value
	opIfMore     = 0x25 // JGT, with a value
	opCall       = 0x85
	opExit       = 0x95

	sourceMap      = 1 // of opWide: a map (BPF_PSEUDO_MAP_FD)
	sourceTable    = 2 // of opWide: an address in the value of a map (BPF_PSEUDO_MAP_VALUE)
	sourceLabel    = 4 // of opWide: a function of the program (BPF_PSEUDO_FUNC)
	sourceOwn      = 1 // of opCall: a function of the program (BPF_PSEUDO_CALL)
	sourceFunction = 2 // of opCall: a function of the kernel by its type (BPF_PSEUDO_KFUNC_CALL)
)

// loadOf are the operations that load so many bytes.
//
//nolint:gochecknoglobals // a table
var loadOf = map[uint32]uint8{1: opLoad1, 2: opLoad2, 4: opLoad4, 8: opLoad8}

// code is a program in the making.
type code struct {
	words  []uint64
	labels map[string]int
	jumps  []jump
	loads  []jump // of a function's address, and calls of one
	most   int32  // bytes of an area that may be taken while there is room for a stack of any length
}

func newCode(area uint64) *code {
	return &code{labels: make(map[string]int), most: int32(area - MaxStack)}
}

type jump struct {
	at int
	to string
}

func (c *code) emit(op uint8, dst, src register, offset int16, value int32) {
	c.words = append(c.words,
		uint64(op)|uint64(dst)<<8|uint64(src)<<12|uint64(uint16(offset))<<16|uint64(uint32(value))<<32)
}

// unique makes a label of what a program has more than once.
func (c *code) unique(name string) string { return fmt.Sprint(name, len(c.words)) }

// load loads a member of the thread's structure, which is in r7, zero-extended.
func (c *code) load(dst register, f field) {
	c.emit(loadOf[f.size], dst, r7, f.at, 0)
}

// label names the place of the next instruction, jump goes to one under a condition.
func (c *code) label(name string) { c.labels[name] = len(c.words) }

func (c *code) jump(op uint8, dst, src register, value int32, to string) {
	c.jumps = append(c.jumps, jump{len(c.words), to})
	c.emit(op, dst, src, 0, value)
}

// address loads an address in the table's value.
func (c *code) address(dst register, table, offset int) {
	c.emit(opWide, dst, sourceTable, 0, int32(table))
	c.emit(0, 0, 0, 0, int32(offset))
}

// table loads a map, function the function that begins at a label.
func (c *code) table(dst register, table int) {
	c.emit(opWide, dst, sourceMap, 0, int32(table))
	c.emit(0, 0, 0, 0, 0)
}

func (c *code) function(dst register, label string) {
	c.loads = append(c.loads, jump{len(c.words), label})
	c.emit(opWide, dst, sourceLabel, 0, 0)
	c.emit(0, 0, 0, 0, 0)
}

// call calls the function that begins at a label.
func (c *code) call(label string) {
	c.loads = append(c.loads, jump{len(c.words), label})
	c.emit(opCall, 0, sourceOwn, 0, 0)
}

// finish fills in where the jumps go, and functions are.
func (c *code) finish() []uint64 {
	for _, j := range c.jumps {
		c.words[j.at] |= uint64(uint16(int16(c.distance(j)))) << 16
	}
	for _, j := range c.loads {
		c.words[j.at] |= uint64(uint32(int32(c.distance(j)))) << 32
	}
	return c.words
}

// distance is in instructions, from the one after.
func (c *code) distance(j jump) int {
	at, ok := c.labels[j.to]
	if !ok {
		panic(fmt.Sprintf("bpf: no label %q", j.to)) // a mistake in this package
	}
	return at - j.at - 1
}
