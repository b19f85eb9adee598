package disasm_test

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/disasm"
)

// decoder is a decoder to compare with LLVM's disassembler.
type decoder struct {
	Machine elf.Machine
	Order   binary.ByteOrder // nil: little-endian
	// Options are options of the disassembler, for example the extensions to enable.
	Options []string
	Decode  func(p []byte) (disasm.Instruction, error)
	// Differs returns the difference between an instruction and its text, or "".
	Differs func(x *disasm.Instruction, text string, at uint64) string
	// Unknown matches texts that are not instructions. NotDecoded matches instructions that the decoder may refuse.
	Unknown, NotDecoded *regexp.Regexp
}

// line is a line of the disassembler's output: the address of an instruction, and its text without comments.
type line struct {
	At   uint64
	Text string
}

// Compare decodes the code and reports every mnemonic whose decoded instruction differs from the disassembler's text.
// It fails if it compared fewer than enough instructions.
func (d *decoder) Compare(t *testing.T, code []byte, enough int) {
	t.Helper()
	var decoded, unread, unknown int
	different, notDecoded := map[string]int{}, map[string]int{}
	lines := disassemble(t, code, d.Machine, d.Order, d.Options...)
	for i, l := range lines {
		x, err := d.Decode(code[l.At:])
		mnemonic := mnemonics.FindString(l.Text)
		switch {
		case d.Unknown.MatchString(l.Text):
			unknown++
			continue
		case err != nil:
			unread++
			if !d.NotDecoded.MatchString(l.Text) {
				notDecoded[mnemonic]++
			}
			continue
		}
		decoded++
		problem := d.Differs(&x, l.Text, l.At)
		if i+1 < len(lines) && lines[i+1].At != l.At+x.Length {
			problem = "its length"
		}
		if problem != "" {
			if different[mnemonic]++; different[mnemonic] == 1 {
				t.Errorf("%x %s: %s\n%+v", code[l.At:][:x.Length], l.Text, problem, x)
			}
		}
	}
	figure.Printf(t, "%d instructions as LLVM's disassembler has them, %d that are not decoded, %d that LLVM does not "+
		"know", decoded, unread, unknown)
	if len(different) > 0 {
		t.Errorf("these differ: %v", different)
	}
	if len(notDecoded) > 0 {
		t.Errorf("these are not decoded: %v", notDecoded)
	}
	if decoded < enough {
		t.Errorf("only %d were compared, not %d", decoded, enough)
	}
}

var (
	mnemonics   = regexp.MustCompile(`^\S+`)
	writtenLine = regexp.MustCompile(`^\s*([0-9a-f]+):\s+(.*?)\s*(?:<\..*>|//.*)?$`)
)

// disassemble returns the output of LLVM's disassembler for each instruction. A nil order means little-endian.
func disassemble(
	t *testing.T, code []byte, machine elf.Machine, order binary.ByteOrder, options ...string,
) []line {
	t.Helper()
	tool, err := exec.LookPath("llvm-objdump")
	if err != nil {
		t.Skip("no llvm-objdump here (Debian: llvm)")
	}
	f := imagetest.File{Type: elf.ET_REL, Machine: machine, Order: order, Sections: []imagetest.Section{{
		Name: ".text", Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Data: code,
	}}}
	path := filepath.Join(t.TempDir(), "code.o")
	if err := os.WriteFile(path, f.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := append([]string{"-d", "--no-show-raw-insn", "--disassemble-zeroes"}, options...)
	cmd := exec.CommandContext(t.Context(), tool, append(arguments, path)...) // the test's options
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []line
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		if m := writtenLine.FindStringSubmatch(scanner.Text()); m != nil {
			at, err := strconv.ParseUint(m[1], 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, line{at, m[2]})
		}
	}
	if err := cmd.Wait(); err != nil || len(lines) == 0 {
		t.Fatalf("%v: %d instructions", err, len(lines))
	}
	return lines
}
