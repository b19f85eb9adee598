package disasm_test

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/disasm"
)

// TestZArchAgainstDisassembler decodes all instructions of two bytes, and random longer instructions of each opcode. It
// compares the results with LLVM's disassembler. Length and control flow must match. The registers that the text
// writes must be among the registers that may be written. Instructions that create and remove frames must match
// exactly.
func TestZArchAgainstDisassembler(t *testing.T) {
	each := 6
	if raceEnabled {
		each = 1
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same code each time
	var code []byte
	some := func(n int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		return p
	}
	for first := range byte(0x3f) {
		for second := range 256 {
			code = append(code, first, byte(second))
		}
	}
	for first := 0x40; first < 0xc0; first++ {
		for second := range 256 {
			for range each {
				code = append(append(code, byte(first), byte(second)), some(2)...)
				code = append(append(code, byte(first), byte(second), byte(random.Uint32N(3))<<4), some(1)...)
			}
		}
	}
	for first := 0xc0; first < 0x100; first++ {
		for other := range 256 { // the second byte of some formats, the last one of others
			for range each {
				code = append(append(code, byte(first), byte(other)), some(4)...)
				code = append(append(append(code, byte(first)), some(4)...), byte(other))
				code = append(append(append(code, byte(first)), some(3)...), 0, byte(other))
				code = append(append(append(code, byte(first)), some(3)...), byte(random.Uint32N(16))<<4, byte(other))
			}
		}
	}
	d := decoder{
		Machine: elf.EM_S390, Order: binary.BigEndian, Options: []string{"--mcpu=arch14"}, Decode: disasm.DecodeZArch,
		Differs: func(x *disasm.Instruction, text string, at uint64) string {
			mnemonic, rest, _ := strings.Cut(text, "\t")
			return zDiffers(x, mnemonic, zSplit(rest), at)
		},
		Unknown: regexp.MustCompile(`^<unknown>`), NotDecoded: zKernels,
	}
	d.Compare(t, code, each*50_000)
}

// zKernels are privileged instructions, and instructions by which a program changes its execution mode.
var zKernels = regexp.MustCompile(`^(lctlg?|stctg|stctl|lpswe?y?|ssm|sac[f]?|sigp|diag|lra[gy]?|lurag?|stura|sturg|` +
	`stap|stidp|stpx?|spx|spt|spka|sckc?|stckc|stpt|stpq|stosm|stnsm|stfl|stsi|sske|iske|rrbe|ptlb|pc|pr|pt|ptf|ptff|` +
	`pfpo|palb|pgin|pgout|mvcp|mvcs|mvck|mvcsk|mvcdk|mvpg|msch|stsch|stcrw|stcps|ssch|rsch|csch|hsch|xsch|tsch|tpi|tpei|` +
	`sal|schm|rchp|chsc|rp|ipk|iac|ipte|ivsk|eptl|esar|es[st][at]|ereg|epar|epsw|esea|bakr|bsa|bsg|bsm|bassm|alsi|` +
	`sam24|sam31|sam64|tam|upt|sckpf|trap2|trace|tracg|tprot|tbegin|tabort|tend|ecpga|ecctr|epctr|lcctl|lpctl|lsctl|` +
	`qctri|qsi|qpaci|scctr|spctr|lpp|lasp|plo|lmd|lptea|cspg?|msta|pack|stetr|ssair|ssar|siga|siec|sie|ecag|` +
	`lfpc|stfpc|sfasr|lfas|pcc|pckmo|strag|kmctr|srp|stidp|sthh|clp|rdp|irbm|rrbm|cpsdr|stcrw|lpsw|stpx|cu.*|tr..?|` +
	`cmpsc|cfc|tar|tb|lbear|stbear)(\t|$)`)

// zSplit splits operands at commas that are in no parentheses.
func zSplit(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range s {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			out = append(out, strings.TrimSpace(s[from:i]))
			from = i + 1
		}
	}
	return append(out, strings.TrimSpace(s[from:]))
}

