package unwind_test

import (
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
)

// bareImage is code at an address, without any information about it.
type bareImage []byte

func (m bareImage) Find(addr uint64) (unwind.Module, bool) {
	return unwind.Module{Code: m}, addr >= code && addr < code+uint64(len(m))
}

func (m bareImage) Code(addr, n uint64) ([]byte, error) {
	if addr < code || addr+n > code+uint64(len(m)) {
		return nil, errors.New("no code")
	}
	return m[addr-code : addr-code+n], nil
}

// TestInstructions checks that frames in code without call frame information are found by its instructions. They are
// accepted if the walk leads to a function that never returns.
func TestInstructions(t *testing.T) {
	t.Parallel()
	const (
		leaf   = code      // sub rsp, 16; call *rax; add rsp, 16; ret
		within = leaf + 6  // behind its call
		outer  = code + 16 // push rbx; call leaf; pop rbx; ret
		behind = outer + 6
		last   = code + 32 // call outer; hlt
		never  = last + 5
		lost   = code + 48 // call outer; jmp *rax
		astray = lost + 5
	)
	image := bareImage(slices.Concat(
		[]byte{0x48, 0x83, 0xec, 0x10, 0xff, 0xd0, 0x48, 0x83, 0xc4, 0x10, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc},
		[]byte{0x53, 0xe8, 0xea, 0xff, 0xff, 0xff, 0x5b, 0xc3}, slices.Repeat([]byte{0xcc}, 8),
		[]byte{0xe8, 0xeb, 0xff, 0xff, 0xff, 0xf4}, slices.Repeat([]byte{0xcc}, 10),
		[]byte{0xe8, 0xdb, 0xff, 0xff, 0xff, 0xff, 0xe0},
	))
	for _, tt := range []struct {
		name   string
		pc     uint64
		words  []uint64
		want   []uint64
		reason unwind.Reason
	}{
		{"before a frame is made", leaf, []uint64{behind, 0xb, never, 0}, []uint64{leaf, behind, never}, unwind.NeverReturns},
		{"with a frame", within, []uint64{0, 0, behind, 0xb, never, 0}, []uint64{within, behind, never}, unwind.NeverReturns},
		{"the return address follows no call", leaf, []uint64{behind + 1, 0xb, never, 0}, []uint64{leaf}, unwind.NoCFI},
		{"the return address is in no code", leaf, []uint64{0x99, 0xb, never, 0}, []uint64{leaf}, unwind.NoCFI},
		{"it leads to an address behind no call", leaf, []uint64{behind, 0xb, within + 1, 0}, []uint64{leaf}, unwind.NoCFI},
		{"it leads to code that cannot be followed", leaf, []uint64{behind, 0xb, astray, 0}, []uint64{leaf}, unwind.NoCFI},
		{"the stack is cut", leaf, []uint64{behind, 0xb}, []uint64{leaf}, unwind.NoMemory},
		{"in what never returns", never, []uint64{0}, []uint64{never}, unwind.NeverReturns},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := unwind.Unwinder{Arch: arch.AMD64}
			frames, stop := u.Unwind(nil, registers(tt.pc, stackBase, 0), fakeMemory{stackBase, tt.words}, image)
			if got := pcs(frames); !slices.Equal(got, tt.want) || stop.Reason != tt.reason {
				t.Errorf("got %x, %s; want %x", got, stop, tt.want)
			}
			for _, f := range frames[1:] {
				if f.Method != unwind.ByInstructions {
					t.Errorf("%#x by method %d", f.PC, f.Method)
				}
			}
		})
	}
}

// begun is a bareImage of a program.
type begun struct {
	bareImage

	start  uint64
	linker bool
}

func (m begun) Find(addr uint64) (unwind.Module, bool) {
	module, ok := m.bareImage.Find(addr)
	module.Start, module.Linker = m.start, m.linker
	return module, ok
}

