package a64_test

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/a64"
	"pg_stat_backtrace/unwind/image/imagetest"
	"pg_stat_backtrace/unwind/insn"
)

// TestAgainstDisassembler decodes instructions of all kinds, 512 words at random for each value of the eleven highest
// bits (32 with the race detector), and holds what they do against what LLVM's disassembler writes of them: the
// registers that are written, where branches lead, what memory is accessed and how, and what arithmetic does.
func TestAgainstDisassembler(t *testing.T) {
	each := 512
	if raceEnabled {
		each = 32
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same words each time
	var words []uint32
	for high := range uint32(1 << 11) {
		for range each {
			if w := high<<21 | random.Uint32N(1<<21); !scalable(w) {
				words = append(words, w)
			}
		}
	}
	compare(t, words)
}

// compare holds what is decoded against what the disassembler prints.
func compare(t *testing.T, words []uint32) {
	t.Helper()
	var decoded, unknown, unread int
	notDecoded := map[string]int{}
	different := map[string]int{}
	for i, text := range disassemble(t, words) {
		p := binary.LittleEndian.AppendUint32(nil, words[i])
		x, err := a64.Decode(p)
		mnemonic, _, _ := strings.Cut(text, "\t")
		switch {
		case text == "<unknown>":
			unknown++
			continue
		case err != nil:
			if !notFollowed.MatchString(text) {
				notDecoded[mnemonic]++
			}
			unread++
			continue
		}
		decoded++
		if problem := differs(&x, text, uint64(i)*4); problem != "" {
			different[mnemonic]++
			if different[mnemonic] == 1 {
				t.Errorf("%08x %s: %s\n%+v", words[i], text, problem, x)
			}
		}
	}
	figure.Printf(t, "%d instructions as LLVM's disassembler has them, %d that are not decoded, %d that LLVM does "+
		"not know", decoded, unread, unknown)
	if len(different) > 0 {
		t.Errorf("these differ: %v", different)
	}
	if decoded < len(words)/4 {
		t.Errorf("only %d of %d were compared", decoded, len(words))
	}
	for mnemonic, n := range notDecoded {
		t.Errorf("%s: not decoded %d times", mnemonic, n)
	}
}

// scalable reports whether an instruction is one of the scalable vector or matrix extension, which are not followed.
func scalable(w uint32) bool { return w>>25&15 == 0b0010 || w>>25&15 == 0 && w>>31 != 0 }

// notFollowed are others that are not decoded: memory tags, transactions, what calls those above an operating system,
// and system registers of which there are none.
var notFollowed = regexp.MustCompile(`^(stz?2?g|ldg|st64bv0?|ld64b|tcancel|hvc|smc|dcps[123])\t|\bS0_`)

var line = regexp.MustCompile(`^\s*([0-9a-f]+):\s+(.*?)\s*(?://.*)?$`)

// disassemble returns what LLVM's disassembler prints of each word.
func disassemble(t *testing.T, words []uint32) []string {
	t.Helper()
	tool, err := exec.LookPath("llvm-objdump")
	if err != nil {
		t.Skip("no llvm-objdump here (Debian: llvm)")
	}
	code := make([]byte, 0, 4*len(words))
	for _, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	f := imagetest.File{Type: elf.ET_REL, Machine: elf.EM_AARCH64, Sections: []imagetest.Section{{
		Name: ".text", Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Data: code,
	}}}
	path := filepath.Join(t.TempDir(), "words.o")
	if err := os.WriteFile(path, f.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tool, "-d", "--no-show-raw-insn", "--disassemble-zeroes",
		"--mattr=+v8.7a,+lse,+mte,+ls64,+rcpc-immo,+sve2,+sme,+flagm,+altnzcv,+tme,+fullfp16,+bf16,+i8mm,+hbc,+mops", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	texts := make([]string, 0, len(words))
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := line.FindStringSubmatch(lines.Text()); m != nil {
			texts = append(texts, m[2])
		}
	}
	if err := cmd.Wait(); err != nil || len(texts) != len(words) {
		t.Fatalf("%v: %d of %d words", err, len(texts), len(words))
	}
	return texts
}

// differs says in what an instruction is not what the disassembler says; empty: in nothing.
func differs(x *insn.Instruction, text string, at uint64) string {
	mnemonic, rest, _ := strings.Cut(text, "\t")
	operands := split(rest)
	if want := written(mnemonic, operands); want != x.Writes {
		return fmt.Sprintf("writes %032b, not %032b", x.Writes, want)
	}
	if flow := flowOf(mnemonic); flow != x.Flow {
		return fmt.Sprintf("flow %d, not %d", x.Flow, flow)
	}
	if target, ok := targetOf(mnemonic, operands); ok != x.Direct || ok && target != at+uint64(x.Target) {
		return fmt.Sprintf("leads to %#x, not %#x", at+uint64(x.Target), target)
	}
	if problem := differsInMemory(x, mnemonic, operands); problem != "" {
		return problem
	}
	return differsInValue(x, mnemonic, operands)
}
