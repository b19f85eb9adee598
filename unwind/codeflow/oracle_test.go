package codeflow_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/codeflow"
	"pg_stat_backtrace/unwind/elfimage"
)

// slowVariable requests more instructions of each file. Functions are chosen at random.
const (
	slowVariable        = "PGSB_ORACLE_SLOW"
	instructionsDefault = 500
	instructionsRace    = 100
	instructionsSlow    = 60_000
)

// TestAgainstCFI follows the code of real files from every instruction of a function, without call frame information.
// It compares the results with call frame information: the return address, the stack pointer and every known
// register. A return that is reached without a call on the way must match completely. Instructions behind a call that
// never returns belong to other code, so the test only counts these mismatches.
func TestAgainstCFI(t *testing.T) {
	if testing.Short() {
		t.Skip("follows every function of libc, which takes half a minute")
	}
	for _, file := range imagetest.Files(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			holdAgainstCFI(t, file, &amd64)
		})
	}
}

// TestAgainstCFIOfA64 does so with files of aarch64.
func TestAgainstCFIOfA64(t *testing.T) {
	if testing.Short() {
		t.Skip("follows every function of another libc, which takes half a minute")
	}
	for _, file := range imagetest.FilesOf(t, arch.ARM64) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			holdAgainstCFI(t, file, &arm64)
		})
	}
}

// machine is the test's data about an architecture.
type machine struct {
	arch *arch.Arch
	// preserved are the registers that calls preserve.
	preserved []int
	// pushed is the number of bytes that a call has pushed at a function's beginning.
	pushed int64
	// most is the number of bytes of code that the follower requests.
	most uint64
	// scan describes the instructions of a function. It returns nil if an instruction cannot be decoded.
	scan func(start uint64, code []byte) []described
}

// described is the test's data about an instruction.
type described struct {
	at, next uint64
	nop      bool
	leaves   bool   // the instruction behind it is reached only from elsewhere, if at all
	call     bool   // it calls
	restores []int  // registers that it loads from the frame
	breaks   bool   // it jumps: restored registers may not be restored at the target
	to       uint64 // where it jumps to, 0 if that does not matter
}

// figures counts instructions by the result of following the code from each of them. illusions counts results that
// differ from call frame information. wrong counts the illusions without a call on the way. rows counts the results
// that hold for every frame, and rowless counts the others. less counts registers that only following the code gave,
// and beyond counts registers that only the row gave.
type figures struct {
	instructions, right, ambiguous, noReturn, neverReturn, other, illusions, withoutCall, wrong int
	rows, rowless, less, beyond                                                                 int
}

// oracle is one file.
type oracle struct {
	*machine

	t     *testing.T
	img   *elfimage.Image
	table *cfi.Table
	sum   figures
	code  map[uint64][]byte // by page
	back  map[uint64]bool
}

