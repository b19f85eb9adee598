package unwind

import (
	"errors"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

func TestEndsIndirectCall(t *testing.T) {
	t.Parallel()
	const longest = 7
	for _, tt := range []struct {
		name string
		end  []byte
		want bool
	}{
		{"call *%rax", []byte{0xff, 0xd0}, true},
		{"call *%r12", []byte{0x41, 0xff, 0xd4}, true},
		{"call *(%rbx)", []byte{0xff, 0x13}, true},
		{"call *8(%rbx)", []byte{0xff, 0x53, 8}, true},
		{"call *8(%rsp)", []byte{0xff, 0x54, 0x24, 8}, true},
		{"call *(%rsp)", []byte{0xff, 0x14, 0x24}, true},
		{"call *0x100(%rax)", []byte{0xff, 0x90, 0, 1, 0, 0}, true},
		{"call *0x100(%r12)", []byte{0x41, 0xff, 0x94, 0x24, 0, 1, 0, 0}, true},
		{"call *0x100(%rip)", []byte{0xff, 0x15, 0, 1, 0, 0}, true},
		{"call *0x100(,%rax,8)", []byte{0xff, 0x14, 0xc5, 0, 1, 0, 0}, true},
		{"jmp *%rax", []byte{0xff, 0xe0}, false},
		{"push (%rax)", []byte{0xff, 0x30}, false},
		{"call, and more", []byte{0xff, 0xd0, 0x90}, false},
		{"nothing", []byte{0x90}, false},
	} {
		p := make([]byte, longest)
		copy(p[max(0, longest-len(tt.end)):], tt.end[max(0, len(tt.end)-longest):])
		if got := endsIndirectCall(p); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// code is a byte sequence at an address. As modules, it provides these bytes without call frame information.
type code struct {
	start uint64
	bytes []byte
}

func (c code) Code(addr, n uint64) ([]byte, error) {
	at := addr - c.start
	if addr < c.start || at+n > uint64(len(c.bytes)) {
		return nil, errors.New("no code")
	}
	return c.bytes[at : at+n], nil
}

func (c code) Find(addr uint64) (Module, bool) {
	if addr < c.start || addr-c.start >= uint64(len(c.bytes)) {
		return Module{}, false
	}
	return Module{Code: c}, true
}

func TestCalls(t *testing.T) {
	t.Parallel()
	c := code{0x1000, []byte{
		0x90, 0x90, 0x90, 0x90,
		0xe8, 0x07, 0, 0, 0, // 4 call 0x1010
		0x90, 0x90, 0x90, 0x90,
		0xff, 0xd0, // 0xd call *%rax
		0x90, 0xc3, // 0xf nop, 0x10 ret
	}}
	w := walk{arch: arch.AMD64, modules: c}
	for _, tt := range []struct {
		ra, entry uint64
		want      trialResult
	}{
		{0x1009, 0, proven},
		{0x1009, 0x1010, proven},
		{0x1009, 0x1001, proven}, // the called function is unknown: it may continue there
		{0x100f, 0x1001, proven},
		{0x1010, 0, refuted},
		{0x100d, 0, refuted},
		{0x1003, 0, undecided}, // its beginning cannot be read
		{0x2000, 0, refuted},
	} {
		if got := w.calls(tt.ra, tt.entry); got != tt.want {
			t.Errorf("%#x, %#x: %d instead of %d", tt.ra, tt.entry, got, tt.want)
		}
	}
}

// TestPlainCalls has the calls of other instruction sets, of each length that they have.
func TestPlainCalls(t *testing.T) {
	t.Parallel()
	type call struct {
		ra, entry uint64
		want      trialResult
	}
	for _, tt := range []struct {
		arch  *arch.Arch
		code  []byte
		calls []call
	}{
		{arch.ARM64, []byte{
			0x03, 0x00, 0x00, 0x94, // 0 bl 0x100c
			0x00, 0x00, 0x3f, 0xd6, // 4 blr x0
			0x1f, 0x20, 0x03, 0xd5, // 8 nop
			0xc0, 0x03, 0x5f, 0xd6, // c ret
			0x00, 0x00, 0x00, 0x04, // 10 not followed
		}, []call{
			{0x1004, 0x100c, proven},
			{0x1004, 0x1008, proven}, // the called function may end with a jump to it
			{0x1004, 0, proven},
			{0x1008, 0x100c, proven},
			{0x100c, 0, refuted},
			{0x1010, 0, refuted},
			{0x1014, 0, refuted},
			{0x1000, 0, refuted}, // before all code
		}},
		{arch.RISCV64, []byte{
			0xef, 0x00, 0xa0, 0x00, // 0 jal 0x100a
			0x01, 0x00, // 4 nop
			0x82, 0x97, // 6 jalr a5
			0xef, 0x02, 0xe0, 0xff, // 8 jal t0, 6
			0xe7, 0x80, 0x07, 0x00, // c jalr a5
		}, []call{
			{0x1004, 0, proven},
			{0x1004, 0x100a, proven},
			{0x1006, 0, refuted},
			{0x1008, 0, proven},
			{0x100c, 0, refuted}, // the return address is in t0
			{0x1010, 0x1004, proven},
		}},
		{arch.S390X, []byte{
			0x07, 0x07, 0x07, 0x07, // 0 nopr
			0xc0, 0xe5, 0x00, 0x00, 0x00, 0x05, // 4 brasl %r14, 0x100e
			0x0d, 0xe1, // a basr %r14, %r1
			0x0d, 0x10, // c basr %r1, %r0
			0xa7, 0xe5, 0xff, 0xfb, // e bras %r14, 0x1004
			0xc0, 0xd5, 0x00, 0x00, 0x00, 0x05, // 12 brasl %r13
		}, []call{
			{0x100a, 0, proven},
			{0x100a, 0x100e, proven},
			{0x100c, 0, proven},
			{0x100e, 0, refuted},
			{0x1012, 0x1004, proven},
			{0x1018, 0, refuted}, // the return address is in r13
		}},
	} {
		w := walk{arch: tt.arch, modules: code{0x1000, tt.code}}
		for _, c := range tt.calls {
			if got := w.calls(c.ra, c.entry); got != c.want {
				t.Errorf("%s: %#x, %#x: %d, want %d", tt.arch.Name, c.ra, c.entry, got, c.want)
			}
		}
	}
}
