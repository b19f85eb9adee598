package unwind_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
)

// fixedFrame is a function whose frame has a fixed size. Base has no caller.
type fixedFrame struct {
	start, end uint64
	size       int // the distance of the CFA from the stack pointer
	base       bool
}

// tableOf encodes functions as .eh_frame.
func tableOf(t *testing.T, functions ...fixedFrame) *cfi.Table {
	t.Helper()
	entry := func(section, body []byte) []byte {
		for len(body)%8 != 4 {
			body = append(body, 0) // DW_CFA_nop
		}
		return append(binary.LittleEndian.AppendUint32(section, uint32(len(body))), body...)
	}
	// Version 1, "zR", alignments 1 and -8, return address in column 16, absolute pointers, RA at CFA-8.
	section := entry(nil, []byte{0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, 0x80 | 16, 1})
	for _, f := range functions {
		body := binary.LittleEndian.AppendUint32(nil, uint32(len(section)+4))
		body = binary.LittleEndian.AppendUint64(body, f.start)
		body = binary.LittleEndian.AppendUint64(body, f.end-f.start)
		body = append(body, 0, 0x0c, 7, byte(f.size)) // DW_CFA_def_cfa rsp
		if f.base {
			body = append(body, 0x07, 16) // DW_CFA_undefined
		}
		section = entry(section, body)
	}
	table, err := cfi.New(cfi.Sections{EHFrame: cfi.Section{Addr: 0x1000, Data: section}, Arch: arch.AMD64})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// bytesAt is code from an address on.
type bytesAt struct {
	start uint64
	data  []byte
}

func (b bytesAt) Code(addr, n uint64) ([]byte, error) {
	if addr < b.start || addr+n > b.start+uint64(len(b.data)) {
		return nil, errors.New("no code")
	}
	return b.data[addr-b.start:][:n], nil
}

// put writes instructions that end at an address.
func (b bytesAt) put(end uint64, instructions ...byte) {
	copy(b.data[end-b.start-uint64(len(instructions)):], instructions)
}

// compiling is a program with candidates for the code that it has compiled at run time.
type compiling struct {
	program    unwind.Module
	candidates []unwind.Candidate
	frameless  bool
}

func (c compiling) Find(addr uint64) (unwind.Module, bool) {
	if addr >= code && addr < codeEnd {
		return c.program, true
	}
	return unwind.Module{}, addr >= madeCode && addr < madeEnd
}

func (c compiling) Candidates(addr uint64, _ bool) []unwind.Candidate {
	if addr < madeCode || addr >= madeEnd {
		return nil
	}
	return c.candidates
}

func (c compiling) Frameless(addr uint64) bool {
	return c.frameless && addr >= madeCode && addr < madeEnd
}

const (
	madeCode, madeEnd = 0x500000, 0x501000

	outermost, caller, other, leaf = code + 0x100, code + 0x200, code + 0x300, code + 0x400

	toOutermost, toCaller, toOther, behindNoCall = outermost + 0x20, caller + 0x20, other + 0x20, caller + 0x40
)

// TestCandidates checks that a walk leaves code that was read at another moment only with a proof.
func TestCandidates(t *testing.T) {
	t.Parallel()
	call := []byte{0xff, 0xd0}                                         // CALL RAX
	program := bytesAt{code, bytes.Repeat([]byte{0xc3}, codeEnd-code)} // RET
	for _, ra := range []uint64{toOutermost, toCaller, toOther} {
		program.put(ra, call...)
	}
	modules := compiling{frameless: true, program: unwind.Module{Code: program, CFI: tableOf(t,
		fixedFrame{outermost, outermost + 0x80, 16, true}, fixedFrame{caller, caller + 0x80, 32, false},
		fixedFrame{other, other + 0x80, 40, false}, fixedFrame{leaf, leaf + 0x80, 8, false},
	)}}
	candidate := func(size int, loaded uint64) unwind.Candidate {
		made := bytesAt{madeCode, make([]byte, madeEnd-madeCode)}
		target := binary.LittleEndian.AppendUint64([]byte{0x48, 0xb8}, loaded) // MOV RAX, loaded
		made.put(madeCode+0x40, append(target, call...)...)
		return unwind.Candidate{Start: madeCode, End: madeEnd, Module: unwind.Module{
			Code: made, CFI: tableOf(t, fixedFrame{madeCode, madeEnd, size, false}),
		}}
	}
	right, wrong, longer := candidate(24, leaf), candidate(16, leaf), candidate(40, leaf)
	const sp = stackBase
	// The frames of generated code, caller and outermost: 24 bytes, 32 bytes.
	stack := []uint64{1, 2, toCaller, 3, 4, 5, toOutermost, 0, 0}
	whole := []uint64{madeCode + 0x60, toCaller, toOutermost}
	for _, tt := range []struct {
		name       string
		candidates []unwind.Candidate
		pc         uint64
		words      []uint64
		want       []uint64
		reason     unwind.Reason
	}{
		{"the code is still there", []unwind.Candidate{right}, madeCode + 0x60, stack, whole, unwind.EndOfStack},
		{"no candidate", nil, madeCode + 0x60, stack, whole[:1], unwind.Generated},
		{"other code", []unwind.Candidate{wrong}, madeCode + 0x60, stack, whole[:1], unwind.Generated},
		{"other code was there, too", []unwind.Candidate{wrong, right, longer}, madeCode + 0x60, stack, whole, unwind.EndOfStack},
		{
			"a stale return address behind no call", []unwind.Candidate{wrong}, madeCode + 0x60,
			[]uint64{1, behindNoCall, toCaller, 3, 4, toOutermost, 0, 0}, whole[:1], unwind.Generated,
		},
		{
			"a stale return address that leads nowhere", []unwind.Candidate{wrong}, madeCode + 0x60,
			[]uint64{1, toOther, toCaller, 3, 4, 5, 6, 0, 0}, whole[:1], unwind.Generated,
		},
		{
			"two candidates that both lead to the base", []unwind.Candidate{wrong, right}, madeCode + 0x60,
			[]uint64{1, toOther, toCaller, 3, 4, 5, toOutermost, 0, 0}, whole[:1], unwind.Generated,
		},
		{
			"two that agree", []unwind.Candidate{right, candidate(24, 0)}, madeCode + 0x60, stack, whole, unwind.EndOfStack,
		},
		{"a stack without an end", []unwind.Candidate{right}, madeCode + 0x60, stack[:4], whole[:1], unwind.Generated},
		{
			"code that has called the frame", []unwind.Candidate{right}, leaf + 4, append([]uint64{madeCode + 0x40}, stack...),
			[]uint64{leaf + 4, madeCode + 0x40, toCaller, toOutermost}, unwind.EndOfStack,
		},
		{
			"code that calls another function", []unwind.Candidate{candidate(24, other)}, leaf + 4,
			append([]uint64{madeCode + 0x40}, stack...), []uint64{leaf + 4, madeCode + 0x40}, unwind.Generated,
		},
		{
			"code without a call there", []unwind.Candidate{right}, leaf + 4, append([]uint64{madeCode + 0x50}, stack...),
			[]uint64{leaf + 4, madeCode + 0x50}, unwind.Generated,
		},
		{
			"generated code that calls generated code", []unwind.Candidate{right}, madeCode + 0x60,
			[]uint64{1, 2, madeCode + 0x40, 1, 2, toCaller, 3, 4, 5, toOutermost, 0},
			[]uint64{madeCode + 0x60}, unwind.Generated, // the code calls leaf there
		},
	} {
		m := modules
		m.candidates = tt.candidates
		u := unwind.Unwinder{Arch: arch.AMD64}
		frames, stop := u.Unwind(nil, registers(tt.pc, sp, sp+8), fakeMemory{sp, tt.words}, m)
		if got := pcs(frames); !slices.Equal(got, tt.want) || stop.Reason != tt.reason {
			t.Errorf("%s: %x, %s; want %x", tt.name, got, stop, tt.want)
		}
	}
}
