package codeflow_test

import (
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind/codeflow"
)

const depthStart = 0x1000

// anchors are the call frame information from an offset on.
type anchors []struct {
	from uint64
	a    codeflow.Anchor
}

func (list anchors) at(addr uint64) codeflow.Anchor {
	var found codeflow.Anchor
	for _, entry := range list {
		if addr-depthStart >= entry.from {
			found = entry.a
		}
	}
	return found
}

func bySP(offset int64) codeflow.Anchor {
	return codeflow.Anchor{Base: codeflow.StackPointer, Offset: offset}
}

func byFP() codeflow.Anchor { return codeflow.Anchor{Base: codeflow.FramePointer, Offset: 16} }

// framed is a function's usual beginning, with its call frame information.
var (
	prologue = []byte{
		0x55,             // 0 push rbp
		0x48, 0x89, 0xe5, // 1 mov rbp, rsp
		0x41, 0x57, // 4 push r15
		0x48, 0x83, 0xec, 0x28, // 6 sub rsp, 0x28
	}
	framed = anchors{{0, bySP(8)}, {1, bySP(16)}, {4, byFP()}}
)

const framedDepth = 16 + 8 + 0x28

// depthFollow is a test case: code that continues after the prologue, and an offset at which the distances are checked.
type depthFollow struct {
	name string
	code []byte
	at   uint64 // offset behind the prologue
	want []int64
	err  error
}

func depthFollows() []depthFollow {
	call := []byte{0xe8, 0, 0, 0, 0}
	return []depthFollow{
		{"behind the prologue", call, 0, []int64{framedDepth}, nil},
		{"in the middle of a call", call, 4, []int64{framedDepth}, nil},
		{"an argument pushed", slices.Concat([]byte{0x6a, 1}, call, call), 2, []int64{framedDepth + 8}, nil},
		{"popped again", slices.Concat([]byte{0x6a, 1, 0x58}, call), 3, []int64{framedDepth}, nil},
		{"add", slices.Concat([]byte{0x48, 0x83, 0xc4, 0x80}, call), 4, []int64{framedDepth + 128}, nil},
		{"lea", slices.Concat([]byte{0x48, 0x8d, 0x64, 0x24, 0xf8}, call), 5, []int64{framedDepth + 8}, nil},
		{"alloca", slices.Concat([]byte{0x48, 0x29, 0xc4}, call), 3, nil, codeflow.ErrUnknown},
		{"aligned", slices.Concat([]byte{0x48, 0x83, 0xe4, 0xc0}, call), 4, nil, codeflow.ErrUnknown},
		{"mov esp", slices.Concat([]byte{0x89, 0xc4}, call), 2, nil, codeflow.ErrUnknown},
		{"alloca undone", slices.Concat([]byte{0x48, 0x29, 0xc4, 0x48, 0x8d, 0x65, 0xf0}, call), 7, []int64{32}, nil},
		{"set to the frame pointer", slices.Concat([]byte{0x48, 0x89, 0xec}, call), 3, []int64{16}, nil},
		{"jumped over a push", slices.Concat([]byte{0xeb, 1, 0x50}, call), 3, []int64{framedDepth}, nil},
		{"branched over a push", slices.Concat([]byte{0x74, 1, 0x50}, call), 3, []int64{framedDepth, framedDepth + 8}, nil},
		{"behind a trap", slices.Concat([]byte{0x0f, 0x0b}, call), 2, nil, codeflow.ErrUnreached},
		{"behind int3", slices.Concat([]byte{0xcc}, call), 1, nil, codeflow.ErrUnreached},
		{"behind a return", slices.Concat([]byte{0xc3}, call), 1, nil, codeflow.ErrUnreached},
		{"through a table", slices.Concat([]byte{0x3e, 0xff, 0xe0}, call), 3, []int64{framedDepth}, nil},
		{"too small", []byte{0x48, 0x83, 0xc4, 0x60, 0x90}, 4, nil, codeflow.ErrUnreached},
		{"a loop of pushes", slices.Concat([]byte{0x50, 0x75, 0xfd}, call), 3, nil, codeflow.ErrUnknown},
		{"endbr64", slices.Concat([]byte{0xf3, 0x0f, 0x1e, 0xfa}, call), 4, []int64{framedDepth}, nil},
		{"vzeroupper", slices.Concat([]byte{0xc5, 0xf8, 0x77}, call), 3, []int64{framedDepth}, nil},
		{"no code", slices.Concat([]byte{0x06}, call), 1, nil, codeflow.ErrCode},
		{"cut instruction", []byte{0xe8, 0}, 0, nil, codeflow.ErrCode},
		{"out of the function", call, 5, nil, codeflow.ErrUnreached},
	}
}

