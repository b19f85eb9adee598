package disasm_test

import (
	"debug/elf"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/disasm"
)

// room is the space for each instruction, filled with NOPs. An instruction that LLVM does not know ends there.
const room = 16

// vectors are instructions in all encodings of vector instructions, of each opcode some with operands at random.
func vectors(code []byte, random *rand.Rand) []byte {
	for _, table := range []byte{1, 2, 3, 5, 6} {
		for n := range 256 * 4 * 2 {
			opcode, pp, w := byte(n), byte(n>>8&3), byte(n>>10)<<7
			inverted := func() byte { return byte(random.Uint32()) }
			for length := range byte(3) {
				vvvv := inverted() & 0x78
				if table <= 3 && length < 2 {
					code = add(code, random, opcode, 0xc4, inverted()&0xe0|table, w|vvvv|length<<2|pp)
					code = add(code, random, opcode, 0xc4, inverted()&0xe0|table, w|0x78|length<<2|pp)
				}
				code = add(code, random, opcode, 0x62, inverted()&0xf0|table, w|vvvv|4|pp, inverted()&0x9f|length<<5)
				code = add(code, random, opcode, 0x62, inverted()&0xf0|table, w|0x78|4|pp, length<<5|8)
				code = add(code, random, opcode, 0x62, inverted()&0xf0|table, w|0x78|4|pp, length<<5|9)
			}
			if table == 1 && w == 0 {
				code = add(code, random, opcode, 0xc5, inverted()&0xfc|pp)
				code = add(code, random, opcode, 0x65, 0xc5, inverted()&0x84|0x78|pp)
			}
		}
	}
	return code
}

// older are instructions in older encodings that golang.org/x/arch does not support, with random operands.
func older(code []byte, random *rand.Rand) []byte {
	for _, opcode := range [][]byte{
		{0x0f, 0x0d}, {0x0f, 0xc7}, {0x0f, 0x38, 0xc8}, {0x0f, 0x38, 0xc9}, {0x0f, 0x38, 0xca}, {0x0f, 0x38, 0xcb},
		{0x0f, 0x38, 0xcc}, {0x0f, 0x38, 0xcd}, {0x0f, 0x38, 0xcf}, {0x0f, 0x38, 0xf6}, {0x0f, 0x3a, 0xcc},
		{0x0f, 0x3a, 0xce}, {0x0f, 0x3a, 0xcf},
	} {
		for _, prefix := range [][]byte{nil, {0x66}, {0xf3}, {0x65, 0x66}} {
			for range 16 {
				last := len(opcode) - 1
				rex := append(slices.Clone(prefix), 0x40|byte(random.IntN(16)))
				code = add(code, random, opcode[last], append(rex, opcode[:last]...)...)
				code = add(code, random, opcode[last], append(slices.Clone(prefix), opcode[:last]...)...)
			}
		}
	}
	return code
}

// add adds an instruction with operands at random.
func add(code []byte, random *rand.Rand, opcode byte, prefix ...byte) []byte {
	end := len(code) + room
	code = append(append(code, prefix...), opcode)
	modrm := byte(random.Uint32())
	if random.IntN(3) == 0 {
		modrm |= 0xc0
	}
	code = append(code, modrm)
	for range 6 {
		code = append(code, byte(random.Uint32()))
	}
	for len(code) < end {
		code = append(code, 0x90)
	}
	return code
}

// TestOthersOfLLVM decodes all instructions that this package adds and that LLVM's disassembler knows. Their length,
// and the general registers and memory that they write, must match LLVM's text.
func TestOthersOfLLVM(t *testing.T) {
	t.Parallel()
	selected := figure.Share(t, 4)
	rounds := 0
	var code []byte
	for round := range uint64(4) {
		if selected(int(round)) {
			random := rand.New(rand.NewPCG(1, round))
			code = older(vectors(code, random), random)
			rounds++
		}
	}
	lines := disassemble(t, code, elf.EM_X86_64, nil, "-M", "intel", "--mattr=+amx-tile,+amx-int8,+amx-bf16")
	var compared, unknown int
	different, writing := map[string]int{}, map[string]int{}
	for i, l := range lines {
		if l.At%room != 0 {
			continue
		}
		if strings.Contains(l.Text, "unknown") || i+1 == len(lines) {
			unknown++
			continue
		}
		x, err := disasm.DecodeX86(code[l.At:])
		if err != nil && !vector(code[l.At:]) || err == nil && x.Op != disasm.OtherX86 {
			continue // unsupported older instructions
		}
		mnemonic, operands, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(l.Text, "\t", " ")), " ")
		want := writes(mnemonic, operands)
		got := describe(&x)
		compared++
		if got != "" {
			writing[mnemonic]++
		}
		length := lines[i+1].At - l.At
		if mnemonic == "vmovq" && code[l.At] == 0x62 && x.MemBytes > 0 {
			continue // LLVM 14 scales the displacement by 16; the manual, and the GNU assembler, by 8
		}
		if err != nil || uint64(x.Len) != length || got != want {
			if different[mnemonic]++; different[mnemonic] == 1 {
				t.Errorf("% x %s: %d bytes, writes %q; want %d, %q; %v", code[l.At:][:length], l.Text, x.Len, got, length,
					want, err)
			}
		}
	}
	figure.Printf(t, "%d instructions as LLVM's disassembler has them, with %d mnemonics those that write to "+
		"memory or general registers; %d it does not know", compared, len(writing), unknown)
	if len(different) > 0 {
		t.Errorf("these differ: %v", different)
	}
	if compared < rounds*5000 || len(writing) < 80 {
		t.Error("too few were compared")
	}
}