var (
	conditions = `(o|h|nle|l|nhe|lh|ne|e|nlh|he|nl|le|nh|no|m|nm|p|np|z|nz)`
	always     = regexp.MustCompile(`^jg?$`)
	sometimes  = regexp.MustCompile(`^(jg?` + conditions + `|brctg?|brcth|brxl?[eh]g?|brxhg|brxlg|cl?g?[ri]?[ij]j?` +
		`|cl?g?[ir]j` + conditions + `?)$`)
	returning = regexp.MustCompile(`^b` + conditions + `?r$`)
	comparing = regexp.MustCompile(`^cl?g?[ir]b` + conditions + `?$`)
	away      = regexp.MustCompile(`^(bi?|bi?` + conditions + `|bic|bc|bctg?|bctr|bctgr|bxl?[eh]g?|bxhg|bxleg|bal|bas)$`)
	// zReading are instructions that read their first operand.
	zReading = regexp.MustCompile(`^(st.*|ntstg|c|c[ghly].*|cr|cdb|ceb|cxbr|cdbr|cebr|cer|cdr|cxr|cd|ce|k[xde]b?r?|` +
		`cxtr|cdtr|cextr|cedtr|kxtr|kdtr|cvd[gy]?|cfi|cg?rl|cih|c[ir][bj].*|c[zp][dx]t|t[dmcp].*|` +
		`mv.*|b.*|j.*|cp.*|vst.*|vsce.*|vupkz.*|pfd.*|ex|exrl|sar|spm|lam.*|ppa|` +
		`cpya|ltdbr|ltebr|ltxbr|sfpc|sfasr|srnm.*|wf[ck].*|vte?c?.*|vc[d]lg|vec.*|vtp|vcp|niai|lt[de]b|cit.*|crt.*|clm.*|` +
		`vpkz.*|vstrl.*|clib.*|clij.*)$`)
	places = regexp.MustCompile(`^(-?[0-9]+)?(?:\((%r[0-9]+)?(?:,(%r[0-9]+))?\))?$`)
)

// zDiffers returns the difference between an instruction and the disassembler's text, or "".
func zDiffers(x *disasm.Instruction, mnemonic string, operands []string, at uint64) string {
	last := operands[len(operands)-1]
	flow, direct, told := zFlowOf(mnemonic, operands)
	if !told {
		return ""
	}
	switch {
	case x.Flow != flow:
		return fmt.Sprintf("flow %d, not %d", x.Flow, flow)
	case x.Direct != direct:
		return "it leads somewhere"
	case direct:
		if target, _ := strconv.ParseUint(strings.TrimPrefix(last, "0x"), 16, 64); at+uint64(x.Target) != target {
			return fmt.Sprintf("leads to %#x, not %#x", at+uint64(x.Target), target)
		}
	}
	if problem := differsInWrites(x, mnemonic, operands[0]); problem != "" {
		return problem
	}
	return differsInFrames(x, mnemonic, operands, at)
}

// zFlowOf returns the control flow of an instruction's text, and whether its target is direct. told is false if the
// text does not define the flow.
func zFlowOf(mnemonic string, operands []string) (flow disasm.Flow, direct, told bool) {
	last := operands[len(operands)-1]
	switch {
	case mnemonic == "brasl" || mnemonic == "bras":
		flow, direct = linking(operands[0]), true
	case mnemonic == "basr" || mnemonic == "balr":
		if last != "%r0" && last != "0" {
			flow = linking(operands[0])
		}
	case mnemonic == "bcr" || mnemonic == "nopr" || mnemonic == "nop" || mnemonic == "bc" && operands[0] == "0":
	case always.MatchString(mnemonic):
		flow, direct = disasm.Jump, true
	case mnemonic == "brc", mnemonic == "brcl":
		return flow, direct, operands[0] == "0"
	case strings.HasPrefix(mnemonic, "jnop"), strings.HasPrefix(mnemonic, "jgnop"):
	case sometimes.MatchString(mnemonic) && strings.HasPrefix(last, "0x"):
		flow, direct = disasm.Branch, true
	case returning.MatchString(mnemonic):
		flow = disasm.Unknown
		switch last {
		case "%r14":
			flow = disasm.Return
		case "%r0":
			flow = disasm.Next
		}
	case comparing.MatchString(mnemonic):
		if flow = disasm.Unknown; last == "0(%r14)" {
			flow = disasm.Return
		}
		if last == "0" {
			flow = disasm.Next // to address 0
		}
	case mnemonic == "bctr" || mnemonic == "bctgr":
		if last != "%r0" && last != "0" {
			flow = disasm.Unknown
		}
	case away.MatchString(mnemonic):
		flow = disasm.Unknown
	}
	return flow, direct, true
}

func linking(operand string) disasm.Flow {
	if operand == "%r14" {
		return disasm.Call
	}
	return disasm.Unknown
}

// differsInWrites checks that the first register in the text is among the registers that may be written.
func differsInWrites(x *disasm.Instruction, mnemonic, first string) string {
	if zReading.MatchString(mnemonic) || first == "" {
		return ""
	}
	switch n := zRegister(first); {
	case strings.HasPrefix(first, "%r") && x.Writes>>n&1 == 0:
		return first + " is not written"
	case (strings.HasPrefix(first, "%f") || strings.HasPrefix(first, "%v")) && mnemonic != "ldgr" &&
		x.Writes&0xffff0000 != 0xffff0000:
		return first + " is not written"
	}
	return ""
}

