package disasm

import "golang.org/x/arch/x86/x86asm"

// written describes what an instruction with a certain opcode writes to memory and to general registers. It does not
// describe vectors, opmasks and tiles.
type written struct {
	prefixes byte   // applies to these prefixes
	encoding byte   // applies to these encodings
	where    byte   // toReg and so on
	bytes    amount // written to memory
}

const (
	inVEX = 1 << iota
	inEVEX
	inLegacy

	both = inVEX | inEVEX
)

const (
	toReg    = 1 << iota // the general register of ModRM.reg
	toMemory             // the memory addressed by ModRM.rm
	toRM                 // the memory or the general register of ModRM.rm
	toV                  // the general register vvvv
	toRCX
)

// amount is a number of bytes: a constant, or one of the values below.
type amount byte

const (
	all amount = 0x80 + iota
	half
	quarter
	eighth
	opmask // the size of an opmask move

	x86Word amount = 0 // the size of a general register's move
)

// writers are the instructions that write to general registers or to memory (Intel SDM, volume 2), by table and opcode.
// Instructions that write to several places, or to memory selected by a mask (vscatter, vpcompress, tilestored), are
// not in this list. Neither are instructions with an implicit address (vmaskmovdqu).
//
//nolint:gochecknoglobals // a table
var writers = map[[2]byte][]written{
	{table0F, 0x11}: {{plain | with66, both, toMemory, all}, {withF3, both, toMemory, 4}, {withF2, both, toMemory, 8}},
	{table0F, 0x13}: {{plain | with66, both, toMemory, 8}},
	{table0F, 0x17}: {{plain | with66, both, toMemory, 8}},
	{table0F, 0x29}: {{plain | with66, both, toMemory, all}},
	{table0F, 0x2b}: {{plain | with66, both, toMemory, all}},
	{table0F, 0x2c}: {{withF3 | withF2, both, toReg, 0}},
	{table0F, 0x2d}: {{withF3 | withF2, both, toReg, 0}},
	{table0F, 0x50}: {{plain | with66, inVEX, toReg, 0}},
	{table0F, 0x78}: {{withF3 | withF2, inEVEX, toReg, 0}},
	{table0F, 0x79}: {{withF3 | withF2, inEVEX, toReg, 0}},
	{table0F, 0x7e}: {{with66, both, toRM, x86Word}},
	{table0F, 0x7f}: {{with66 | withF3 | withF2, both, toMemory, all}},
	{table0F, 0x91}: {{plain | with66, inVEX, toMemory, opmask}}, // kmov
	{table0F, 0x93}: {{any4, inVEX, toReg, 0}},
	{table0F, 0xae}: {{plain, inVEX, toMemory, 4}}, // vstmxcsr
	{table0F, 0xc5}: {{with66, both, toReg, 0}},
	{table0F, 0xc7}: {{any4, inLegacy, toRM, 0}}, // rdseed, rdpid
	{table0F, 0xd6}: {{with66, both, toMemory, 8}},
	{table0F, 0xd7}: {{with66, inVEX, toReg, 0}},
	{table0F, 0xe7}: {{with66, both, toMemory, all}},

	{table0F38, 0x10}: {{withF3, inEVEX, toMemory, half}}, // vpmovus…, vpmovs…, vpmov…
	{table0F38, 0x11}: {{withF3, inEVEX, toMemory, quarter}},
	{table0F38, 0x12}: {{withF3, inEVEX, toMemory, eighth}},
	{table0F38, 0x13}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x14}: {{withF3, inEVEX, toMemory, quarter}},
	{table0F38, 0x15}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x20}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x21}: {{withF3, inEVEX, toMemory, quarter}},
	{table0F38, 0x22}: {{withF3, inEVEX, toMemory, eighth}},
	{table0F38, 0x23}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x24}: {{withF3, inEVEX, toMemory, quarter}},
	{table0F38, 0x25}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x2e}: {{with66, inVEX, toMemory, all}}, // vmaskmov
	{table0F38, 0x2f}: {{with66, inVEX, toMemory, all}},
	{table0F38, 0x30}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x31}: {{withF3, inEVEX, toMemory, quarter}},
	{table0F38, 0x32}: {{withF3, inEVEX, toMemory, eighth}},
	{table0F38, 0x33}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x34}: {{withF3, inEVEX, toMemory, quarter}},
	{table0F38, 0x35}: {{withF3, inEVEX, toMemory, half}},
	{table0F38, 0x49}: {{with66, inVEX, toMemory, 64}}, // sttilecfg
	{table0F38, 0x8e}: {{with66, inVEX, toMemory, all}},
	{table0F38, 0xf2}: {{any4, inVEX, toReg, 0}},                                   // andn
	{table0F38, 0xf3}: {{any4, inVEX, toV, 0}},                                     // blsr, blsmsk, blsi
	{table0F38, 0xf5}: {{any4, inVEX, toReg, 0}},                                   // bzhi, pext, pdep
	{table0F38, 0xf6}: {{any4, inVEX, toReg | toV, 0}, {any4, inLegacy, toReg, 0}}, // mulx; adcx, adox
	{table0F38, 0xf7}: {{any4, inVEX, toReg, 0}},                                   // bextr, shlx, sarx, shrx

	{table0F3A, 0x14}: {{with66, both, toRM, 1}},
	{table0F3A, 0x15}: {{with66, both, toRM, 2}},
	{table0F3A, 0x16}: {{with66, both, toRM, x86Word}},
	{table0F3A, 0x17}: {{with66, both, toRM, 4}},
	{table0F3A, 0x19}: {{with66, both, toMemory, 16}}, // vextract…
	{table0F3A, 0x1b}: {{with66, inEVEX, toMemory, 32}},
	{table0F3A, 0x1d}: {{with66, both, toMemory, half}}, // vcvtps2ph
	{table0F3A, 0x39}: {{with66, both, toMemory, 16}},
	{table0F3A, 0x3b}: {{with66, inEVEX, toMemory, 32}},
	{table0F3A, 0x61}: {{with66, inVEX, toRCX, 0}}, // vpcmpestri
	{table0F3A, 0x63}: {{with66, inVEX, toRCX, 0}}, // vpcmpistri
	{table0F3A, 0xf0}: {{withF2, inVEX, toReg, 0}}, // rorx

	{tableFP16, 0x11}: {{withF3, inEVEX, toMemory, 2}},
	{tableFP16, 0x2c}: {{withF3, inEVEX, toReg, 0}},
	{tableFP16, 0x2d}: {{withF3, inEVEX, toReg, 0}},
	{tableFP16, 0x78}: {{withF3, inEVEX, toReg, 0}},
	{tableFP16, 0x79}: {{withF3, inEVEX, toReg, 0}},
	{tableFP16, 0x7e}: {{with66, inEVEX, toRM, 2}},
}