var (
	generalRegister = regexp.MustCompile(`^([re]?([a-d]x|[sd]i|[sb]p)|r\d+[dw]?)$`)
	mask            = regexp.MustCompile(`\s*\{[^}]*\}| \+ (\d\*)?riz`) // and no index at all, which LLVM names
	// Instructions that read their first memory operand, and instructions whose targets package x86 omits.
	reading = regexp.MustCompile(`^(prefetch|vldmxcsr|ldtilecfg|vptest|vtestp|vu?comis|k)`)
	leftOut = regexp.MustCompile(`^(vp?scatter|v[gp]?p?gatherpf|vscatterpf|vp?compress|tilestored)`)
)

// writes derives from an instruction's text the general registers and the memory that the instruction writes.
func writes(mnemonic, operands string) string {
	var all []string
	for o := range strings.SplitSeq(mask.ReplaceAllString(operands, ""), ", ") {
		all = append(all, strings.TrimSpace(o))
	}
	n := 1
	if mnemonic == "mulx" {
		n = 2
	}
	var written []string
	for _, o := range all[:min(n, len(all))] {
		switch {
		case strings.Contains(o, "["):
			if !leftOut.MatchString(mnemonic) && (!reading.MatchString(mnemonic) || strings.HasPrefix(mnemonic, "kmov")) {
				if !strings.Contains(o, " ptr ") {
					o = "zmmword ptr " + o // sttilecfg's has no name
				}
				written = append(written, o)
			}
		case generalRegister.MatchString(o):
			written = append(written, wide(o))
		}
	}
	if strings.HasPrefix(mnemonic, "vpcmp") && strings.HasSuffix(mnemonic, "stri") {
		written = append(written, "rcx")
	}
	return strings.Join(written, ", ")
}

// vector reports whether the code is the encoding of a vector instruction.
func vector(code []byte) bool {
	if code[0] == 0x65 {
		code = code[1:]
	}
	return code[0] == 0xc4 || code[0] == 0xc5 || code[0] == 0x62
}

// wide is the name of all 64 bits of a register.
func wide(name string) string {
	name = strings.TrimLeft(name, "re")
	if name[0] <= '9' {
		name = strings.TrimRight(name, "dw")
	}
	return "r" + name
}

// describe returns the operands that Decode reports as written, in LLVM's syntax.
func describe(x *x86asm.Inst) string {
	var written []string
	for _, a := range x.Args {
		switch a := a.(type) {
		case x86asm.Reg:
			written = append(written, strings.ToLower(a.String()))
		case x86asm.Mem:
			written = append(written, sizes[x.MemBytes]+" ptr "+place(&a))
		}
	}
	return strings.Join(written, ", ")
}

var sizes = map[int]string{
	1: "byte", 2: "word", 4: "dword", 8: "qword", 16: "xmmword", 32: "ymmword", 64: "zmmword",
}

func place(m *x86asm.Mem) string {
	var parts []string
	if m.Base != 0 {
		parts = append(parts, strings.ToLower(m.Base.String()))
	}
	if m.Index != 0 {
		index := strings.ToLower(m.Index.String())
		if m.Scale > 1 {
			index = fmt.Sprintf("%d*%s", m.Scale, index)
		}
		parts = append(parts, index)
	}
	text := strings.Join(parts, " + ")
	switch {
	case text == "":
		text = strconv.FormatInt(m.Disp, 10)
	case m.Disp < 0:
		text += fmt.Sprintf(" - %d", -m.Disp)
	case m.Disp > 0 || m.Base == x86asm.RIP && m.Disp == 0:
		text += fmt.Sprintf(" + %d", m.Disp)
	}
	text = "[" + text + "]"
	if m.Segment != 0 {
		text = strings.ToLower(m.Segment.String()) + ":" + text
	}
	return text
}