func TestAt(t *testing.T) {
	t.Parallel()
	for _, tt := range depthFollows() {
		f := codeflow.Function{Start: depthStart, Code: slices.Concat(prologue, tt.code), Anchor: framed.at}
		got, err := f.At(depthStart + uint64(len(prologue)) + tt.at)
		if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v", tt.name, got, err)
		}
	}
}

// TestTargetBehindPadding has a table's target behind padding that follows a return. In call frame information the
// return's row covers the padding too. Its distance is impossible at the target.
func TestTargetBehindPadding(t *testing.T) {
	t.Parallel()
	code := slices.Concat(prologue, []byte{
		0xff, 0xe0, // 10 jmp rax
		0xc3, // 12 ret
		0x90, // 13 nop
		0x58, // 14 pop rax
		0x90, // 15 nop
	})
	rows := append(slices.Clone(framed), anchors{{12, bySP(8)}, {14, byFP()}}...)
	f := codeflow.Function{Start: depthStart, Code: code, Anchor: rows.at}
	for at, want := range map[uint64]int64{14: framedDepth, 15: framedDepth - 8} {
		if got, err := f.At(depthStart + at); err != nil || !slices.Equal(got, []int64{want}) {
			t.Errorf("%d: %v instead of %d, %v", at, got, want, err)
		}
	}
}

func TestAtNeedsAnEntry(t *testing.T) {
	t.Parallel()
	f := codeflow.Function{Start: depthStart, Code: []byte{0x90}, Anchor: func(uint64) codeflow.Anchor { return byFP() }}
	if _, err := f.At(depthStart); !errors.Is(err, codeflow.ErrUnreached) {
		t.Errorf("a part of a function: %v", err)
	}
	f.Code = nil
	if _, err := f.At(depthStart); !errors.Is(err, codeflow.ErrCode) {
		t.Errorf("no code: %v", err)
	}
	f.Code = make([]byte, codeflow.MaxCode+1)
	if _, err := f.At(depthStart); !errors.Is(err, codeflow.ErrCode) {
		t.Errorf("too much code: %v", err)
	}
}

func TestLeaves(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		code []byte
		want bool
	}{
		"returns":                  {[]byte{0xc3}, false},
		"loops":                    {[]byte{0x90, 0xeb, 0xfd}, false},
		"tail call":                {[]byte{0xe9, 0, 1, 0, 0}, true},
		"branch away":              {[]byte{0x74, 0x70, 0xc3}, true},
		"jump backwards":           {[]byte{0xeb, 0x80}, true},
		"through register":         {[]byte{0xff, 0xe0}, true},
		"falls out":                {[]byte{0x90}, true},
		"calls that do not return": {[]byte{0xe8, 0, 0, 0, 0}, true},
	} {
		f := codeflow.Function{Start: depthStart, Code: tt.code}
		if got, err := f.Leaves(); got != tt.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// FuzzAt checks that At ends for any code, and returns either a value or an error.
func FuzzAt(f *testing.F) {
	for _, tt := range depthFollows() {
		f.Add(slices.Concat(prologue, tt.code), uint64(len(prologue))+tt.at)
	}
	f.Fuzz(func(t *testing.T, code []byte, at uint64) {
		fn := codeflow.Function{Start: depthStart, Code: code, Anchor: framed.at}
		if got, err := fn.At(depthStart + at); (err == nil) != (len(got) > 0) {
			t.Errorf("%v and %v", got, err)
		}
		_, _ = fn.Leaves()
	})
}

// TestStill checks code whose bytes look as if they moved the stack pointer, and code that does move it.
func TestStill(t *testing.T) {
	for _, tt := range []struct {
		name string
		code []byte
		want bool
	}{
		{"nothing", nil, true},
		{"test rdi, rdi; je, whose bytes hold those of a push", []byte{0x48, 0x85, 0xff, 0x74, 0x1d}, true},
		{"mov of 0x55", []byte{0xb8, 0x55, 0, 0, 0}, true},
		{"behind a return", []byte{0xc3, 0x90}, true},
		{"push", []byte{0x90, 0x55}, false},
		{"sub rsp", []byte{0x48, 0x83, 0xec, 0x08}, false},
		{"leave", []byte{0xc9}, false},
		{"call", []byte{0xe8, 0, 0, 0, 0}, false},
		{"cut", []byte{0x90, 0xb8, 0x55}, false},
		{"vector", []byte{0xc5, 0xf8, 0x77}, true},
		{"mulx rax, rcx, rcx", []byte{0xc4, 0xe2, 0xf3, 0xf6, 0xc1}, true},
		{"mulx rax, rsp, rcx", []byte{0xc4, 0xe2, 0xdb, 0xf6, 0xc1}, false},
		{"no code", []byte{0x06}, false},
	} {
		if got := codeflow.Still(tt.code); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
