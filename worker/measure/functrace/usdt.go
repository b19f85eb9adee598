package functrace

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strconv"
	"strings"

	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/unwind/elfimage"
)

// staticProbe is a static probe of an image (SystemTap's sys/sdt.h): a nop, and an ELF note with the address of the nop and the
// places of the probe's arguments.
type staticProbe struct {
	provider, name string
	addr           uint64 // link-time address of the nop
	semaphore      uint64 // link-time address of a counter; 0: none
	arguments      []string
}

// maxStatic bounds the number of static probes that are read from one image.
const maxStatic = 65536

// staticProbes reads the notes of an image's static probes. It omits damaged notes.
func staticProbes(img *elfimage.Image) []staticProbe {
	data, _, err := img.Section(".note.stapsdt")
	if err != nil {
		return nil
	}
	_, base, err := img.Section(".stapsdt.base")
	if err != nil {
		base = 0
	}
	return parseStatic(data, img.Order(), base)
}

// parseStatic parses the notes. base is the address of the section .stapsdt.base; 0: not known. A note has the address that this
// section had when the image was linked. If the section was moved since, parseStatic corrects the addresses.
func parseStatic(data []byte, order binary.ByteOrder, base uint64) (out []staticProbe) {
	const (
		header  = 12
		typeSDT = 3
		words   = 24 // bytes of three addresses
	)
	for len(data) >= header && len(out) < maxStatic {
		nameSize, size := uint64(order.Uint32(data)), uint64(order.Uint32(data[4:]))
		kind := order.Uint32(data[8:])
		start := header + align(nameSize)
		end := start + align(size)
		if nameSize > uint64(len(data)) || size > uint64(len(data)) || start+size > uint64(len(data)) {
			return out
		}
		name, desc := data[header:header+nameSize], data[start:start+size]
		data = data[min(end, uint64(len(data))):]
		if kind != typeSDT || string(bytes.TrimRight(name, "\x00")) != "stapsdt" || len(desc) < words {
			continue
		}
		text := strings.SplitN(string(desc[words:]), "\x00", 4)
		if len(text) < 3 {
			continue
		}
		p := staticProbe{
			provider: text[0], name: text[1], addr: order.Uint64(desc), semaphore: order.Uint64(desc[16:]),
			arguments: splitArguments(text[2]),
		}
		if linked := order.Uint64(desc[8:]); base != 0 && linked != 0 {
			p.addr += base - linked
			if p.semaphore != 0 {
				p.semaphore += base - linked
			}
		}
		out = append(out, p)
	}
	return out
}

func align(n uint64) uint64 { return (n + 3) &^ 3 }

// splitArguments splits a text at spaces outside of parentheses and brackets.
func splitArguments(text string) (out []string) {
	depth, start := 0, 0
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == ' ' && depth == 0:
			if i > start {
				out = append(out, text[start:i])
			}
			start = i + 1
		case text[i] == '(' || text[i] == '[':
			depth++
		case text[i] == ')' || text[i] == ']':
			depth--
		}
	}
	return out
}

// matches reports whether name means the probe. For query__start, the names are "query__start" and "query-start", with or without
// "PROVIDER:" before them.
func (p *staticProbe) matches(name string) bool {
	if provider, rest, ok := strings.Cut(name, ":"); ok {
		if provider != p.provider {
			return false
		}
		name = rest
	}
	return strings.ReplaceAll(name, "-", "__") == p.name
}

// argument returns the place of an argument, to be read in its form; false if the probe has no such argument, or its description is not supported.
func (p *staticProbe) argument(a Argument, machine elf.Machine) (out probe.Argument, ok bool) {
	parse := placeParsers[machine]
	if a.Number > len(p.arguments) || parse == nil {
		return out, false
	}
	out, ok = parse(p.arguments[a.Number-1])
	out.String = a.Form == formString
	switch a.Form {
	case formInt, formUint, formByte: // these set the size and the sign; a narrower value of the probe has a sign only if both have
		out.Signed = a.signed() && (out.Signed || a.size() <= out.Size)
		out.Size = min(out.Size, a.size())
	}
	return out, ok
}

