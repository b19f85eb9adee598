package functrace

import (
	"debug/elf"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func code(t testing.TB, text string) []byte {
	t.Helper()
	p, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, code string
		options    PointOptions
		want       Point
		err        error
	}{
		{"push first", "55 4889e5 c3", PointOptions{}, Point{0, true, 0, true, "push %rbp"}, nil},
		{"behind endbr64", "f30f1efa 55 c3", PointOptions{}, Point{4, true, 0, true, "push %rbp"}, nil},
		{"second push of r15", "488b07 4157 c3", PointOptions{}, Point{3, true, 0, true, "push %r15"}, nil},
		{"sub before push", "4883ec08 53 c3", PointOptions{}, Point{4, true, 8, true, "push %rbx"}, nil},
		{"nothing emulated", "8b0511223300 c3", PointOptions{}, Point{0, false, 0, true, "mov 0x332211(%rip),%eax"}, nil},
		{"arguments written before", "4889f7 55 c3", PointOptions{Arguments: true},
			Point{0, false, 0, true, "mov %rsi,%rdi"}, nil},
		{"arguments not wanted", "4889f7 55 c3", PointOptions{}, Point{3, true, 0, false, "push %rbp"}, nil},
		{"return address moved", "4883ec08 53 c3", PointOptions{Return: true}, Point{0, false, 0, true, "sub $0x8,%rsp"}, nil},
		{"branch at the end of the first block", "85ff 7401 c3 53 c3", PointOptions{}, Point{2, true, 0, true, "je .+0x1"}, nil},
		{"push is only on one way", "85ff 0f1f00 90 7401 c3 53 c3", PointOptions{}, Point{5, true, 0, true, "nop"}, nil},
		{"jump back to the push", "488b07 55 4883c701 ebf9", PointOptions{}, Point{0, false, 0, true, "mov (%rdi),%rax"}, nil},
		{"loop from the first instruction", "4883c701 803f00 75f7 c3", PointOptions{}, Point{}, ErrLoop},
		{"tail call of itself", "55 5d ebfc", PointOptions{}, Point{0, true, 0, true, "push %rbp"}, nil},
		// cmp 0x10(%r14),%rsp; jbe 1f; push %rbp; mov %rsp,%rbp; pop %rbp; ret; 1: call; jmp 0
		{"Go: behind the stack check", "493b6610 7607 55 4889e5 5d c3 90 e800000000 ebec", PointOptions{Go: true},
			Point{6, true, 0, true, "push %rbp"}, nil},
		// lea -0x100(%rsp),%r12; cmp 0x10(%r14),%r12; jbe 1f; sub $0x180,%rsp; ret; 1: mov %rax,8(%rsp); call; mov; jmp 0
		{"Go: a large frame without a frame pointer", "4c8da42400ffffff 4d3b6610 7608 4881ec80010000 c3 " +
			"4889442408 e800000000 488b442408 ebd9", PointOptions{Go: true},
			Point{14, false, 0, true, "sub $0x180,%rsp"}, nil},
		{"Go: no stack check", "55 4889e5 5d c3", PointOptions{Go: true}, Point{0, true, 0, true, "push %rbp"}, nil},
		{"Go: loop from the first instruction", "4883c001 803800 75f7 c3", PointOptions{Go: true}, Point{}, ErrLoop},
		{"empty", "", PointOptions{}, Point{}, ErrCode},
		{"no code", "ff ff", PointOptions{}, Point{}, ErrCode},
	} {
		got, err := ChoosePoint(elf.EM_X86_64, code(t, c.code), c.options)
		if !errors.Is(err, c.err) || c.err == nil && err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, not %+v, %v", c.name, got, err, c.want, c.err)
		}
	}
}

