package unwind_test

import (
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
)

// probed is code without call frame information, and a page to which functions return whose return is probed.
type probed struct {
	fakeModules

	trampoline uint64
}

func (p probed) ReturnProbe(addr uint64) bool { return addr == p.trampoline }

// TestReturnProbe: a stack goes on behind a return probe by the frame pointer, if that has a record above which nothing
// can be missing, and says what has cut it otherwise. What call frame information tells is tested with real probes, in
// package capture.
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
