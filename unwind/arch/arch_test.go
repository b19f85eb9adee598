package arch

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"math/bits"
	"testing"
)

// TestTables checks the tables of every architecture for consistency: each number is in range, each register is
// found, and no register is mapped twice.
func TestTables(t *testing.T) {
	for _, a := range supported() {
		t.Run(a.Name, func(t *testing.T) {
			if a.NumRegisters > MaxRegisters || len(a.RegisterNames) != a.NumRegisters {
				t.Errorf("%d registers, %d names", a.NumRegisters, len(a.RegisterNames))
			}
			if a.Index(uint64(a.ReturnColumn)) < 0 {
				t.Error("the return column is not kept")
			}
			seen := map[int]bool{}
			for column := range uint64(MaxColumns) {
				reg := a.Index(column)
				if reg < 0 {
					continue
				}
				if reg >= a.NumRegisters || seen[reg] {
					t.Errorf("column %d: register %d", column, reg)
				}
				seen[reg] = true
			}
			if a.Index(MaxColumns) >= 0 || a.Index(^uint64(0)) >= 0 {
				t.Error("columns out of range have registers")
			}
			raw := make([]byte, 1024)
			regs, err := a.DecodePRStatus(raw)
			if err != nil {
				t.Fatal(err)
			}
			for _, reg := range []int{a.PC, a.SP, a.FP} {
				if _, ok := regs.Get(reg); !ok {
					t.Errorf("%s is not in NT_PRSTATUS", a.RegisterName(reg))
				}
			}
			if found, err := ByMachine(a.Machine, a.Order); err != nil || found != a {
				t.Errorf("ByMachine: %v", err)
			}
		})
	}
}

// TestPRStatus checks the words of each architecture's general registers: word n contains n.
func TestPRStatus(t *testing.T) {
	for _, test := range []struct {
		arch  *Arch
		words int // of the kernel's structure
		want  map[string]uint64
		known int
	}{
		{AMD64, 27, map[string]uint64{"rip": 16, "rsp": 19, "rbp": 4, "rbx": 5, "rax": 10, "rdi": 14, "r15": 0}, 17},
		{ARM64, 34, map[string]uint64{"x0": 0, "x30": 30, "sp": 31, "pc": 32}, 33},
		{PPC64LE, 48, map[string]uint64{"r0": 0, "r31": 31, "pc": 32, "ctr": 35, "lr": 36}, 35},
		{S390X, 27, map[string]uint64{"pc": 1, "r0": 2, "r15": 17}, 17},
		{RISCV64, 32, map[string]uint64{"pc": 0, "ra": 1, "sp": 2, "s0": 8, "t6": 31}, 32},
	} {
		t.Run(test.arch.Name, func(t *testing.T) {
			raw := make([]byte, 8*test.words)
			for i := range test.words {
				test.arch.Order.PutUint64(raw[8*i:], uint64(i))
			}
			regs, err := test.arch.DecodePRStatus(raw)
			if err != nil {
				t.Fatal(err)
			}
			checkNamed(t, test.arch, &regs, test.want)
			if n := bits.OnesCount64(regs.Known()); n != test.known {
				t.Errorf("%d registers known, want %d", n, test.known)
			}
			if _, err := test.arch.DecodePRStatus(raw[:len(test.arch.prstatus)*8-1]); !errors.Is(err, ErrShortRegisters) {
				t.Error(err)
			}
		})
	}
}

// checkNamed compares registers by name.
func checkNamed(t *testing.T, a *Arch, regs *Registers, want map[string]uint64) {
	t.Helper()
	for reg, name := range a.RegisterNames {
		value, wanted := want[name]
		if !wanted {
			continue
		}
		delete(want, name)
		if got, ok := regs.Get(reg); !ok || got != value {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, value)
		}
	}
	if len(want) != 0 {
		t.Errorf("no register is called %v", want)
	}
}

// TestFPRegSet checks s390x's floating point registers, which have an unusual order in DWARF.
func TestFPRegSet(t *testing.T) {
	raw := make([]byte, 17*8)
	for i := range 16 {
		binary.BigEndian.PutUint64(raw[8+8*i:], uint64(i))
	}
	var regs Registers
	if err := S390X.DecodeFPRegSet(&regs, raw); err != nil {
		t.Fatal(err)
	}
	checkNamed(t, S390X, &regs, map[string]uint64{"f0": 0, "f1": 1, "f2": 2, "f3": 3, "f8": 8, "f13": 13, "f15": 15})
	if err := S390X.DecodeFPRegSet(&regs, raw[:16]); !errors.Is(err, ErrShortRegisters) {
		t.Error(err)
	}
	if err := AMD64.DecodeFPRegSet(&regs, nil); err != nil {
		t.Error(err)
	}
}