func TestAt(t *testing.T) {
	t.Parallel()
	p := code(t, "55 4889e5 c3")
	if got, err := PointAt(elf.EM_X86_64, p, 1); err != nil || got.Text != "mov %rsp,%rbp" || got.Emulated {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := PointAt(elf.EM_X86_64, p, 2); err == nil {
		t.Errorf("an instruction begins inside of another: %+v", got)
	}
}

func TestChooseA64(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, code string
		options    PointOptions
		want       Point
		err        error
	}{
		{"stp first", "fd7bbfa9 c0035fd6", PointOptions{}, Point{0, false, 0, true, ""}, nil},
		{"nop first", "1f2003d5 c0035fd6", PointOptions{}, Point{0, true, 0, true, ""}, nil},
		// 0: add x0, x0, #1; ldrb w1, [x0]; cbnz w1, 0b; ret
		{"loop from the first instruction", "00040091 01004039 c1ffff35 c0035fd6", PointOptions{}, Point{}, ErrLoop},
		// bti c; 0: add x0, x0, #1; ldrb w1, [x0]; cbnz w1, 0b; ret
		{"loop behind the first instruction", "5f2403d5 00040091 01004039 c1ffff35 c0035fd6", PointOptions{},
			Point{0, false, 0, true, ""}, nil},
		// paciasp; stp x29, x30, [sp, #-16]!; ldp x29, x30, [sp], #16; autiasp; b 0
		{"tail call of itself", "3f2303d5 fd7bbfa9 fd7bc1a8 bf2303d5 fcffff17", PointOptions{},
			Point{0, false, 0, true, ""}, nil},
		// ldr x16, [x28, #16]; cmp sp, x16; b.ls 1f; str x30, [sp, #-16]!; ret; 1: mov x3, x30; bl; b 0
		{"Go: behind the stack check", "900b40f9 ff6330eb 69000054 fe0f1ff8 c0035fd6 e3031eaa 00000094 f9ffff17",
			PointOptions{Go: true, Arguments: true}, Point{12, false, 0, true, ""}, nil},
		{"Go: no stack check", "fe0f1ff8 c0035fd6", PointOptions{Go: true}, Point{0, false, 0, true, ""}, nil},
		// adrp x27, .; ldr x0, [x27, #904]; add x0, x0, #1; ret: a preemption behind adrp goes back to it
		{"Go: a restart", "1b000090 60c741f9 00040091 c0035fd6", PointOptions{Go: true}, Point{8, false, 0, false, ""}, nil},
		{"Go: a restart, and arguments", "1b000090 60c741f9 00040091 c0035fd6", PointOptions{Go: true, Arguments: true},
			Point{0, false, 0, true, ""}, nil},
		{"empty", "", PointOptions{}, Point{}, ErrCode},
		{"less than an instruction", "fd7bbf", PointOptions{}, Point{}, ErrCode},
	} {
		got, err := ChoosePoint(elf.EM_AARCH64, code(t, c.code), c.options)
		if !errors.Is(err, c.err) || c.err == nil && err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, not %+v, %v", c.name, got, err, c.want, c.err)
		}
	}
}

func TestOtherArchitectures(t *testing.T) {
	t.Parallel()
	if _, err := ChoosePoint(elf.EM_S390, []byte{0, 0}, PointOptions{}); !errors.Is(err, ErrArchitecture) {
		t.Error(err)
	}
}

// FuzzChooseA64: an instruction that is chosen begins in the code.
func FuzzChooseA64(f *testing.F) {
	f.Add(code(f, "900b40f9 ff6330eb 69000054 fe0f1ff8 c0035fd6 e3031eaa 00000094 f9ffff17"), true, false)
	f.Add(code(f, "00040091 01004039 c1ffff35 c0035fd6"), false, true)
	f.Fuzz(func(t *testing.T, p []byte, golang, arguments bool) {
		got, err := ChoosePoint(elf.EM_AARCH64, p, PointOptions{Go: golang, Arguments: arguments})
		if err != nil {
			return
		}
		if at, err := PointAt(elf.EM_AARCH64, p, got.Offset); err != nil || at.Offset != got.Offset {
			t.Errorf("chosen %+v, but there is %+v (%v)", got, at, err)
		}
	})
}

// FuzzChoose: an instruction that is chosen begins in the code, and At finds it.
func FuzzChoose(f *testing.F) {
	for _, text := range []string{"55 4889e5 c3", "493b6610 7607 55 4889e5 5d c3 90 e800000000 ebec", "c5f877", "ff"} {
		f.Add(code(f, text), true, false)
	}
	f.Fuzz(func(t *testing.T, p []byte, golang, arguments bool) {
		got, err := ChoosePoint(elf.EM_X86_64, p, PointOptions{Go: golang, Arguments: arguments})
		if err != nil {
			return
		}
		if at, err := PointAt(elf.EM_X86_64, p, got.Offset); err != nil || at.Text != got.Text {
			t.Errorf("chosen %+v, but there is %+v (%v)", got, at, err)
		}
	})
}