// cmpccxadd describes the instructions CMPccXADD, which have 16 opcodes. They write to memory and to a register.
//
//nolint:gochecknoglobals // as above
var cmpccxadd = []written{{with66, inVEX, toMemory | toReg, x86Word}}

// setWritten sets the arguments of an instruction to the registers and the memory that the instruction writes.
func (v *x86Instruction) setWritten(x *x86asm.Inst) {
	forms := writers[[2]byte{v.table, v.opcode}]
	switch {
	case v.table == table0F38 && v.opcode&0xf0 == 0xe0:
		forms = cmpccxadd
	case v.table == table0F && v.opcode == 0xae && v.reg&7 != 3:
		forms = nil // vldmxcsr
	}
	arguments := x.Args[:0]
	for _, f := range forms {
		if f.prefixes&v.prefix == 0 || f.encoding&v.encoding == 0 {
			continue
		}
		if v.mod != 3 && f.where&(toMemory|toRM) != 0 {
			x.MemBytes = v.count(f.bytes)
			if v.encoding == inEVEX && v.short {
				v.memory.Disp *= int64(x.MemBytes) // Intel SDM, volume 2, 2.7.5
			}
			arguments = append(arguments, v.memory)
		}
		if v.mod == 3 && f.where&toRM != 0 {
			arguments = append(arguments, x86General(v.rm))
		}
		if f.where&toReg != 0 {
			arguments = append(arguments, x86General(v.reg))
		}
		if f.where&toV != 0 {
			arguments = append(arguments, x86General(v.v))
		}
		if f.where&toRCX != 0 {
			arguments = append(arguments, x86asm.RCX)
		}
	}
}

// count returns an amount as a number of bytes, which may depend on the instruction's fields.
func (v *x86Instruction) count(a amount) int {
	switch {
	case a == x86Word && v.w, a == opmask && v.w && v.prefix == plain:
		return 8
	case a == x86Word, a == opmask && v.w:
		return 4
	case a == opmask && v.prefix == plain:
		return 2
	case a == opmask:
		return 1
	case a >= all:
		return v.bytes >> (a - all)
	default:
		return int(a)
	}
}