func TestRegisters(t *testing.T) {
	var r Registers
	for _, reg := range []int{-1, 0, 63, 64, 1 << 40} {
		if _, ok := r.Get(reg); ok {
			t.Errorf("%d is known of nothing", reg)
		}
		before := r
		r.Set(reg, 7)
		if v, ok := r.Get(reg); ok != (reg >= 0 && reg < MaxRegisters) || ok && v != 7 {
			t.Errorf("%d: %d, %v", reg, v, ok)
		}
		r.Clear(reg)
		if r != before {
			t.Errorf("%d: something is left", reg)
		}
	}
}

func TestCodeMask(t *testing.T) {
	for addr, want := range map[uint64]uint64{
		0x0000_aaaa_1234_5678: 0x0000_aaaa_1234_5678,
		0xff7f_aaaa_1234_5678: 0x0000_aaaa_1234_5678,
	} {
		if got := ARM64.StripCode(addr); got != want {
			t.Errorf("%#x: %#x", addr, got)
		}
		if got := AMD64.StripCode(addr); got != addr {
			t.Errorf("x86-64, %#x: %#x", addr, got)
		}
	}
}

// TestForAddresses checks the masks for the address sizes with which kernels for aarch64 are built.
func TestForAddresses(t *testing.T) {
	for _, test := range []struct{ top, want uint64 }{
		{0x0000_ffff_e000_0000, 0xff7f_0000_0000_0000}, // 48 bits
		{0x0000_7fff_e000_0000, 0xff7f_8000_0000_0000}, // 47: 16 KiB pages, three levels
		{0x0000_03ff_e000_0000, 0xff7f_fc00_0000_0000}, // 42: 64 KiB pages, two levels
		{0x0000_007f_e000_0000, 0xff7f_ff80_0000_0000}, // 39: 4 KiB pages, three levels
		{0x0000_0080_0000_0000, 0xff7f_ff80_0000_0000},
		{0x000f_ffff_e000_0000, 0xff70_0000_0000_0000}, // 52 bits
		{0x0008_0000_0000_1000, 0xff70_0000_0000_0000},
		{0xffff_ffff_ff60_1000, 0xff7f_0000_0000_0000}, // not a process's
		{0x0000_0000_ffff_f000, 0xff7f_0000_0000_0000}, // no address size of 64-bit processes
		{0, 0xff7f_0000_0000_0000},
	} {
		if got := ARM64.ForAddresses(test.top).CodeMask; got != test.want {
			t.Errorf("%#x: %#x, want %#x", test.top, got, test.want)
		}
	}
	if a := AMD64.ForAddresses(0x7f_e000_0000); a != AMD64 {
		t.Error("x86-64 signs no addresses")
	}
}

