package codeflow

import (
	"slices"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
)

// TestDepthAgainstCFI follows the functions of real files from their entry. It checks that the distances found include the
// distance in call frame information. Only the entry is an anchor here.
func TestDepthAgainstCFI(t *testing.T) {
	for _, file := range imagetest.Files(t) {
		t.Run(file, func(t *testing.T) { holdAgainstCFI(t, file) })
	}
}

func isNop(code []byte) bool {
	x, err := x86asm.Decode(code, 64)
	return err == nil && (x.Op == x86asm.NOP || x.Op == x86asm.XCHG && x.Args[0] == x.Args[1])
}

// depthFigures count functions, and instructions where call frame information defines the CFA by the stack pointer.
type depthFigures struct{ functions, undecodable, exact, ambiguous, unknown, unreached, wrong int }

func holdAgainstCFI(t *testing.T, file string) {
	t.Helper()
	img, table := imagetest.Open(t, file, arch.AMD64)
	var sum depthFigures
	selected, index := figure.Share(t, 3), 0
	for fde := range table.FDEs {
		if index++; selected(index) {
			holdFunction(t, &sum, img, table, fde)
		}
	}
	figure.Printf(t, "%+v", sum)
	if sum.wrong > 0 || sum.exact < 8*(sum.ambiguous+sum.unknown+sum.unreached) {
		t.Errorf("%+v", sum)
	}
}

func holdFunction(t *testing.T, sum *depthFigures, img *elfimage.Image, table *cfi.Table, fde cfi.FDE) {
	t.Helper()
	code, err := img.Code(fde.Start, fde.End-fde.Start)
	if err != nil {
		return
	}
	fn := Function{Start: fde.Start, Code: code, Anchor: func(addr uint64) Anchor {
		if addr == fde.Start {
			return Anchor{Base: StackPointer, Offset: 8}
		}
		if row, err := table.Row(addr); err == nil && row.CFA.Kind == cfi.RuleRegister && row.CFA.Register == 6 {
			return Anchor{Base: FramePointer, Offset: row.CFA.Offset}
		}
		return Anchor{}
	}}
	if row, err := table.Row(fde.Start); err != nil || row.CFA.Offset != 8 || row.CFA.Register != 7 || fde.Signal ||
		row.Start == fde.Start && row.End == fde.End {
		// Skip functions that calls do not enter, and functions with a single row for all code, as in the GNU C
		// library's mpn assembler, where the row is wrong.
		return
	}
	sum.functions++
	w, err := fn.follow()
	if err != nil {
		sum.undecodable++
		return
	}
	padding := false
	for i := range w.insts {
		at := w.insts[i].offset
		pc := fde.Start + uint64(at)
		before := padding
		last := w.insts[i].effect
		padding = last == depthEnds || last == depthJump || last == anywhere || before && isNop(code[at:])
		row, err := table.Row(pc)
		bySP := err == nil && row.CFA.Kind == cfi.RuleRegister && row.CFA.Register == 7
		if !bySP || row.RAUndefined || before && isNop(code[at:]) {
			continue
		}
		switch d := w.insts[i].anchored(); {
		case d.unknown:
			sum.unknown++
		case d.n == 0:
			sum.unreached++
		case !slices.Contains(d.list(), row.CFA.Offset):
			sum.wrong++
			t.Errorf("%#x: %v instead of %d", pc, d.list(), row.CFA.Offset)
		case d.n == 1:
			sum.exact++
		default:
			sum.ambiguous++
		}
	}
}
