package disasm_test

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/disasm"
)

// TestRV64AgainstDisassembler decodes all instructions of 16 bits, and random words of each major opcode and kind. It
// compares the results with LLVM's disassembler: written registers, targets of branches, memory accesses, and the
// results of arithmetic.
func TestRV64AgainstDisassembler(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same words each time
	var code []byte
	for half := range uint16(0xffff) {
		if half&3 != 3 {
			code = binary.LittleEndian.AppendUint16(code, half)
		}
	}
	for opcode := range uint32(32) {
		for kind := range uint32(8) {
			for range 256 {
				const fixed = 0x7f | 7<<12
				w := random.Uint32()&^fixed | kind<<12 | opcode<<2 | 3
				if random.Uint32N(2) == 0 && opcode == 0b01100 {
					w &^= 0xbe << 24 // ADD and SUB
				}
				if opcode&7 != 7 {
					code = binary.LittleEndian.AppendUint32(code, w)
				}
			}
		}
	}
	for _, w := range []uint32{0x00000073, 0x00100073, 0x00008067, 0x00010113} {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	d := decoder{
		Machine: elf.EM_RISCV, Decode: disasm.DecodeRV64,
		Options: []string{"-M", "numeric", "-M", "no-aliases", "--mattr=+m,+a,+f,+d,+c,+v,+zba,+zbb,+zbc,+zbs,+zbkb,+zfh"},
		Differs: func(x *disasm.Instruction, text string, at uint64) string {
			mnemonic, rest, _ := strings.Cut(text, "\t")
			operands := strings.Split(rest, ",")
			for i := range operands {
				operands[i] = strings.TrimSpace(operands[i])
			}
			return rvDiffers(x, mnemonic, operands, at)
		},
		// C.LUI of 0 is reserved, or a newer may-be-operation.
		Unknown: regexp.MustCompile(`^(<unknown>|(c\.)?unimp|c\.lui\t.* 0$)`), NotDecoded: rvKernels,
	}
	d.Compare(t, code, 60_000)
}

// TestMayBeOperations checks C.LUI of 0: the may-be-operations (Zcmop) have no effect, the other encodings are
// reserved.
func TestMayBeOperations(t *testing.T) {
	for rd := range uint16(32) {
		x, err := disasm.DecodeRV64(binary.LittleEndian.AppendUint16(nil, 0x6001|rd<<7))
		if may := rd < 16 && rd&1 != 0; may != (err == nil) || x.Writes != 0 {
			t.Errorf("x%d: %+v, %v", rd, x, err)
		}
	}
}

// rvKernels are the instructions that only a kernel may use.
var rvKernels = regexp.MustCompile(`^(mret|sret|uret|wfi|dret|sfence\..*|sinval\..*|hinval\..*|hfence\..*)(\t|$)`)

var (
	storing   = regexp.MustCompile(`^(c\.)?(s[bhwd]|f?s[hwdq]|f?s[wd]sp)$|^vs(e|se|s|ux|ox|m|[1248]r)[0-9][0-9a-z.]*$`)
	rvVectors = regexp.MustCompile(`^v[ls](e|se|u|o|m|s|[1248]r)[0-9a-z.]*\.v$`)
	atomics   = regexp.MustCompile(`^(amo|lr\.|sc\.)`)
	writing   = regexp.MustCompile(`^x[0-9]+$`)
	relative  = regexp.MustCompile(`^(-?[0-9]+)?\((x[0-9]+)\)$`)
)

// rvDiffers returns the difference between an instruction and the disassembler's text, or "".
func rvDiffers(x *disasm.Instruction, mnemonic string, operands []string, at uint64) string {
	name := strings.TrimPrefix(mnemonic, "c.")
	flow, direct, target, want := disasm.Next, false, uint64(0), uint32(0)
	if writing.MatchString(operands[0]) && !storing.MatchString(mnemonic) {
		want = 1 << rvRegister(operands[0])
	}
	last := operands[len(operands)-1]
	switch {
	case name == "j", name == "jal":
		flow, direct, target = disasm.Jump, true, hex(last)
		if want&^1 != 0 {
			flow = disasm.Unknown
		}
		if want&^1 == 1<<disasm.RV64RA {
			flow = disasm.Call
		}
	case name == "jr", name == "jalr" && want&^1 == 0 && mnemonic == "jalr":
		flow, want = disasm.Unknown, 0
		if operands[0] == "x1" || last == "0(x1)" {
			flow = disasm.Return
		}
	case name == "jalr":
		flow = disasm.Unknown
		if mnemonic == "c.jalr" {
			want = 1 << disasm.RV64RA
		}
		if want == 1<<disasm.RV64RA {
			flow = disasm.Call
		}
	case strings.HasPrefix(name, "b") && strings.HasPrefix(last, "0x") && len(operands) > 1:
		flow, direct, target, want = disasm.Branch, true, hex(last), 0
	case name == "ebreak":
		flow = disasm.Ends
	case name == "ecall":
		want = 1 << 10
	}
	want &^= 1 // x0 is always zero
	if flow == disasm.Unknown && x.Direct {
		direct, target = true, hex(last) // JAL with another register
	}
	switch {
	case x.Writes != want:
		return fmt.Sprintf("writes %032b, not %032b", x.Writes, want)
	case x.Flow != flow:
		return fmt.Sprintf("flow %d, not %d", x.Flow, flow)
	case x.Direct != direct || direct && at+uint64(x.Target) != target:
		return fmt.Sprintf("leads to %#x, not %#x", at+uint64(x.Target), target)
	}
	if problem := rvDiffersInMemory(x, mnemonic, operands); problem != "" {
		return problem
	}
	return rvDiffersInValue(x, name, operands)
}

// rvDiffersInMemory compares the memory accesses.
func rvDiffersInMemory(x *disasm.Instruction, mnemonic string, operands []string) string {
	m := relative.FindStringSubmatch(operands[len(operands)-1])
	if rvVectors.MatchString(mnemonic) || strings.HasPrefix(mnemonic, "v") {
		if x.Access.Known {
			return "an access of a known place"
		}
		return ""
	}
	if m == nil || x.Flow != disasm.Next {
		if x.Access.Size != 0 {
			return "an access"
		}
		return ""
	}
	disp, _ := strconv.ParseInt(m[1], 10, 64)
	base := rvRegister(m[2])
	if base == 0 {
		base = disasm.None
	}
	atomic := atomics.MatchString(mnemonic)
	store := storing.MatchString(mnemonic)
	if x.Access.Base != base || x.Access.Disp != disp || x.Access.Store != (store || atomic) || x.Access.Load == store {
		return "another access"
	}
	name := strings.TrimSuffix(strings.TrimPrefix(mnemonic, "c."), "sp")
	whole := name == "ld" || name == "sd"
	moved := disasm.None
	if n := rvRegister(operands[0]); whole && n > 0 {
		moved = n
	}
	if whole != (x.Access.Count == 1) || whole && x.Access.Whole[0] != moved {
		return "another register"
	}
	return ""
}

// rvDiffersInValue compares the computed values.
func rvDiffersInValue(x *disasm.Instruction, name string, operands []string) string {
	reg := func(i int) int {
		if n := rvRegister(operands[i]); n > 0 {
			return n
		}
		return disasm.None
	}
	last := len(operands) - 1
	imm, err := strconv.ParseInt(operands[last], 0, 64)
	var want disasm.Instruction
	switch name {
	case "addi", "addi16sp", "addi4spn", "li", "mv":
		want = disasm.Instruction{Op: disasm.Add, Rd: reg(0), Rn: reg(max(last-1, 0)), Imm: uint64(imm)}
		if name == "li" {
			want.Rn = disasm.None
		}
		if name == "mv" {
			want.Rn = reg(1)
		}
		if want.Rn == disasm.None {
			want.Op = disasm.Set
		}
	case "lui":
		if imm >= 1<<19 { // it is written without a sign
			imm -= 1 << 20
		}
		want = disasm.Instruction{Op: disasm.Set, Rd: reg(0), Rn: disasm.None, Imm: uint64(imm << 12)}
	case "andi":
		want = disasm.Instruction{Op: disasm.And, Rd: reg(0), Rn: reg(max(last-1, 0)), Imm: uint64(imm)}
		if want.Rn == disasm.None {
			return ""
		}
	case "add", "sub":
		rn, rm := reg(last-1), reg(last)
		if rn == disasm.None || rm == disasm.None {
			return "" // a move, a negative, or nothing
		}
		want = disasm.Instruction{Op: disasm.AddRegister, Rd: reg(0), Rn: rn, Rm: rm}
		if name == "sub" {
			want.Op = disasm.SubRegister
		}
		err = nil
	case "auipc":
		if imm >= 1<<19 {
			imm -= 1 << 20
		}
		want = disasm.Instruction{Op: disasm.Here, Rd: reg(0), Rn: disasm.None, Imm: uint64(imm << 12)}
	default:
		if x.Op != disasm.Other {
			return "it computes"
		}
		return ""
	}
	if x.Op == disasm.Other && reg(0) == disasm.None {
		return ""
	}
	if name != "mv" && err != nil || x.Op != want.Op || x.Rd != want.Rd || x.Rn != want.Rn || x.Imm != want.Imm ||
		want.Rm != 0 && x.Rm != want.Rm {
		return fmt.Sprintf("not %+v", want)
	}
	return ""
}

func rvRegister(operand string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(operand, "x"))
	return n
}

func hex(operand string) uint64 {
	v, _ := strconv.ParseUint(strings.TrimPrefix(operand, "0x"), 16, 64)
	return v
}
