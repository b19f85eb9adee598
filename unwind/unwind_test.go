package unwind_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
)

// fakeMemory is a stack that starts at base.
type fakeMemory struct {
	base  uint64
	words []uint64
}

func (m fakeMemory) Word(addr uint64) (uint64, bool) {
	i := (addr - m.base) / 8
	if addr < m.base || addr%8 != 0 || i >= uint64(len(m.words)) {
		return 0, false
	}
	return m.words[i], true
}

func (m fakeMemory) Read(addr uint64, size int) (uint64, bool) {
	if size != 8 {
		return 0, false
	}
	return m.Word(addr)
}

// fakeModules is code without call frame information from lo to hi, and, if
// there is a table, with it from tableLo to tableHi, not relocated.
type fakeModules struct {
	lo, hi           uint64
	tableLo, tableHi uint64
	table            *cfi.Table
}

func (m fakeModules) Find(addr uint64) (unwind.Module, bool) {
	switch {
	case m.table != nil && addr >= m.tableLo && addr < m.tableHi:
		return unwind.Module{CFI: m.table}, true
	case addr >= m.lo && addr < m.hi:
		return unwind.Module{}, true
	}
	return unwind.Module{}, false
}

const (
	stackBase = 0x7ff000
	code      = 0x400000
	codeEnd   = 0x410000
)

func registers(pc, sp, fp uint64) arch.Registers {
	var r arch.Registers
	r.Set(arch.AMD64.PC, pc)
	r.Set(arch.AMD64.SP, sp)
	r.Set(arch.AMD64.FP, fp)
	return r
}

// withoutCFI are stacks in code that no call frame information covers. The
// stack pointer is stackBase.
func withoutCFI() []fallbackTest {
	return []fallbackTest{
		{
			name: "frame pointers to the zero at the stack's base",
			pc:   code + 1, fp: stackBase,
			words: []uint64{stackBase + 16, code + 2, stackBase + 32, code + 3, 0, 0},
			pcs:   []uint64{code + 1, code + 2, code + 3}, reason: unwind.NoCFI,
		},
		{
			name: "frame pointer that leads back",
			pc:   code + 1, fp: stackBase + 16,
			words: []uint64{0, 0, stackBase, code + 2},
			pcs:   []uint64{code + 1, code + 2}, reason: unwind.NoCFI,
		},
		{
			name: "frame pointer below the stack pointer",
			pc:   code + 1, fp: stackBase - 16, words: []uint64{0, 0},
			pcs: []uint64{code + 1}, reason: unwind.NoCFI,
		},
		{
			name: "misaligned frame pointer",
			pc:   code + 1, fp: stackBase + 4, words: []uint64{0, 0, 0},
			pcs: []uint64{code + 1}, reason: unwind.NoCFI,
		},
		{
			name: "frame pointer at the end of the address space",
			pc:   code + 1, fp: ^uint64(7), words: []uint64{0},
			pcs: []uint64{code + 1}, reason: unwind.NoCFI,
		},
		{
			name: "return address outside code is not believed",
			pc:   code + 1, fp: stackBase, words: []uint64{stackBase + 16, 0x1234},
			pcs: []uint64{code + 1}, reason: unwind.NoCFI,
		},
		{
			name: "jump through NULL returns to its caller",
			pc:   0, fp: stackBase + 8,
			words: []uint64{code + 9, 0, 0},
			pcs:   []uint64{0, code + 9}, reason: unwind.NoCFI,
		},
		{
			name: "jump through NULL with garbage on the stack",
			pc:   0, fp: 0, words: []uint64{0x99},
			pcs: []uint64{0}, reason: unwind.NoCode,
		},
		{
			name: "no memory at all",
			pc:   code, fp: stackBase, words: nil,
			pcs: []uint64{code}, reason: unwind.NoCFI,
		},
	}
}

type fallbackTest struct {
	name   string
	pc     uint64
	fp     uint64
	words  []uint64
	pcs    []uint64
	reason unwind.Reason
}

func TestWithoutCFI(t *testing.T) {
	t.Parallel()
	for _, tt := range withoutCFI() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := unwind.Unwinder{Arch: arch.AMD64}
			frames, stop := u.Unwind(nil, registers(tt.pc, stackBase, tt.fp),
				fakeMemory{stackBase, tt.words}, fakeModules{lo: code, hi: codeEnd})
			if got := pcs(frames); !slices.Equal(got, tt.pcs) || stop.Reason != tt.reason {
				t.Errorf("got %x, %s; want %x, %s", got, stop, tt.pcs, tt.reason)
			}
		})
	}
}