// placeParsers parse the descriptions of arguments, by architecture.
//
//nolint:gochecknoglobals // read only
var placeParsers = map[elf.Machine]func(text string) (probe.Argument, bool){
	elf.EM_AARCH64: parsePlaceAArch64, elf.EM_X86_64: parsePlaceX86,
}

// parseSize parses the size in the description of an argument, SIZE@OPERAND, and returns the operand. A negative size means that
// the value is signed.
func parseSize(text string) (out probe.Argument, operand string, ok bool) {
	size, operand, found := strings.Cut(text, "@")
	n, err := strconv.Atoi(size)
	if !found || err != nil {
		return out, "", false
	}
	if n < 0 {
		out.Signed, n = true, -n
	}
	out.Size = n
	return out, operand, n == 1 || n == 2 || n == 4 || n == 8
}

// parsePlaceAArch64 parses the description of an argument on aarch64. An operand is a register, a constant, or
// [REGISTER, DISPLACEMENT], where a displacement of 0 is left out.
func parsePlaceAArch64(text string) (out probe.Argument, ok bool) {
	out, operand, ok := parseSize(text)
	if !ok {
		return out, false
	}
	inner, memory := strings.CutPrefix(operand, "[")
	if !memory {
		if out.Register, ok = registerAArch64(operand); ok {
			return out, true
		}
		v, err := strconv.ParseInt(operand, 0, 64)
		out.Kind, out.Offset = probe.Constant, v
		return out, err == nil
	}
	inner, ok = strings.CutSuffix(inner, "]")
	register, displacement, further := strings.Cut(inner, ",")
	if further && ok {
		v, err := strconv.ParseInt(strings.TrimSpace(displacement), 0, 64)
		out.Offset, ok = v, err == nil
	}
	if !ok {
		return out, false
	}
	out.Kind = probe.Memory
	out.Register, ok = registerAArch64(register)
	return out, ok && register[0] != 'w'
}

// registerAArch64 returns the index in NT_PRSTATUS of a general register or of the stack pointer.
func registerAArch64(name string) (int, bool) {
	const last = 30
	if name == "sp" {
		return conventions[elf.EM_AARCH64].stackPointer, true
	}
	if len(name) < 2 || name[0] != 'x' && name[0] != 'w' {
		return 0, false
	}
	n, err := strconv.ParseUint(name[1:], 10, 8)
	return int(n), err == nil && n <= last
}

// parsePlaceX86 parses the description of an argument on x86-64. An operand is %REGISTER, $CONSTANT or
// DISPLACEMENT(%REGISTER).
func parsePlaceX86(text string) (out probe.Argument, ok bool) {
	out, operand, ok := parseSize(text)
	if !ok {
		return out, false
	}
	switch {
	case strings.HasPrefix(operand, "%"):
		out.Register, ok = registerX86(operand[1:])
		return out, ok
	case strings.HasPrefix(operand, "$"):
		v, err := strconv.ParseInt(operand[1:], 0, 64)
		out.Kind, out.Offset = probe.Constant, v
		return out, err == nil
	}
	displacement, register, found := strings.Cut(operand, "(%")
	if !found || !strings.HasSuffix(register, ")") {
		return out, false
	}
	if displacement != "" {
		v, err := strconv.ParseInt(displacement, 0, 64)
		if err != nil {
			return out, false
		}
		out.Offset = v
	}
	out.Kind = probe.Memory
	out.Register, ok = registerX86(strings.TrimSuffix(register, ")"))
	return out, ok
}

// registerX86 returns the index in NT_PRSTATUS of a register of any size.
func registerX86(name string) (int, bool) {
	whole := []string{
		"r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
	}
	for i, w := range whole {
		short := w[1:] // "ax", "15"
		switch {
		case name == w:
			return i, true
		case short[0] >= '0' && short[0] <= '9':
			if name == w+"d" || name == w+"w" || name == w+"b" {
				return i, true
			}
		case name == "e"+short, name == short, name == short+"l",
			len(short) == 2 && short[1] == 'x' && name == short[:1]+"l":
			return i, true
		}
	}
	if name == "rsp" || name == "esp" {
		return conventions[elf.EM_X86_64].stackPointer, true
	}
	return 0, false
}
