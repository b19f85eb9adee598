package disasm_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/unwind/disasm"
)

// split splits operands at commas that are in no brackets.
func split(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range s {
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	if rest := strings.TrimSpace(s[from:]); rest != "" {
		out = append(out, rest)
	}
	return out
}

// number returns the general register that an operand is.
func number(operand string) (n int, wide, ok bool) {
	switch operand {
	case "sp":
		return disasm.A64SP, true, true
	case "wsp":
		return disasm.A64SP, false, true
	case "xzr":
		return disasm.None, true, true
	case "wzr":
		return disasm.None, false, true
	}
	if operand == "" || operand[0] != 'x' && operand[0] != 'w' {
		return 0, false, false
	}
	n, err := strconv.Atoi(operand[1:])
	return n, operand[0] == 'x', err == nil && n >= 0 && n <= 30
}

// Mnemonics by their written operands: none, the first two, the first three, or the second. Other mnemonics write the
// first operand.
var (
	writesNone = regexp.MustCompile(`^(` + strings.Join([]string{
		`cm[pn]|tst|ccm[pn]|cmpp|fc?cmpe?|fcmp.*|fccmp.*`,
		`b|b\..*|bc\..*|br|bra.*|ret.*|eret.*|drps|cbn?z|tbn?z|svc|hvc|hlt|brk|udf|dcps.`,
		`st[rpun].*|stt?r.*|stl|stlr.*|stlur.*|stllr.*|st[1-4]|st64b|stgp|stz?2?gm?|st2g|stzgm`,
		`st(add|clr|eor|set|[su]max|[su]min)l?[bh]?|prfu?m`,
		`msr|dc|ic|at|tlbi|cfp|dvp|cpp|sys|clrex|rmif|setf.*|cfinv|[ax]*aflag`,
		`dmb|dsb|isb|nop|wfe.*|wfi.*|yield|sevl?|esb|psb|tsb|csdb|dgh|bti|ssbb|pssbb|sb|brb`,
		`pac.*(sp|z)|aut.*(sp|z)|xpaclri|tcommit|tcancel`,
	}, "|") + `)$`)
	writesTwo    = regexp.MustCompile(`^(ldn?p|ldpsw|lda?xp|casp.*)$`)
	writesThree  = regexp.MustCompile(`^(cpyf?[pme].*|set[pme].*|setg[pme].*)$`)
	writesSecond = regexp.MustCompile(`^(ld(add|clr|eor|set|[su]max|[su]min)(a|l|al)?[bh]?|swp(a|l|al)?[bh]?)$`)
)

// written returns the registers that an instruction writes, by its text.
func written(mnemonic string, operands []string) (set uint32) {
	add := func(operand string) {
		if n, _, ok := number(strings.Trim(operand, "[]!")); ok && n >= 0 {
			set |= 1 << n
		}
	}
	switch {
	case strings.HasPrefix(mnemonic, "bl"):
		return 1 << disasm.A64LR
	case mnemonic == "svc":
		return 1
	case mnemonic == "chkfeat":
		return 1 << 16
	case strings.HasSuffix(mnemonic, "1716"):
		return 1 << 17
	case mnemonic == "hint":
		return hintWrites[operands[0]]
	case writesThree.MatchString(mnemonic):
		for _, o := range operands[:3] {
			add(o)
		}
		return set
	case writesSecond.MatchString(mnemonic):
		add(operands[1])
	case writesTwo.MatchString(mnemonic):
		add(operands[0])
		add(operands[1])
	case writesNone.MatchString(mnemonic):
	case len(operands) > 0:
		add(operands[0])
	}
	if signs.MatchString(mnemonic) { // the address that it has is the same
		set &^= 1 << disasm.A64LR
	}
	for i, o := range operands {
		if strings.HasSuffix(o, "]!") || strings.HasPrefix(o, "[") && i+1 < len(operands) {
			base, _, _ := strings.Cut(o, ",")
			add(base)
		}
	}
	return set
}

var (
	hintWrites = map[string]uint32{"#40": 1 << 16, "#8": 1 << 17, "#10": 1 << 17, "#12": 1 << 17, "#14": 1 << 17}
	signs      = regexp.MustCompile(`^(pac[id]z?[ab]|aut[id]z?[ab]|xpac[id])$`)
)

var conditional = regexp.MustCompile(`^(bc?\..*|[ct]bn?z)$`)

func flowOf(mnemonic string) disasm.Flow {
	switch {
	case mnemonic == "b":
		return disasm.Jump
	case mnemonic == "bl", strings.HasPrefix(mnemonic, "blr"):
		return disasm.Call
	case conditional.MatchString(mnemonic):
		return disasm.Branch
	case strings.HasPrefix(mnemonic, "ret"):
		return disasm.Return
	case mnemonic == "br", strings.HasPrefix(mnemonic, "bra"), strings.HasPrefix(mnemonic, "eret"):
		return disasm.Unknown
	case mnemonic == "brk", mnemonic == "hlt", mnemonic == "udf":
		return disasm.Ends
	}
	return disasm.Next
}

// targetOf is where a branch leads.
func targetOf(mnemonic string, operands []string) (uint64, bool) {
	switch flowOf(mnemonic) {
	case disasm.Jump, disasm.Branch:
	case disasm.Call:
		if mnemonic != "bl" {
			return 0, false
		}
	default:
		return 0, false
	}
	last, _, _ := strings.Cut(operands[len(operands)-1], " ")
	v, err := strconv.ParseUint(strings.TrimPrefix(last, "0x"), 16, 64)
	return v, err == nil
}

var (
	general = regexp.MustCompile(`^(ldr|str|ldur|stur|ldp|stp|ldnp|stnp|ldtr|sttr|ldrs?[bhw]|ldurs?[bhw]|str[bh]|` +
		`stur[bh]|ldpsw|ldraa|ldrab|ldapur|stlur|ldapurs?[bhw]|stlur[bh])$`)
	suffixes = map[string]uint64{"b": 1, "h": 2, "w": 4}
)

// differsInMemory compares the memory accesses of instructions whose address is a register plus a number.
func differsInMemory(x *disasm.Instruction, mnemonic string, operands []string) string {
	at := slices.IndexFunc(operands, func(o string) bool { return strings.HasPrefix(o, "[") })
	if !general.MatchString(mnemonic) || at < 0 {
		return ""
	}
	inner, pre := strings.CutSuffix(strings.Trim(operands[at], "["), "!")
	parts := split(strings.TrimSuffix(inner, "]"))
	base, _, _ := number(parts[0])
	index, disp, known := disasm.Offset, int64(0), true
	if len(parts) > 1 {
		disp, known = immediate(parts[1])
	}
	switch {
	case pre:
		index = disasm.Pre
	case at+1 < len(operands):
		index = disasm.Post
		disp, known = immediate(operands[at+1])
	}
	a := &x.Access
	if a.Base != base || a.Known != known || known && (a.Disp != disp || a.Index != index) {
		return fmt.Sprintf("base %d, displacement %d, index %d, known %t", base, disp, index, known)
	}
	if load := strings.HasPrefix(mnemonic, "ld"); a.Load != load || a.Store == load {
		return "load or store"
	}
	return differsInSize(a, mnemonic, operands[:at])
}

// differsInSize compares how much is accessed for the registers given, and which of them are whole.
func differsInSize(a *disasm.Access, mnemonic string, registers []string) string {
	first, wide, isGeneral := number(registers[0])
	size := suffixes[mnemonic[len(mnemonic)-1:]]
	switch {
	case size != 0 && !strings.HasPrefix(mnemonic, "ldra"):
	case isGeneral && wide:
		size = 8
	case isGeneral:
		size = 4
	default:
		size = map[byte]uint64{'q': 16, 'd': 8, 's': 4, 'h': 2, 'b': 1}[registers[0][0]]
	}
	count := len(registers)
	if !isGeneral || !wide || size != 8 {
		if a.Count != 0 || a.Size != size*uint64(count) {
			return fmt.Sprintf("%d bytes", size*uint64(count))
		}
		return ""
	}
	second := a.Whole[1]
	if count > 1 {
		second, _, _ = number(registers[1])
	}
	if a.Count != count || a.Whole != [len(a.Whole)]int{first, second} || a.Size != 8 {
		return fmt.Sprintf("%d registers of 8 bytes", count)
	}
	return ""
}

func immediate(s string) (int64, bool) {
	text, ok := strings.CutPrefix(s, "#")
	if !ok {
		return 0, false
	}
	if v, err := strconv.ParseInt(text, 0, 64); err == nil {
		return v, true
	}
	v, err := strconv.ParseUint(text, 0, 64)
	return int64(v), err == nil
}

// values gives each register a different value.
func values(reg int) uint64 { return 0x0123_4567_89ab_cdef * uint64(reg+2) }

var (
	arithmetic = regexp.MustCompile(`^(add|sub|mov|movk|and|neg)$`)
	alike      = regexp.MustCompile(`^(adds|subs|cmp|cmn|negs|orr|movz|movn|ands|tst|adrp)$`)
)

// differsInValue compares the results of the supported arithmetic, computed by the decoder and from the text.
func differsInValue(x *disasm.Instruction, mnemonic string, operands []string) string {
	if !arithmetic.MatchString(mnemonic) {
		if x.Op != disasm.Other && !alike.MatchString(mnemonic) {
			return "it is no arithmetic"
		}
		return ""
	}
	want, known := evaluate(mnemonic, operands)
	if x.Op == disasm.Other {
		if _, wide, general := number(operands[0]); known && wide && general && mnemonic != "neg" && !shifted(operands) {
			return "it is arithmetic"
		}
		return ""
	}
	if got := result(x); known && got != want {
		return fmt.Sprintf("gives %#x, not %#x", got, want)
	}
	return ""
}

// shifted reports whether the operands are not supported, or the second operand is the zero register.
func shifted(operands []string) bool {
	last := operands[len(operands)-1]
	return regexp.MustCompile(`^(lsr|asr|[us]xt[bhw])`).MatchString(last) || slices.Contains(operands, "xzr") ||
		slices.ContainsFunc(operands[1:], func(o string) bool { return o[0] == 'w' })
}

// result computes the result of a decoded instruction.
func result(x *disasm.Instruction) uint64 {
	switch x.Op {
	case disasm.Add:
		return values(x.Rn) + x.Imm
	case disasm.AddRegister:
		return values(x.Rn) + values(x.Rm)<<x.Imm
	case disasm.SubRegister:
		return values(x.Rn) - values(x.Rm)<<x.Imm
	case disasm.And:
		return values(x.Rn) & x.Imm
	case disasm.Set:
		return x.Imm
	case disasm.Insert:
		return values(x.Rn)&^(0xffff<<x.Shift) | x.Imm<<x.Shift
	case disasm.Other, disasm.Page:
	}
	return 0
}

// evaluate computes the result from the text. It is false if the instruction is not supported.
func evaluate(mnemonic string, operands []string) (uint64, bool) {
	if mnemonic == "neg" {
		return 0, false
	}
	n, wide, ok := number(operands[0])
	if !ok {
		return 0, false
	}
	shift, last := uint64(0), operands[len(operands)-1]
	kind, amount, _ := strings.Cut(last, " ")
	switch kind {
	case "lsl", "uxtx", "sxtx":
		v, _ := immediate(strings.TrimSpace(amount))
		shift, operands = uint64(v), operands[:len(operands)-1]
	case "lsr", "asr", "ror", "uxtb", "uxth", "uxtw", "sxtb", "sxth", "sxtw", "msl":
		return 0, false
	}
	second := operands[len(operands)-1]
	b, constant := immediate(second)
	m, wideToo, register := number(second)
	switch {
	case constant:
	case register && m >= 0:
		b = int64(values(m))
	case register:
		b = 0
	default:
		return 0, false
	}
	value := uint64(b) << shift
	switch mnemonic {
	case "mov":
		if !wide {
			value = uint64(uint32(value))
		}
		return value, wide && (wideToo || constant) || constant && n != disasm.A64SP
	case "movk":
		return values(n)&^(0xffff<<shift) | value, wide && n >= 0
	}
	first, _, _ := number(operands[1])
	if !wide || first < 0 && first != disasm.A64SP || register && m < 0 {
		return 0, false
	}
	switch mnemonic {
	case "add":
		return values(first) + value, true
	case "sub":
		return values(first) - value, true
	case "and":
		return values(first) & value, constant
	}
	return 0, false
}