func pcs(frames []unwind.Frame) []uint64 {
	out := make([]uint64, len(frames))
	for i := range frames {
		out[i] = frames[i].PC
	}
	return out
}

func TestNoRegisters(t *testing.T) {
	t.Parallel()
	u := unwind.Unwinder{Arch: arch.AMD64}
	frames, stop := u.Unwind(nil, arch.Registers{}, fakeMemory{}, fakeModules{})
	if len(frames) != 0 || stop.Reason != unwind.NoRegisters {
		t.Errorf("got %v, %s", frames, stop)
	}
}

func TestMaxFrames(t *testing.T) {
	t.Parallel()
	const depth = 1000
	words := make([]uint64, 0, 2*depth)
	for i := range uint64(depth) {
		words = append(words, stackBase+16*(i+1), code+1+i)
	}
	for _, limit := range []int{0, 1, 2, 300} {
		u := unwind.Unwinder{Arch: arch.AMD64, MaxFrames: limit}
		frames, stop := u.Unwind(nil, registers(code, stackBase, stackBase),
			fakeMemory{stackBase, words}, fakeModules{lo: code, hi: codeEnd})
		want := limit
		if want == 0 {
			want = unwind.DefaultMaxFrames
		}
		if len(frames) != want || stop.Reason != unwind.MaxFrames {
			t.Errorf("limit %d: %d frames, %s", limit, len(frames), stop)
		}
	}
}

// FuzzUnwind walks stacks with arbitrary content. Every walk must end, and return the frames found.
func FuzzUnwind(f *testing.F) {
	pair := []byte("\x10\xf0\x7f\x00\x00\x00\x00\x00\x02\x00\x40\x00\x00\x00\x00\x00")
	f.Add(uint64(code), uint64(stackBase), uint64(stackBase), pair)
	f.Add(uint64(0), uint64(stackBase), uint64(0), []byte("\x02\x00\x40\x00\x00\x00\x00\x00"))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), []byte{})
	f.Fuzz(func(t *testing.T, pc, sp, fp uint64, stack []byte) {
		words := make([]uint64, len(stack)/8)
		for i := range words {
			words[i] = binary.LittleEndian.Uint64(stack[8*i:])
		}
		u := unwind.Unwinder{Arch: arch.AMD64}
		frames, stop := u.Unwind(nil, registers(pc, sp, fp),
			fakeMemory{stackBase, words}, fakeModules{lo: code, hi: codeEnd})
		if len(frames) == 0 || len(frames) > unwind.DefaultMaxFrames {
			t.Fatalf("%d frames", len(frames))
		}
		if stop.String() == "" || stop.Reason == 0 {
			t.Fatalf("no reason: %v", stop)
		}
	})
}

// linkage are modules whose code below an address consists of stubs of a linkage table.
type linkage struct {
	fakeModules

	end uint64
}

func (m linkage) Code(uint64, []byte) bool                     { return false }
func (m linkage) Function(uint64) (start, end uint64, ok bool) { return 0, 0, false }
func (m linkage) Stub(addr uint64) bool                        { return addr < m.end }

// TestStub has a call in a stub without call frame information: its caller is in the link register, with all other
// registers as they are.
func TestStub(t *testing.T) {
	t.Parallel()
	const stub, outside = code + 0x10, code + 0x200
	modules := linkage{fakeModules{lo: code, hi: codeEnd}, code + 0x100}
	for _, test := range []struct {
		name     string
		a        *arch.Arch
		pc, link uint64
		want     []uint64
	}{
		{"riscv64", arch.RISCV64, stub, code + 0x300, []uint64{stub, code + 0x300}},
		{"aarch64, signed", arch.ARM64, stub, 0x0012_0000_0000_0000 | code + 0x300, []uint64{stub, code + 0x300}},
		{"s390x", arch.S390X, stub, code + 0x300, []uint64{stub, code + 0x300}},
		{"no stub", arch.RISCV64, outside, code + 0x300, []uint64{outside}},
		{"no return address", arch.RISCV64, stub, 0x1234, []uint64{stub}},
		{"calls push", arch.AMD64, stub, code + 0x300, []uint64{stub}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var r arch.Registers
			r.Set(test.a.SP, stackBase)
			r.Set(test.a.Index(uint64(test.a.ReturnColumn)), test.link)
			r.Set(test.a.PC, test.pc)
			u := unwind.Unwinder{Arch: test.a}
			frames, _ := u.Unwind(nil, r, fakeMemory{stackBase, nil}, modules)
			if got := pcs(frames); !slices.Equal(got, test.want) {
				t.Errorf("%x, want %x", got, test.want)
			}
		})
	}
}
