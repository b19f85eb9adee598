package disasm_test

import (
	"errors"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm"
)

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name   string
		code   []byte
		op     x86asm.Op
		length int // 0: an error
	}{
		{"push rbp, and more", []byte{0x55, 0x48}, x86asm.PUSH, 1},
		{"endbr64", []byte{0xf3, 0x0f, 0x1e, 0xfa}, x86asm.NOP, 4},
		{"endbr32", []byte{0xf3, 0x0f, 0x1e, 0xfb}, x86asm.NOP, 4},
		{"rdsspq is no marker", []byte{0xf3, 0x48, 0x0f, 0x1e, 0xc8}, 0, 0},
		{"pop rax by 8f", []byte{0x8f, 0xc0}, x86asm.POP, 2},
		{"XOP", []byte{0x8f, 0xe8, 0x78, 0xc0, 0xc0, 0x00}, 0, 0},
		{"vzeroupper", []byte{0xc5, 0xf8, 0x77}, disasm.OtherX86, 3},
		{"vector, cut in its prefix", []byte{0x62, 0xf1, 0x7c}, 0, 0},
		{"vector, cut in its displacement", []byte{0xc5, 0xf8, 0x28, 0x85, 0, 0, 0}, 0, 0},
		{"vector, cut in its immediate", []byte{0xc4, 0xe3, 0x79, 0x16, 0xc0}, 0, 0},
		{"vector, longer than instructions are", []byte{
			0x64, 0x64, 0x64, 0x64, 0x64, 0xc4, 0xe3, 0x79, 0x16, 0x84, 0x24, 0, 0, 0, 0, 1,
		}, 0, 0},
		{"vector, of registers of APX", []byte{0x62, 0xf9, 0x7c, 0x48, 0x10, 0xc0}, 0, 0},
		{"vector, of registers of APX again", []byte{0x62, 0xf1, 0x78, 0x48, 0x10, 0xc0}, 0, 0},
		{"vector, of a table that there is not", []byte{0xc4, 0xe4, 0x79, 0x10, 0xc0}, 0, 0},
		{"vector, of half precision in VEX", []byte{0xc4, 0xe5, 0x79, 0x10, 0xc0}, 0, 0},
		{"vector, of no length", []byte{0x62, 0xf1, 0x7c, 0x68, 0x10, 0xc0}, 0, 0},
		{"vector, with a rounding instead of a length", []byte{0x62, 0xf1, 0x7c, 0x78, 0x58, 0xc0}, disasm.OtherX86, 6},
		{"prefetch", []byte{0x0f, 0x0d, 0x00}, disasm.OtherX86, 3},
		{"prefetch, cut", []byte{0x0f, 0x0d}, 0, 0},
		{"rdseed", []byte{0x0f, 0xc7, 0xf8}, disasm.OtherX86, 3},
		{"what looks like rdseed", []byte{0x0f, 0xc7, 0xc8}, 0, 0},
		{"sha1nexte, longer than instructions are", []byte{
			0x65, 0x65, 0x65, 0x65, 0x65, 0x65, 0x65, 0x41, 0x0f, 0x38, 0xc8, 0x80, 0, 0, 0, 0,
		}, 0, 0},
		{"sha1nexte, as long as instructions are", []byte{
			0x65, 0x65, 0x65, 0x65, 0x65, 0x65, 0x41, 0x0f, 0x38, 0xc8, 0x80, 0, 0, 0, 0,
		}, disasm.OtherX86, 15},
		{"EVEX behind a prefix", []byte{0x66, 0x62, 0xf1, 0x7c, 0x48, 0x10, 0x00}, 0, 0},
		{"cut", []byte{0xe8, 0}, 0, 0},
		{"a prefix alone", []byte{0x66}, 0, 0},
		{"nothing", nil, 0, 0},
	} {
		x, err := disasm.DecodeX86(tt.code)
		if x.Op != tt.op || x.Len != tt.length || errors.Is(err, disasm.ErrX86Code) != (tt.length == 0) {
			t.Errorf("%s: %v of %d bytes, %v", tt.name, x.Op, x.Len, err)
		}
	}
}

// FuzzDecode checks that an instruction is within the input and within the maximum length. Bytes behind the
// x86Instruction must not change the result.
func FuzzDecode(f *testing.F) {
	for _, p := range [][]byte{
		{0x55, 0x48, 0x89, 0xe5}, {0xf3, 0x0f, 0x1e, 0xfa}, {0x62, 0xf1, 0x7c, 0x48, 0x10, 0x40, 0x01},
		{0xc4, 0xe2, 0xf1, 0xe6, 0x06}, {0x65, 0xc5, 0xf9, 0x7e, 0x84, 0x24, 0, 0, 0, 0}, {0x0f, 0x38, 0xc8, 0xc0},
		{0x66, 0x0f, 0x3a, 0xcf, 0xc0, 1},
	} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		x, err := disasm.DecodeX86(p)
		if err != nil {
			return
		}
		if x.Len < 1 || x.Len > min(len(p), disasm.LongestX86) {
			t.Fatalf("%d bytes of %d", x.Len, len(p))
		}
		if alone, err := disasm.DecodeX86(p[:x.Len]); err != nil || alone != x {
			t.Errorf("%v, and alone %v, %v", x, alone, err)
		}
	})
}

// TestWritten checks instructions that LLVM's disassembler does not know before version 16, or whose text is
// incomplete.
func TestWritten(t *testing.T) {
	for _, tt := range []struct {
		name      string
		code      []byte
		want      x86asm.Args
		mem, addr int // bytes, bits
	}{
		{"cmpbexadd [rsi], rax, rcx", []byte{0xc4, 0xe2, 0xf1, 0xe6, 0x06},
			x86asm.Args{x86asm.Mem{Base: x86asm.RSI}, x86asm.RAX}, 8, 64},
		{"vmovd [rax], xmm0", []byte{0xc5, 0xf9, 0x7e, 0x00}, x86asm.Args{x86asm.Mem{Base: x86asm.RAX}}, 4, 64},
		{"vmovd ds:[rax], xmm0", []byte{0x3e, 0xc5, 0xf9, 0x7e, 0x00}, x86asm.Args{x86asm.Mem{Base: x86asm.RAX}}, 4, 64},
		{"vmovd fs:[rax], xmm0", []byte{0x64, 0xc5, 0xf9, 0x7e, 0x00},
			x86asm.Args{x86asm.Mem{Segment: x86asm.FS, Base: x86asm.RAX}}, 4, 64},
		{"vmovd [eax], xmm0", []byte{0x67, 0xc5, 0xf9, 0x7e, 0x00}, x86asm.Args{x86asm.Mem{Base: x86asm.RAX}}, 4, 32},
	} {
		x, err := disasm.DecodeX86(tt.code)
		if err != nil || x.Len != len(tt.code) || x.Args != tt.want || x.MemBytes != tt.mem || x.AddrSize != tt.addr {
			t.Errorf("%s: %d bytes, writes %v, %d of memory at an address of %d bits; %v", tt.name, x.Len, x.Args, x.MemBytes,
				x.AddrSize, err)
		}
	}
}
