package unwind_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
)

// trampoline is code that signal handlers return to, without call frame information.
type trampoline struct {
	fakeModules

	begin uint64
	code  []byte
}

func (m trampoline) Code(addr uint64, p []byte) bool {
	at := addr - m.begin
	return addr >= m.begin && at < uint64(len(m.code)) && copy(p, m.code[at:]) == len(p)
}
func (m trampoline) Function(uint64) (start, end uint64, ok bool) { return 0, 0, false }
func (m trampoline) Stub(uint64) bool                             { return false }

// TestTrampoline checks that the interrupted code is found from each instruction of the trampoline where the
// processor is stopped, and not from instructions behind it. A handler returns to the first instruction.
func TestTrampoline(t *testing.T) {
	t.Parallel()
	const begin, interrupted, words = code + 0x40, code + 0x200, 512
	for _, tt := range []struct {
		arch    *arch.Arch
		which   int
		offsets []uint64 // of its instructions
	}{
		{arch.AMD64, 0, []uint64{0, 7}},
		{arch.ARM64, 0, []uint64{0, 4}},
		{arch.RISCV64, 0, []uint64{0, 4}},
		{arch.S390X, 1, []uint64{0}},
		{arch.PPC64LE, 0, []uint64{0}},
		{arch.PPC64LE, 1, []uint64{0, 4}},
	} {
		form := &tt.arch.Trampolines[tt.which]
		stack := fakeMemory{stackBase, make([]uint64, words)}
		for reg, addr := range tt.arch.InterruptedRegisters(form, stackBase) {
			switch reg {
			case tt.arch.PC:
				stack.words[(addr-stackBase)/8] = interrupted
			case tt.arch.SP:
				stack.words[(addr-stackBase)/8] = stackBase + words*8
			}
		}
		modules := trampoline{fakeModules{lo: code, hi: code + 0x1000}, begin, form.Code}
		for _, resumes := range []bool{false, true} {
			for offset := range uint64(len(form.Code)) + 1 {
				want := !resumes && slices.Contains(tt.offsets, offset) || offset == 0
				if !want && offset < uint64(len(form.Code)) && !resumes {
					continue // a processor never stops in the middle of an instruction
				}
				var regs arch.Registers
				regs.Set(tt.arch.PC, begin+offset)
				regs.Set(tt.arch.SP, stackBase)
				u := unwind.Unwinder{Arch: tt.arch, Resumes: resumes}
				frames, _ := u.Unwind(nil, regs, stack, modules)
				got := len(frames) > 1 && frames[1].Method == unwind.BySignalFrame && frames[1].PC == interrupted
				if got != want {
					t.Errorf("%s at %d, a call returns there: %t: %+v", tt.arch.Name, offset, resumes, frames)
				}
			}
		}
	}
}

// readable is code that the walk can also read by image, to find calls.
type readable struct{ trampoline }

func (m readable) Find(addr uint64) (unwind.Module, bool) {
	found, ok := m.trampoline.Find(addr)
	found.Code = imageCode(m)
	return found, ok
}

type imageCode readable

func (m imageCode) Code(addr, n uint64) ([]byte, error) {
	p := make([]byte, n)
	if !m.trampoline.Code(addr, p) {
		return nil, errors.New("no code")
	}
	return p, nil
}

// TestBadPointer checks that a call through a bad pointer has a caller only if the word on top of the stack is a
// return address: one behind a call, or a signal trampoline. Otherwise a function has returned to a bad address.
func TestBadPointer(t *testing.T) {
	t.Parallel()
	const function, afterCall, handlerReturn, interrupted, bad = code + 0x10, code + 0x22, code + 0x40, code + 0x50, 1
	text := bytes.Repeat([]byte{0x90}, 0x100) // nop
	copy(text[0x20:], []byte{0xff, 0xd0})     // call *%rax
	form := &arch.AMD64.Trampolines[0]
	copy(text[0x40:], form.Code)
	modules := readable{trampoline{fakeModules{lo: code, hi: code + uint64(len(text))}, code, text}}
	for word, want := range map[uint64][]uint64{
		function: {bad}, afterCall: {bad, afterCall}, handlerReturn: {bad, handlerReturn, interrupted},
	} {
		stack := fakeMemory{stackBase, make([]uint64, 64)}
		for reg, addr := range arch.AMD64.InterruptedRegisters(form, stackBase+8) {
			switch reg {
			case arch.AMD64.PC:
				stack.words[(addr-stackBase)/8] = interrupted
			case arch.AMD64.SP:
				stack.words[(addr-stackBase)/8] = stackBase + 63*8
			}
		}
		stack.words[0] = word
		u := unwind.Unwinder{Arch: arch.AMD64}
		frames, stop := u.Unwind(nil, registers(bad, stackBase, 0), stack, modules)
		if got := pcs(frames); !slices.Equal(got, want) || (len(want) == 1) != (stop.Reason == unwind.NoCode) {
			t.Errorf("%#x: %#x, %s", word, got, stop)
		}
	}
}
