package epilogue_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/cfi/cfitest"
	"pg_stat_backtrace/unwind/depth"
	"pg_stat_backtrace/unwind/epilogue"
	"pg_stat_backtrace/unwind/image"
	"pg_stat_backtrace/unwind/x86"
)

// slowVariable asks for more instructions of each file: all of the C library's. Functions are taken at random.
const (
	slowVariable        = "PGSB_ORACLE_SLOW"
	instructionsDefault = 3000
	instructionsRace    = 200
	instructionsSlow    = 60_000
)

// TestAgainstCFI follows the code of real files from every instruction of a function on, as if it had no call frame
// information, and holds what is found against what that says: the return address, the stack pointer and every register
// that is known. Where a return is reached without a call on the way, all has to be right. Behind a call that never
// returns the instructions are those of something else: that is counted.
func TestAgainstCFI(t *testing.T) {
	for _, file := range cfitest.Files(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			holdAgainstCFI(t, file)
		})
	}
}

// figures count instructions, by what following the code from them on has come to. Illusions are results that are not
// what call frame information says, wrong are those among them without a call on the way.
type figures struct{ instructions, right, ambiguous, noReturn, neverReturn, other, illusions, withoutCall, wrong int }

// oracle is one file.
type oracle struct {
	t     *testing.T
	img   *image.Image
	table *cfi.Table
	sum   figures
	code  map[uint64][]byte // by page
	back  map[uint64]bool
}