func zRegister(operand string) int {
	n, err := strconv.Atoi(strings.TrimLeft(operand, "%rfv"))
	if err != nil {
		return disasm.None
	}
	return n
}

// differsInFrames compares instructions that create and remove frames.
func differsInFrames(x *disasm.Instruction, mnemonic string, operands []string, at uint64) string {
	var want disasm.Instruction
	rd, last := zRegister(operands[0]), operands[len(operands)-1]
	imm, _ := strconv.ParseInt(last, 10, 64)
	switch mnemonic {
	case "lgr":
		want = disasm.Instruction{Op: disasm.Add, Rd: rd, Rn: zRegister(last)}
	case "lghi", "lgfi":
		want = disasm.Instruction{Op: disasm.Set, Rd: rd, Imm: uint64(imm)}
	case "aghi", "agfi", "algfi":
		want = disasm.Instruction{Op: disasm.Add, Rd: rd, Rn: rd, Imm: uint64(imm)}
	case "slgfi":
		want = disasm.Instruction{Op: disasm.Add, Rd: rd, Rn: rd, Imm: uint64(-imm)}
	case "aghik", "alghsik":
		want = disasm.Instruction{Op: disasm.Add, Rd: rd, Rn: zRegister(operands[1]), Imm: uint64(imm)}
	case "larl":
		target, _ := strconv.ParseUint(strings.TrimPrefix(last, "0x"), 16, 64)
		want = disasm.Instruction{Op: disasm.Here, Rd: rd, Imm: target - at}
	case "agr", "sgr", "agrk", "sgrk":
		want = disasm.Instruction{Op: disasm.AddRegister, Rd: rd, Rn: zRegister(operands[len(operands)-2]), Rm: zRegister(last)}
		if mnemonic[0] == 's' {
			want.Op = disasm.SubRegister
		}
	case "ldgr", "lgdr":
		if mnemonic == "ldgr" {
			rd = x.Rd // a floating point register
		}
		if x.Op != disasm.Add || x.Imm != 0 || x.Rd != rd || mnemonic == "ldgr" && x.Rn != zRegister(last) {
			return "no move"
		}
		return ""
	case "la", "lay":
		return differsInAddress(x, rd, last)
	case "lg", "stg", "lmg", "stmg":
		return differsInAccess(x, mnemonic, operands)
	default:
		if x.Op != disasm.Other || x.Access.Count != 0 {
			return "it computes, or moves registers"
		}
		return ""
	}
	if x.Op != want.Op || x.Rd != want.Rd || x.Imm != want.Imm || want.Rn != 0 && x.Rn != want.Rn ||
		want.Rm != 0 && x.Rm != want.Rm {
		return fmt.Sprintf("not %+v", want)
	}
	return ""
}

// differsInAddress compares the sum that LA and LAY compute.
func differsInAddress(x *disasm.Instruction, rd int, operand string) string {
	m := places.FindStringSubmatch(operand)
	if m == nil {
		return operand
	}
	disp, _ := strconv.ParseInt(m[1], 10, 64)
	one, two := zRegister(m[2]), zRegister(m[3])
	switch {
	case one != disasm.None && two != disasm.None && disp != 0:
		if x.Op != disasm.Other || x.Writes>>rd&1 == 0 {
			return "it is three numbers"
		}
	case one != disasm.None && two != disasm.None:
		if x.Op != disasm.AddRegister || x.Rd != rd || x.Rn+x.Rm != one+two {
			return "it is the sum of two registers"
		}
	case one == disasm.None && two == disasm.None:
		if x.Op != disasm.Set || x.Rd != rd || x.Imm != uint64(disp) {
			return "it is a number"
		}
	case x.Op != disasm.Add || x.Rd != rd || x.Rn != max(one, two) || x.Imm != uint64(disp):
		return "it is a register and a number"
	}
	return ""
}

// differsInAccess compares loads and stores of whole registers.
func differsInAccess(x *disasm.Instruction, mnemonic string, operands []string) string {
	m := places.FindStringSubmatch(operands[len(operands)-1])
	if m == nil {
		return operands[len(operands)-1]
	}
	disp, _ := strconv.ParseInt(m[1], 10, 64)
	one, two := zRegister(m[2]), zRegister(m[3])
	from := zRegister(operands[0])
	regs := []int{from}
	for to := zRegister(operands[len(operands)-2]); len(operands) == 3 && from != to; regs = append(regs, from) {
		from = (from + 1) & 15
	}
	a := &x.Access
	if !slices.Equal(a.Whole[:a.Count], regs) || a.Size != 8 || a.Disp != disp ||
		a.Load != (mnemonic[0] == 'l') || a.Store == a.Load {
		return "another access"
	}
	switch known := one == disasm.None != (two == disasm.None); {
	case a.Known != known, known && a.Base != max(one, two):
		return "another place"
	}
	return ""
}
