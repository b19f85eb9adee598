package unwind_test

import (
	"bytes"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
)

// probed is code without call frame information, and a page with the code to which probed functions return.
type probed struct {
	fakeModules

	trampoline uint64
}

func (p probed) ReturnProbe(addr uint64) bool { return addr == p.trampoline }

// TestReturnProbe checks that a walk continues behind a return probe by the frame pointer, if no frame can be missing
// before its record. Otherwise the walk reports the probe as the reason for its end. Package capture tests return
// probes together with call frame information, with real probes.
func TestReturnProbe(t *testing.T) {
	t.Parallel()
	const trampoline = 0x7fffffffe000
	const sp = stackBase
	for _, tt := range []struct {
		name   string
		page   uint64 // of the trampoline
		fp     uint64
		words  []uint64
		pcs    []uint64
		reason unwind.Reason
	}{
		{
			"behind one", trampoline, sp, []uint64{sp + 24, trampoline, 1, sp + 48, code + 2, 1, 0, 0},
			[]uint64{code + 1, trampoline, code + 2}, unwind.NoCFI,
		},
		{
			"behind two", trampoline, sp, []uint64{sp + 24, trampoline, 1, sp + 40, trampoline, sp + 56, code + 3, 0, 0},
			[]uint64{code + 1, trampoline, trampoline, code + 3}, unwind.NoCFI,
		},
		{
			"no record", trampoline, sp, []uint64{2, trampoline, 1},
			[]uint64{code + 1, trampoline}, unwind.ReturnProbe,
		},
		{
			"a record whose return address is in no code", trampoline, sp, []uint64{sp + 16, trampoline, 0, 0x99},
			[]uint64{code + 1, trampoline}, unwind.ReturnProbe,
		},
		{
			"another return to a probe between", trampoline, sp, []uint64{sp + 32, trampoline, 1, trampoline, 0, code + 2},
			[]uint64{code + 1, trampoline}, unwind.ReturnProbe,
		},
		{
			"a record that is not on the stack", trampoline, sp, []uint64{sp - 64, trampoline, 1},
			[]uint64{code + 1, trampoline}, unwind.ReturnProbe,
		},
		{
			"a record far away", trampoline, sp,
			slices.Concat([]uint64{sp + 1<<17, trampoline}, make([]uint64, 1<<14-2), []uint64{0, code + 2}),
			[]uint64{code + 1, trampoline}, unwind.ReturnProbe,
		},
		{
			"no probe", trampoline + 4096, sp, []uint64{sp + 24, trampoline, 1, 0, code + 2},
			[]uint64{code + 1}, unwind.NoCFI,
		},
	} {
		u := unwind.Unwinder{Arch: arch.AMD64}
		modules := probed{fakeModules{lo: code, hi: codeEnd}, tt.page}
		frames, stop := u.Unwind(nil, registers(code+1, sp, tt.fp), fakeMemory{sp, tt.words}, modules)
		if got := pcs(frames); !slices.Equal(got, tt.pcs) || stop.Reason != tt.reason {
			t.Errorf("%s: %x, %s; want %x", tt.name, got, stop, tt.pcs)
		}
	}
}

