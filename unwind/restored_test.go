package unwind_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
)

// function is code all of which is one function, up to an address.
type function struct {
	fakeModules

	end   uint64
	insns []uint32
}

func (m function) Code(addr uint64, p []byte) bool {
	var all []byte
	for _, insn := range m.insns {
		all = binary.LittleEndian.AppendUint32(all, insn)
	}
	return addr == m.lo && copy(p, all) == len(p)
}

func (m function) Function(addr uint64) (start, end uint64, ok bool) {
	return m.lo, m.end, addr < m.end
}
func (m function) Stub(uint64) bool { return false }

// TestRestored checks functions of 64-bit PowerPC without call frame information, interrupted before and after they
// removed their frame. Afterwards, the back chain begins with their caller's frame, which must not be left out.
func TestRestored(t *testing.T) {
	t.Parallel()
	const (
		stdu, addi, nop, bl = 0xf821ffd1, 0x383f0030, 0x60000000, 0x48000011
		end                 = code + 0x100
		middle, outer       = code + 0x200, code + 0x300 // return addresses in the callers
		inside              = code + 8
	)
	leaf, saves := []uint32{stdu, nop, nop, addi, nop}, []uint32{stdu, bl, nop, addi, nop}
	// Frames of 48 bytes each, from the bottom: the function's, its caller's, the next caller's, and the first.
	stack := make([]uint64, 24)
	for i, frame := range []uint64{0, 6, 12} {
		stack[frame] = stackBase + (frame+6)*8
		stack[frame+6+2] = []uint64{middle, outer, 0x1234}[i] // saved by the function of the frame, in its caller's
	}
	unsaved := slices.Clone(stack)
	unsaved[6+2] = outer // left over from a call before
	for _, test := range []struct {
		name  string
		insns []uint32
		at    uint64 // number of the instruction
		link  uint64
		stack []uint64
	}{
		{"leaf, before it takes a frame", leaf, 0, middle, unsaved},
		{"leaf with its frame", leaf, 2, middle, unsaved},
		{"leaf, frame given back", leaf, 4, middle, unsaved},
		{"with its frame", saves, 2, inside, stack},
		{"frame given back, return address not yet taken", saves, 4, inside, stack},
		{"frame given back, return address taken", saves, 4, middle, stack},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			sp := uint64(stackBase)
			if test.at == 0 || test.at == 4 {
				sp += 48
			}
			pc := code + 4*test.at
			a := arch.PPC64LE
			var r arch.Registers
			r.Set(a.SP, sp)
			r.Set(a.Index(uint64(a.ReturnColumn)), test.link)
			r.Set(a.PC, pc)
			u := unwind.Unwinder{Arch: a}
			frames, stop := u.Unwind(nil, r, fakeMemory{stackBase, test.stack},
				function{fakeModules{lo: code, hi: codeEnd}, end, test.insns})
			if got, want := pcs(frames), []uint64{pc, middle, outer}; !slices.Equal(got, want) {
				t.Errorf("%x, want %x: %s", got, want, stop)
			}
		})
	}
}

// TestCallStub checks calls in stubs that ppc64le's linkers put among the functions of a file. The back chain begins
// with the frame of the calling function, which must not be left out.
func TestCallStub(t *testing.T) {
	t.Parallel()
	const middle, outer = code + 0x200, code + 0x300
	far := []uint32{0xf8410018, 0x3d82ffff, 0xe98c7558, 0x7d8903a6, 0x4e800420}
	near := []uint32{0xf8410018, 0xe9827558, 0x7d8903a6, 0x4e800420}
	stack := make([]uint64, 18)
	stack[0], stack[6], stack[6+2], stack[12+2] = stackBase+48, stackBase+96, outer, 0x1234
	for _, test := range []struct {
		name  string
		insns []uint32
		want  []uint64
	}{
		{"far", far, []uint64{middle, outer}},
		{"near", near, []uint64{middle, outer}},
		// By the back chain alone.
		{"no stub: that of a function pointer", []uint32{0xf8410018, 0xe9830000, 0x7d8903a6, 0x4e800420}, []uint64{outer}},
	} {
		for i := range test.insns {
			a, pc := arch.PPC64LE, code+4*uint64(i)
			var r arch.Registers
			r.Set(a.SP, stackBase)
			r.Set(a.Index(uint64(a.ReturnColumn)), middle)
			r.Set(a.PC, pc)
			u := unwind.Unwinder{Arch: a}
			frames, stop := u.Unwind(nil, r, fakeMemory{stackBase, stack},
				function{fakeModules{lo: code, hi: codeEnd}, code, test.insns})
			if got, want := pcs(frames), append([]uint64{pc}, test.want...); !slices.Equal(got, want) {
				t.Errorf("%s, instruction %d: %x, want %x: %s", test.name, i, got, want, stop)
			}
		}
	}
}