func holdAgainstCFI(t *testing.T, file string, m *machine) {
	t.Helper()
	img, table := imagetest.Open(t, file, m.arch)
	o := oracle{machine: m, t: t, img: img, table: table, code: make(map[uint64][]byte), back: make(map[uint64]bool)}
	var all []cfi.FDE
	for fde := range table.FDEs {
		all = append(all, fde)
	}
	limit := instructionsDefault
	choice := rand.New(rand.NewPCG(1, 2))
	switch {
	case os.Getenv(slowVariable) != "":
		limit = instructionsSlow
		choice = rand.New(rand.NewPCG(rand.Uint64(), 0))
	case raceEnabled:
		limit = instructionsRace
	}
	choice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
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

// bare is the code of a function without its call frame information.
type bare struct {
	*oracle

	fde cfi.FDE
	// behind are the addresses behind calls, which no path may enter; nil allows all addresses.
	behind map[uint64]bool
}

// Bytes implements codeflow.Code.
func (b bare) Bytes(addr uint64) []byte {
	const page = 256
	p, ok := b.code[addr/page]
	if !ok {
		for n := page + b.most; n > 0 && p == nil; n-- {
			p, _ = b.img.Code(addr/page*page, n)
		}
		b.code[addr/page] = p
	}
	return p[min(addr%page, uint64(len(p))):]
}

// Covered implements codeflow.Code.
func (b bare) Covered(addr uint64) (covered, entry bool) {
	if addr >= b.fde.Start && addr < b.fde.End {
		return b.behind[addr], false
	}
	row, err := b.table.Row(addr)
	if err != nil {
		return !errors.Is(err, cfi.ErrNoFDE), false
	}
	saved := row.Rule(b.arch.ReturnColumn).Kind == cfi.RuleOffset && b.pushed == 0
	atSP := row.CFA.Kind == cfi.RuleRegister && int(row.CFA.Register) == b.arch.SP
	return true, atSP && row.CFA.Offset == b.pushed-b.arch.CFAToSP && !saved
}

// Stub implements codeflow.Code.
func (b bare) Stub(uint64) bool { return false }

// Ends implements codeflow.Code.
func (b bare) Ends(uint64) bool { return false }

// Returns implements codeflow.Code.
func (b bare) Returns(entry uint64) (returns, known bool) {
	returns, known = b.back[entry]
	return returns, known
}

// Remember implements codeflow.Code.
func (b bare) Remember(entry uint64, returns bool) { b.back[entry] = returns }

const (
	cfa     = 0x7f1000
	caller  = 1 << 45 // marks a value of the caller
	nothing = 1 << 44 // marks an irrelevant value
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
	distances := codeflow.Function{Start: fde.Start, Code: code, Anchor: func(addr uint64) codeflow.Anchor {
		row, err := o.table.Row(addr)
		switch {
		case err != nil || row.CFA.Kind != cfi.RuleRegister:
			return codeflow.Anchor{}
		case int(row.CFA.Register) == o.arch.SP:
			return codeflow.Anchor{Base: codeflow.StackPointer, Offset: row.CFA.Offset}
		case int(row.CFA.Register) == o.arch.FP:
			return codeflow.Anchor{Base: codeflow.FramePointer, Offset: row.CFA.Offset}
		}
		return codeflow.Anchor{}
	}}
	all := o.scan(fde.Start, code)
	behind := map[uint64]bool{}
	for _, x := range all {
		if x.call {
			behind[x.next] = true
		}
	}
	var padding bool
	restored := map[int]bool{} // by a load, which call frame information does not contain
	unchanged := func(reg int) bool { return restored[reg] }
	saved := o.saved(fde)
	arriving := map[uint64]map[int]bool{} // registers restored before a jump forward, by target
	for _, x := range all {
		padding = padding && x.nop || x.leaves
		maps.Copy(restored, arriving[x.at])
		if row, err := o.table.Row(x.at); err == nil && !row.RAUndefined && (!padding || !x.nop) {
			if regs, stack, ok := o.describe(&row, x.at, &distances, saved, unchanged); ok {
				o.instruction(bare{o, fde, behind}, regs, stack)
			}
		}
		for _, reg := range x.restores {
			restored[reg] = true
		}
		arriving[x.to] = maps.Clone(restored)
		if x.breaks {
			clear(restored)
		}
	}
}

// saved returns the places where a function saves registers, anywhere in it. Call frame information may record a save
// later than the instruction.
func (o *oracle) saved(fde cfi.FDE) frame {
	slots := frame{}
	for at := fde.Start; at < fde.End; {
		row, err := o.table.Row(at)
		if err != nil || row.End <= at {
			break
		}
		for _, reg := range o.preserved {
			if rule := row.Rule(reg); rule.Kind == cfi.RuleOffset {
				slots[uint64(cfa+rule.Offset)] = caller | uint64(reg)
			}
		}
		if rule := row.Rule(o.arch.ReturnColumn); rule.Kind == cfi.RuleOffset {
			slots[uint64(cfa+rule.Offset)] = caller | uint64(o.arch.PC)
		}
		at = row.End
	}
	return slots
}

// describe returns the registers and the stack at an instruction. It is false if call frame information does not
// define them.
func (o *oracle) describe(row *cfi.Row, pc uint64, distances *codeflow.Function, saved frame, unchanged func(int) bool) (
	regs arch.Registers, stack frame, ok bool,
) {
	stack = maps.Clone(saved)
	if row.CFA.Kind != cfi.RuleRegister {
		return regs, stack, false
	}
	distance := row.CFA.Offset
	if int(row.CFA.Register) == o.arch.FP {
		if o.pushed == 0 {
			return regs, stack, false // package codeflow follows x86-64 alone
		}
		d, err := distances.At(pc)
		if err != nil || len(d) != 1 {
			return regs, stack, false
		}
		distance = d[0]
	}
	regs.Set(o.arch.SP, uint64(cfa-distance))
	ra := uint64(caller | o.arch.PC)
	switch rule := row.Rule(o.arch.ReturnColumn); {
	case rule.Kind == cfi.RuleOffset:
		stack[uint64(cfa+rule.Offset)] = ra
	case o.arch.ReturnColumn != o.arch.PC:
		regs.Set(o.arch.ReturnColumn, ra)
	}
	for _, reg := range o.preserved {
		regs.Set(reg, caller|uint64(reg))
		// Compilers do not record that a register was popped: data below the stack pointer is not needed any more.
		if rule := row.Rule(reg); rule.Kind == cfi.RuleOffset && rule.Offset >= -distance {
			stack[uint64(cfa+rule.Offset)] = caller | uint64(reg)
			if !unchanged(reg) {
				regs.Set(reg, nothing|uint64(reg))
			}
		}
	}
	switch int(row.CFA.Register) {
	case o.arch.SP:
	case o.arch.FP:
		regs.Set(o.arch.FP, uint64(cfa-row.CFA.Offset))
	default:
		return regs, stack, false
	}
	regs.Set(o.arch.PC, pc)
	return regs, stack, true
}

// instruction follows the code from one instruction on.
func (o *oracle) instruction(code bare, regs arch.Registers, stack frame) {
	pc, _ := regs.Get(o.arch.PC)
	at := codeflow.Place{Addr: pc, Exact: true}
	o.sum.instructions++
	if got, err := codeflow.Follow(o.arch, code, at, regs, stack, plenty()); err == nil && !code.behind[pc] {
		o.sum.withoutCall++
		if reg := o.differs(&got); reg >= 0 {
			o.sum.wrong++
			v, _ := got.Get(reg)
			o.t.Errorf("%#x: register %d: %#x", pc, reg, v)
		}
	}
	code.behind = nil
	got, err := codeflow.Follow(o.arch, code, at, regs, stack, plenty())
	o.row(code, at, &regs, stack, &got, err)
	switch {
	case errors.Is(err, codeflow.ErrAmbiguous):
		o.sum.ambiguous++
	case errors.Is(err, codeflow.ErrNeverReturns):
		o.sum.neverReturn++
	case errors.Is(err, codeflow.ErrNoReturn):
		o.sum.noReturn++
	case err != nil:
		o.sum.other++
	case o.differs(&got) >= 0:
		o.sum.illusions++
	default:
		o.sum.right++
	}
}

// row compares the row of the code from an address with the result of following the code for one frame.
func (o *oracle) row(
	code bare, at codeflow.Place, regs *arch.Registers, stack frame, want *arch.Registers, wantErr error,
) {
	row, err := codeflow.Derive(o.arch, code, at, plenty())
	if err != nil {
		if wantErr == nil {
			o.sum.rowless++
		}
		return
	}
	got, err := row.Apply(o.arch, regs, stack)
	switch {
	case errors.Is(err, codeflow.ErrNeverReturns) && errors.Is(wantErr, codeflow.ErrNeverReturns):
	case err != nil && wantErr == nil:
		o.sum.rowless++
	case err == nil && wantErr != nil && o.differs(&got) < 0:
		o.sum.beyond++ // this frame grows by a register's value, which is not its size here
	case (err == nil) != (wantErr == nil):
		o.t.Errorf("%#x: %v, and the row says %v", at.Addr, wantErr, err)
	case err == nil:
		o.sum.rows++
		for reg := range o.arch.NumRegisters {
			v, known := got.Get(reg)
			w, also := want.Get(reg)
			switch {
			case known && also && v != w, known && !also && o.differs(&got) >= 0:
				o.t.Errorf("%#x: register %d: %#x, and %#x (%t) for this frame", at.Addr, reg, v, w, also)
			case known && !also:
				o.sum.beyond++
			case also && !known:
				o.sum.less++
			}
		}
	}
}

// differs returns a register with another value than the caller's, -1 if all are equal.
func (o *oracle) differs(got *arch.Registers) int {
	for reg := range o.arch.NumRegisters {
		want := uint64(caller | reg)
		if reg == o.arch.SP {
			want = uint64(cfa + o.arch.CFAToSP)
		}
		if v, known := got.Get(reg); known && v != want {
			return reg
		}
	}
	return -1
}