// TestReturnProbeChains checks the same for the chain of each architecture. Other possible return addresses before
// the next record do not count only if the ABI requires the chain in every function that makes calls.
func TestReturnProbeChains(t *testing.T) {
	t.Parallel()
	const trampoline = 0x7fffffffe000
	const sp = stackBase
	found := []uint64{code + 1, trampoline, code + 2}
	signed := arch.ARM64.WithCodeMask(0xff << 48)
	for _, tt := range []struct {
		name    string
		arch    *arch.Arch
		base    uint64 // of the first record
		words   map[uint64]uint64
		between uint64 // where one is put that may be a return address
		beyond  uint64 // and where it must not matter
		always  bool
	}{
		{"arm64", signed, sp, map[uint64]uint64{sp: sp + 64, sp + 8: trampoline, sp + 72: code + 2}, sp + 56, sp + 80, false},
		{"riscv64", arch.RISCV64, sp + 16, map[uint64]uint64{sp: sp + 80, sp + 8: trampoline, sp + 72: code + 2}, sp + 56,
			sp + 80, false},
		{"s390x", arch.S390X, sp, map[uint64]uint64{
			sp: sp + 160, sp + 160: sp + 480, sp + 160 + 112: trampoline, sp + 480 + 112: code + 2,
		}, sp + 480 + 104, sp + 160 + 104, false},
		{"ppc64le", arch.PPC64LE, sp, map[uint64]uint64{
			sp: sp + 32, sp + 32: sp + 96, sp + 32 + 16: trampoline, sp + 96 + 16: code + 2,
		}, sp + 96, sp + 40, true},
	} {
		for _, other := range []struct {
			what string
			at   uint64
			word uint64
			want []uint64
		}{
			{"nothing between", sp + 127*8, 1, found},
			{"a return address beyond", tt.beyond, code + 3, found},
			{"one between", tt.between, code + 3, found[:2]},
			{"another probe's between", tt.between, trampoline, found[:2]},
			{"one that is signed", tt.between, code + 3 | 0x5a<<48, found[:2]},
		} {
			if tt.always || other.word>>48 != 0 && tt.arch.CodeMask == 0 {
				other.want = found
			}
			memory := fakeMemory{sp, make([]uint64, 128)}
			for at, word := range tt.words {
				memory.words[(at-sp)/8] = word
			}
			memory.words[(other.at-sp)/8] = other.word
			var regs arch.Registers
			regs.Set(tt.arch.PC, code+1)
			regs.Set(tt.arch.SP, sp)
			regs.Set(tt.arch.Chain.Base, tt.base)
			u := unwind.Unwinder{Arch: tt.arch}
			frames, stop := u.Unwind(nil, regs, memory, probed{fakeModules{lo: code, hi: codeEnd}, trampoline})
			if got := pcs(frames); !slices.Equal(got, other.want) || len(other.want) == 2 && stop.Reason != unwind.ReturnProbe {
				t.Errorf("%s, %s: %x, %s; want %x", tt.name, other.what, got, stop, other.want)
			}
		}
	}
}

// calling is code that consists of calls of one function: aarch64's bl to itself.
type calling struct{ probed }

func (c calling) Find(addr uint64) (unwind.Module, bool) {
	m, ok := c.probed.Find(addr)
	m.Code = c
	return m, ok
}

func (calling) Code(_, n uint64) ([]byte, error) {
	return bytes.Repeat([]byte{0, 0, 0, 0x94}, int(n)/4), nil
}

// TestReturnProbeLoose checks a chain that does not give the size of a frame. A return address before the next record
// then counts, whatever the call before it calls.
func TestReturnProbeLoose(t *testing.T) {
	t.Parallel()
	const trampoline = 0x7fffffffe000
	for _, between := range []uint64{1, code + 12} {
		memory := fakeMemory{stackBase, []uint64{stackBase + 32, trampoline, between, 1, 0, code + 8}}
		var regs arch.Registers
		regs.Set(arch.ARM64.PC, code+4)
		regs.Set(arch.ARM64.SP, stackBase)
		regs.Set(arch.ARM64.Chain.Base, stackBase)
		u := unwind.Unwinder{Arch: arch.ARM64}
		frames, stop := u.Unwind(nil, regs, memory, calling{probed{fakeModules{lo: code, hi: codeEnd}, trampoline}})
		want := []uint64{code + 4, trampoline, code + 8}
		if between != 1 {
			want = want[:2]
		}
		if got := pcs(frames); !slices.Equal(got, want) {
			t.Errorf("%x between: %x, %s; want %x", between, got, stop, want)
		}
	}
}