// TestMovesSP checks instructions that move the stack pointer, and other instructions with similar first bytes.
func TestMovesSP(t *testing.T) {
	for _, test := range []struct {
		a    *Arch
		code []byte
		want bool
	}{
		{AMD64, []byte{0x48, 0x29, 0xc4}, true},                   // sub %rax, %rsp
		{AMD64, []byte{0x4c, 0x01, 0xc4}, true},                   // add %r8, %rsp
		{AMD64, []byte{0x48, 0x21, 0xc4}, true},                   // and %rax, %rsp
		{AMD64, []byte{0x48, 0x2b, 0x67, 0x08}, true},             // sub 8(%rdi), %rsp
		{AMD64, []byte{0x49, 0x03, 0x24, 0x24}, true},             // add (%r12), %rsp
		{AMD64, []byte{0x48, 0x23, 0x27}, true},                   // and (%rdi), %rsp
		{AMD64, []byte{0x48, 0x94}, true},                         // xchg %rax, %rsp
		{AMD64, []byte{0x49, 0x87, 0xe3}, true},                   // xchg %rsp, %r11
		{AMD64, []byte{0x4c, 0x87, 0xdc}, true},                   // xchg %r11, %rsp
		{AMD64, []byte{0x8f, 0x00}, true},                         // pop (%rax)
		{AMD64, []byte{0x9c}, true},                               // pushf
		{AMD64, []byte{0x9d}, true},                               // popf
		{AMD64, []byte{0x0f, 0xa0}, true},                         // push %fs
		{AMD64, []byte{0x0f, 0xa9}, true},                         // pop %gs
		{AMD64, []byte{0x0f, 0xa3, 0xc3}, false},                  // bt %eax, %ebx
		{AMD64, []byte{0x49, 0x29, 0xc4}, false},                  // sub %rax, %r12
		{AMD64, []byte{0x4c, 0x2b, 0x67, 0x08}, false},            // sub 8(%rdi), %r12
		{AMD64, []byte{0x49, 0x3b, 0x66, 0x10}, false},            // cmp 16(%r14), %rsp
		{AMD64, []byte{0x0f, 0x94, 0xc0}, false},                  // sete %al
		{S390X, []byte{0xa7, 0xfb, 0xff, 0x60}, true},             // aghi %r15, -160
		{S390X, []byte{0xa7, 0xf4, 0x00, 0x11}, false},            // j: mask 15, no register
		{S390X, []byte{0xe3, 0xf0, 0xff, 0x60, 0xff, 0x71}, true}, // lay %r15, -160(%r15)
		{S390X, []byte{0xb3, 0xc1, 0x00, 0x0b}, false},            // ldgr %f0, %r11
		{ARM64, []byte{0xfd, 0x7b, 0xbe, 0xa9}, true},             // stp x29, x30, [sp, #-32]!
		{ARM64, []byte{0xfd, 0x7b, 0x01, 0xa9}, false},            // stp x29, x30, [sp, #16]
		{RISCV64, []byte{0x41, 0x11}, true},                       // addi sp, sp, -16
		{RISCV64, []byte{0x03, 0xb1, 0x05, 0x00}, true},           // ld sp, 0(a1)
		{RISCV64, []byte{0x02, 0x61}, true},                       // ld sp, 0(sp)
		{RISCV64, []byte{0x83, 0xb0, 0x05, 0x00}, false},          // ld ra, 0(a1)
		{RISCV64, []byte{0x82, 0x60}, false},                      // ld ra, 0(sp)
		{RISCV64, []byte{0x01, 0x45}, false},                      // li a0, 0
		{PPC64LE, []byte{0xa1, 0xff, 0x21, 0xf8}, true},           // stdu r1, -96(r1)
		{PPC64LE, []byte{0x10, 0x00, 0x01, 0xf8}, false},          // std r0, 16(r1)
	} {
		if got := test.a.MovesSP(test.code); got != test.want {
			t.Errorf("%s, %x: %v", test.a.Name, test.code, got)
		}
	}
}

// TestRestored checks the instructions of functions of 64-bit PowerPC up to some place, before and after the frame is
// removed.
func TestRestored(t *testing.T) {
	const (
		stdu48, addi48, addi32, addiR31 = 0xf821ffd1, 0x38210030, 0x38210020, 0x383f0030
		ldBack, mr, nop, b, bl, bne     = 0xe8210000, 0x7fe1fb78, 0x60000000, 0x48000010, 0x48000011, 0x40820010
		blr, mtlr                       = 0x4e800020, 0x7c0803a6
	)
	for _, test := range []struct {
		code []uint32
		want bool
	}{
		{nil, false},
		{[]uint32{nop, stdu48, nop}, false},
		{[]uint32{stdu48, bl, bne, addiR31}, true},
		{[]uint32{stdu48, addi48, nop, mtlr}, true},
		{[]uint32{stdu48, ldBack}, true},
		{[]uint32{stdu48, addi32}, false},             // part of it
		{[]uint32{addi48}, false},                     // no frame was created before
		{[]uint32{stdu48, addi48, blr, nop}, false},   // reached from elsewhere
		{[]uint32{stdu48, addi48, b, nop}, false},     // likewise
		{[]uint32{stdu48, addi48, bl, nop}, true},     // that comes back
		{[]uint32{stdu48, addi48, stdu48}, false},     // and taken again
		{[]uint32{stdu48, addi48, mr, nop}, false},    // to an unknown place
		{[]uint32{stdu48, addi48, bne, addi48}, true}, // and continued behind
	} {
		var code []byte
		for _, insn := range test.code {
			code = binary.LittleEndian.AppendUint32(code, insn)
		}
		if got := PPC64LE.Restored(code); got != test.want {
			t.Errorf("%#x: %v", test.code, got)
		}
	}
}

func TestUnsupported(t *testing.T) {
	if _, err := ByMachine(elf.EM_X86_64, binary.BigEndian); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if _, err := ByMachine(elf.EM_SPARC, binary.BigEndian); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if got := AMD64.RegisterName(99); got != "r99" {
		t.Error(got)
	}
}

// TestHost checks that Host agrees with the architecture for which this program was built.
func TestHost(t *testing.T) {
	a := Host()
	if a == nil {
		t.Skip("this architecture has no table")
	}
	if a.Order.Uint16([]byte{1, 0}) != binary.NativeEndian.Uint16([]byte{1, 0}) {
		t.Errorf("%s has the other byte order", a.Name)
	}
}
