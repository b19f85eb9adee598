package disasm_test

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/disasm"
)

// TestAgainstDisassembler decodes instructions of all kinds: 512 random words for each value of the eleven highest
// bits in full runs, and a share of them otherwise (32 with the race detector). It compares the results with LLVM's disassembler: written registers, targets of
// branches, memory accesses, and the results of arithmetic.
func TestAgainstDisassembler(t *testing.T) {
	each := 512
	selected := figure.Share(t, 8)
	if raceEnabled {
		each, selected = 32, func(int) bool { return true }
	}
	random := rand.New(rand.NewPCG(1, 2))
	var words []uint32
	for high := range uint32(1 << 11) {
		for i := range each {
			if w := high<<21 | random.Uint32N(1<<21); selected(i) && !scalable(w) {
				words = append(words, w)
			}
		}
	}
	compare(t, words, len(words)/4)
}

// compare checks the decoder against the disassembler's output.
func compare(t *testing.T, words []uint32, enough int) {
	t.Helper()
	var code []byte
	for _, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	d := decoder{
		Machine: elf.EM_AARCH64, Decode: disasm.DecodeA64, Differs: differs,
		Options: []string{
			"--mattr=+v8.7a,+lse,+mte,+ls64,+rcpc-immo,+sve2,+sme,+flagm,+altnzcv,+tme,+fullfp16,+bf16,+i8mm,+hbc,+mops",
		},
		Unknown: regexp.MustCompile(`^<unknown>`), NotDecoded: notFollowed,
	}
	d.Compare(t, code, enough)
}

// scalable reports whether an instruction is one of the scalable vector or matrix extension, which are not followed.
func scalable(w uint32) bool { return w>>25&15 == 0b0010 || w>>25&15 == 0 && w>>31 != 0 }

// notFollowed are other instructions that are not decoded: memory tags, transactions, calls to layers above an
// operating system, and nonexistent system registers.
var notFollowed = regexp.MustCompile(`^(stz?2?g|ldg|st64bv0?|ld64b|tcancel|hvc|smc|dcps[123])\t|\bS0_`)

// differs returns the difference between an instruction and the disassembler's text, or "".
func differs(x *disasm.Instruction, text string, at uint64) string {
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