// TestProgramStart checks that the code where a program or a dynamic linker began ends a stack. It counts up to its
// first call, and behind that. Code that begins elsewhere, or that is reached behind another call, does not end a
// stack.
func TestProgramStart(t *testing.T) {
	t.Parallel()
	const (
		leaf   = code     // ret
		begins = code + 4 // xor ebp, ebp; call leaf; ret
		first  = begins + 7
		second = first + 5 // call leaf; ret
	)
	image := bareImage{
		0xc3, 0xcc, 0xcc, 0xcc, 0x31, 0xed, 0xe8, 0xf5, 0xff, 0xff, 0xff, 0xe8, 0xf0, 0xff, 0xff, 0xff, 0xc3,
	}
	for _, tt := range []struct {
		name   string
		start  uint64
		linker bool
		pc, ra uint64
		want   []uint64
		reason unwind.Reason
	}{
		{"its first call", begins, false, leaf, first, []uint64{leaf, first}, unwind.EndOfStack},
		{"before that", begins, false, begins + 2, 3, []uint64{begins + 2}, unwind.EndOfStack},
		{"its second call", begins, false, leaf, second, []uint64{leaf}, unwind.NoCFI},
		{"a dynamic linker's first", begins, true, leaf, first, []uint64{leaf, first}, unwind.EndOfStack},
		{"and its second", begins, true, leaf, second, []uint64{leaf, second}, unwind.EndOfStack},
		{"of a library", 0, false, leaf, first, []uint64{leaf}, unwind.NoCFI},
		{"it begins behind that", first, false, leaf, first - 5, []uint64{leaf}, unwind.NoCFI},
	} {
		u := unwind.Unwinder{Arch: arch.AMD64}
		frames, stop := u.Unwind(nil, registers(tt.pc, stackBase, 0), fakeMemory{stackBase, []uint64{tt.ra, 3, 0, 0}},
			begun{image, tt.start, tt.linker})
		if got := pcs(frames); !slices.Equal(got, tt.want) || stop.Reason != tt.reason {
			t.Errorf("%s: got %x, %s; want %x", tt.name, got, stop, tt.want)
		}
	}
}

// library is a bareImage that is loaded at its first byte, and of which it is not known where a program begins.
type library struct{ bareImage }

func (m library) Find(addr uint64) (unwind.Module, bool) {
	return unwind.Module{Bias: code, Code: m}, addr >= code && addr < code+uint64(len(m.bareImage))
}

func (m library) Code(addr, n uint64) ([]byte, error) { return m.bareImage.Code(addr+code, n) }

// TestLibraryStart checks that the first bytes of an image do not count as a program's start if no start is known.
func TestLibraryStart(t *testing.T) {
	t.Parallel()
	image := library{bareImage{0x90, 0x90, 0xff, 0xe0}} // nop; nop; jmp *rax
	u := unwind.Unwinder{Arch: arch.AMD64}
	frames, stop := u.Unwind(nil, registers(code+1, stackBase, 0), fakeMemory{stackBase, []uint64{1, 2, 3}}, image)
	if len(frames) != 1 || stop.Reason != unwind.NoCFI {
		t.Errorf("%s after %d frames", stop, len(frames))
	}
}

// TestMissingFrameMemory checks that a walk requests the frame's missing memory, but not memory for a missing
// register.
func TestMissingFrameMemory(t *testing.T) {
	t.Parallel()
	const (
		leaf = code      // ret
		load = code + 4  // ldr x30, [sp], #16; ret
		far  = code + 12 // ldr x30, [x19]; ret
	)
	image := bareImage{
		0xc0, 0x03, 0x5f, 0xd6, 0xfe, 0x07, 0x41, 0xf8, 0xc0, 0x03, 0x5f, 0xd6,
		0x7e, 0x02, 0x40, 0xf9, 0xc0, 0x03, 0x5f, 0xd6,
	}
	for _, tt := range []struct {
		name  string
		pc    uint64
		words []uint64
		want  unwind.Stop
	}{
		{"a register is not known", leaf, []uint64{1, 2, 3}, unwind.Stop{Reason: unwind.NoCFI, Address: leaf}},
		{"the frame is missing", load, nil, unwind.Stop{Reason: unwind.NoMemory, Address: stackBase}},
		{"what is missing is elsewhere", far, []uint64{1, 2}, unwind.Stop{Reason: unwind.NoCFI, Address: far}},
	} {
		var regs arch.Registers
		regs.Set(arch.ARM64.PC, tt.pc)
		regs.Set(arch.ARM64.SP, stackBase)
		regs.Set(19, stackBase+1<<30)
		u := unwind.Unwinder{Arch: arch.ARM64}
		frames, stop := u.Unwind(nil, regs, fakeMemory{stackBase, tt.words}, image)
		if len(frames) != 1 || stop != tt.want {
			t.Errorf("%s: %s after %d frames", tt.name, stop, len(frames))
		}
	}
}