func holdAgainstCFI(t *testing.T, file string) {
	t.Helper()
	img, table := cfitest.Open(t, file)
	o := oracle{t: t, img: img, table: table, code: make(map[uint64][]byte), back: make(map[uint64]bool)}
	var all []cfi.FDE
	for fde := range table.FDEs {
		all = append(all, fde)
	}
	limit := instructionsDefault
	switch {
	case os.Getenv(slowVariable) != "":
		limit = instructionsSlow
	case raceEnabled:
		limit = instructionsRace
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, fde := range all {
		if o.function(fde); o.sum.instructions >= limit {
			break
		}
	}
	figure.Printf(t, "%+v", o.sum)
	few := o.sum.illusions*20 > o.sum.instructions || o.sum.right*10 < o.sum.instructions*6
	if o.sum.wrong > 0 || few && limit >= instructionsDefault { // one function that ends the program is no share
		t.Errorf("%+v", o.sum)
	}
}

// bare is the code of a function whose call frame information nobody has.
type bare struct {
	*oracle

	fde cfi.FDE
	// behind are the addresses behind calls, which nobody is to come to; nil: anybody may.
	behind map[uint64]bool
}

// Bytes implements epilogue.Code.
func (b bare) Bytes(addr uint64) []byte {
	const page = 256
	p, ok := b.code[addr/page]
	if !ok {
		for n := uint64(page + x86.Longest); n > 0 && p == nil; n-- {
			p, _ = b.img.Code(addr/page*page, n)
		}
		b.code[addr/page] = p
	}
	return p[min(addr%page, uint64(len(p))):]
}

// Covered implements epilogue.Code.
func (b bare) Covered(addr uint64) (covered, entry bool) {
	if addr >= b.fde.Start && addr < b.fde.End {
		return b.behind[addr], false
	}
	row, err := b.table.Row(addr)
	if err != nil {
		return !errors.Is(err, cfi.ErrNoFDE), false
	}
	return true, row.CFA.Kind == cfi.RuleRegister && row.CFA.Register == rsp && row.CFA.Offset == 8
}

// Returns implements epilogue.Code.
func (b bare) Returns(entry uint64) (returns, known bool) {
	returns, known = b.back[entry]
	return returns, known
}

// Remember implements epilogue.Code.
func (b bare) Remember(entry uint64, returns bool) { b.back[entry] = returns }

const (
	cfa     = 0x7f1000
	caller  = 1 << 62 // marks what the caller has
	nothing = 1 << 61 // marks what does not matter
)

// frame is the registers and the stack of a function as call frame information describes them.
type frame map[uint64]uint64

func (f frame) Word(addr uint64) (uint64, bool) {
	if v, ok := f[addr]; ok {
		return v, true
	}
	return addr | nothing, addr < cfa+4096 && addr > cfa-1<<20
}

func (o *oracle) function(fde cfi.FDE) {
	code, err := o.img.Code(fde.Start, fde.End-fde.Start)
	if row, bad := o.table.Row(fde.Start); err != nil || bad != nil || fde.Signal || row.End == fde.End {
		return // also with one row for all, as the GNU C library's mpn assembler has it, where it is wrong
	}
	distances := depth.Function{Start: fde.Start, Code: code, Anchor: func(addr uint64) depth.Anchor {
		row, err := o.table.Row(addr)
		switch {
		case err != nil || row.CFA.Kind != cfi.RuleRegister:
			return depth.Anchor{}
		case row.CFA.Register == rsp:
			return depth.Anchor{Base: depth.StackPointer, Offset: row.CFA.Offset}
		case row.CFA.Register == rbp:
			return depth.Anchor{Base: depth.FramePointer, Offset: row.CFA.Offset}
		}
		return depth.Anchor{}
	}}
	var padding bool
	restored := map[int]bool{} // by a load, which call frame information does not tell
	saved, behind := o.saved(fde), behindCalls(fde.Start, code)
	for at := uint64(0); at < uint64(len(code)); {
		x, err := x86.Decode(code[at:])
		if err != nil {
			return
		}
		nop := x.Op == x86asm.NOP || x.Op == x86asm.XCHG && x.Args[0] == x.Args[1]
		padding = padding && nop || x.Op == x86asm.RET || x.Op == x86asm.JMP || x.Op == x86asm.UD2
		if row, err := o.table.Row(fde.Start + at); err == nil && !row.RAUndefined && (!padding || !nop) {
			o.instruction(bare{o, fde, behind}, &row, fde.Start+at, &distances, saved, restored)
		}
		if m, ok := x.Args[1].(x86asm.Mem); ok && x.Op == x86asm.MOV && (m.Base == x86asm.RBP || m.Base == x86asm.RSP) {
			restored[preservedBy[x.Args[0]]] = true
		} else if _, jumps := x.Args[0].(x86asm.Rel); jumps || x.Op == x86asm.RET || x.Op == x86asm.JMP {
			clear(restored)
		}
		at += uint64(x.Len)
	}
}

// behindCalls are the addresses behind a function's calls.
func behindCalls(start uint64, code []byte) map[uint64]bool {
	behind := make(map[uint64]bool)
	for at := 0; at < len(code); {
		x, err := x86.Decode(code[at:])
		if err != nil {
			break
		}
		at += x.Len
		if x.Op == x86asm.CALL {
			behind[start+uint64(at)] = true
		}
	}
	return behind
}

// saved is where a function saves registers, anywhere in it: call frame information may tell it later than the
// instructions do it.
func (o *oracle) saved(fde cfi.FDE) frame {
	slots := frame{}
	for at := fde.Start; at < fde.End; {
		row, err := o.table.Row(at)
		if err != nil || row.End <= at {
			break
		}
		for _, reg := range preserved {
			if rule := row.Rule(reg); rule.Kind == cfi.RuleOffset {
				slots[uint64(cfa+rule.Offset)] = caller | uint64(reg)
			}
		}
		at = row.End
	}
	return slots
}

// preserved are the registers that calls preserve.
var (
	preserved   = []int{rbx, rbp, r12, 13, 14, 15}
	preservedBy = map[x86asm.Arg]int{
		x86asm.RBX: rbx, x86asm.RBP: rbp, x86asm.R12: r12, x86asm.R13: 13, x86asm.R14: 14, x86asm.R15: 15,
	}
)

// instruction follows the code from one instruction on.
func (o *oracle) instruction(code bare, row *cfi.Row, pc uint64, distances *depth.Function, saved frame,
	restored map[int]bool,
) {
	var regs arch.Registers
	stack := maps.Clone(saved)
	stack[cfa-8] = caller | rip
	if row.CFA.Kind != cfi.RuleRegister {
		return
	}
	distance := row.CFA.Offset
	if row.CFA.Register == rbp {
		d, err := distances.At(pc)
		if err != nil || len(d) != 1 {
			return
		}
		distance = d[0]
	}
	regs.Set(rsp, uint64(cfa-distance))
	for _, reg := range preserved {
		regs.Set(reg, caller|uint64(reg))
		// Compilers do not tell that a register has been popped: what lies below the stack pointer is not needed any
		// more.
		if rule := row.Rule(reg); rule.Kind == cfi.RuleOffset && rule.Offset >= -distance {
			stack[uint64(cfa+rule.Offset)] = caller | uint64(reg)
			if !restored[reg] {
				regs.Set(reg, nothing|uint64(reg))
			}
		}
	}
	switch row.CFA.Register {
	case rsp:
	case rbp:
		regs.Set(rbp, uint64(cfa-row.CFA.Offset))
	default:
		return
	}
	regs.Set(rip, pc)
	o.sum.instructions++
	if got, err := epilogue.Follow(code, regs, stack, plenty()); err == nil && !code.behind[pc] {
		o.sum.withoutCall++
		if reg := differs(&got); reg >= 0 {
			o.sum.wrong++
			v, _ := got.Get(reg)
			o.t.Errorf("%#x: register %d: %#x", pc, reg, v)
		}
	}
	code.behind = nil
	got, err := epilogue.Follow(code, regs, stack, plenty())
	switch {
	case errors.Is(err, epilogue.ErrAmbiguous):
		o.sum.ambiguous++
	case errors.Is(err, epilogue.ErrNeverReturns):
		o.sum.neverReturn++
	case errors.Is(err, epilogue.ErrNoReturn):
		o.sum.noReturn++
	case err != nil:
		o.sum.other++
	case differs(&got) >= 0:
		o.sum.illusions++
	default:
		o.sum.right++
	}
}

// differs returns a register that is not the caller's, -1 if there is none.
func differs(got *arch.Registers) int {
	for reg := range rip + 1 {
		want := uint64(caller | reg)
		if reg == rsp {
			want = cfa
		}
		if v, known := got.Get(reg); known && v != want {
			return reg
		}
	}
	return -1
}