// TestUnfollowedInstructions checks architectures whose instructions the walk does not follow. A frame without call
// frame information and frame pointer ends the stack there, with this reason.
func TestUnfollowedInstructions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		arch  *arch.Arch
		image bareImage
	}{
		{arch.RISCV64, bareImage{0x82, 0x80}},                                   // ret
		{arch.S390X, bareImage{0xeb, 0xef, 0xf0, 0x70, 0x00, 0x04, 0x07, 0xfe}}, // lmg %r14, %r15, 112(%r15); br %r14
	} {
		var regs arch.Registers
		regs.Set(tt.arch.PC, code)
		regs.Set(tt.arch.SP, stackBase)
		regs.Set(tt.arch.ReturnColumn, code+2)
		u := unwind.Unwinder{Arch: tt.arch}
		frames, stop := u.Unwind(nil, regs, fakeMemory{stackBase, make([]uint64, 16)}, tt.image)
		if len(frames) != 1 || stop != (unwind.Stop{Reason: unwind.NoCFI, Address: code}) {
			t.Errorf("%s: %s after %d frames", tt.arch.Name, stop, len(frames))
		}
	}
}

// TestZeroFramePointer: where functions keep no frame pointer it is zero in all of them. It ends a stack only where
// the chain has led to it, or in a function that never returns.
func TestZeroFramePointer(t *testing.T) {
	t.Parallel()
	const (
		away  = code     // br x0
		never = code + 4 // b .
	)
	image := bareImage{0x00, 0x00, 0x1f, 0xd6, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x1f, 0xd6}
	for _, tt := range []struct {
		name   string
		pc, fp uint64
		frames int
		reason unwind.Reason
	}{
		{"whose instructions lead elsewhere", away, 0, 1, unwind.NoCFI},
		{"that never returns", never, 0, 1, unwind.EndOfStack},
		{"that the chain has led to", away, stackBase, 2, unwind.EndOfStack},
	} {
		var regs arch.Registers
		for reg, v := range map[int]uint64{arch.ARM64.PC: tt.pc, arch.ARM64.SP: stackBase, arch.ARM64.FP: tt.fp} {
			regs.Set(reg, v)
		}
		u := unwind.Unwinder{Arch: arch.ARM64}
		frames, stop := u.Unwind(nil, regs, fakeMemory{stackBase, []uint64{0, away + 4, 0, 0}}, image)
		if len(frames) != tt.frames || stop.Reason != tt.reason {
			t.Errorf("a function %s: %s after %d frames", tt.name, stop, len(frames))
		}
	}
}

// TestZeroBackChain checks where a zero back chain ends the stack. It always does where the ABI requires back chains
// in every function. Where compilers create them only on request, it does so only behind such a chain.
func TestZeroBackChain(t *testing.T) {
	t.Parallel()
	const words = 18
	image := bareImage{0x07, 0xf1, 0x07, 0xf1, 0x07, 0xf1, 0x07, 0xf1} // br %r1: it leads elsewhere
	for _, tt := range []struct {
		name   string
		arch   *arch.Arch
		chain  uint64 // in bytes from the stack pointer
		frames int
		reason unwind.Reason
	}{
		{"demanded", arch.PPC64LE, 0, 1, unwind.EndOfStack},
		{"not demanded", arch.S390X, 0, 1, unwind.NoCFI},
		{"not demanded, behind a chain", arch.S390X, 16, 2, unwind.EndOfStack},
	} {
		var regs arch.Registers
		regs.Set(tt.arch.PC, code)
		regs.Set(tt.arch.SP, stackBase)
		memory := make([]uint64, words)
		if tt.chain > 0 {
			memory[0] = stackBase + tt.chain
			memory[(tt.chain+uint64(tt.arch.Chain.Return))/8] = code + 4
		}
		u := unwind.Unwinder{Arch: tt.arch}
		frames, stop := u.Unwind(nil, regs, fakeMemory{stackBase, memory}, image)
		if len(frames) != tt.frames || stop.Reason != tt.reason {
			t.Errorf("%s: %s after %d frames", tt.name, stop, len(frames))
		}
	}
}
