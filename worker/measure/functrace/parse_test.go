package functrace

import (
	"debug/elf"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/ptrace/measure/probe"
)

func TestParseArguments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Argument{
		"2":         {{1, 'x'}, {2, 'x'}},
		"1:s":       {{1, 's'}},
		"3, 1:d,2b": nil,
		"4:u,12":    {{4, 'u'}, {12, 'x'}},
		"0":         nil, "9": nil, "13,1": nil, "1:": nil, "1:z": nil, "x": nil, "": nil, "1,2,3,4,5,6,7,8,9": nil,
		"1:s,2:s,3:s,4:s,5:s": nil,
	} {
		got, err := ParseArguments(text)
		if (err == nil) != (want != nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v, not %v", text, got, err, want)
		}
	}
}

func TestParseConditions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Condition{
		"arg1>8192":          {{Argument{1, 'x'}, probe.Greater, 8192}},
		"arg2:d != -1":       {{Argument{2, 'd'}, probe.NotEqual, ^uint64(0)}},
		"arg1:l<-5":          {{Argument{1, 'l'}, probe.Less, ^uint64(4)}},
		"arg1:b==255":        {{Argument{1, 'b'}, probe.Equal, 255}},
		"arg1:u==0xffffffff": {{Argument{1, 'u'}, probe.Equal, 0xffffffff}},
		"arg1<-5":            nil, "arg1:u==-1": nil, "arg1:b==256": nil, "arg1:d==0xffffffff": nil,
		"arg1:l==18446744073709551615": nil, "arg1:d==-2147483649": nil,
		"arg1&0x10 && arg3==7":      {{Argument{1, 'x'}, probe.And, 16}, {Argument{3, 'x'}, probe.Equal, 7}},
		"arg1>=1":                   {{Argument{1, 'x'}, probe.GreaterEqual, 1}},
		"arg1<=1":                   {{Argument{1, 'x'}, probe.LessEqual, 1}},
		"arg1=18446744073709551615": {{Argument{1, 'x'}, probe.Equal, ^uint64(0)}},
		"arg":                       nil, "arg1": nil, "arg1>": nil, "arg1>x": nil, "arg1:s==1": nil, "x>1": nil, "": nil,
		"arg99>1":                                nil,
		"arg1>1&&arg1>2&&arg1>3&&arg1>4&&arg1>5": nil, "arg1!1": nil,
	} {
		got, err := ParseConditions(text)
		if (err == nil) != (want != nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v, not %v", text, got, err, want)
		}
	}
}

// memory is a value in memory.
func memory(register int, offset int64, size int) probe.Argument {
	return probe.Argument{Kind: probe.Memory, Register: register, Offset: offset, Size: size}
}

// TestPlacesOfArguments: the ABIs of C and Go on x86-64.
func TestPlacesOfArguments(t *testing.T) {
	t.Parallel()
	const di, ax, sp = 14, 10, 19
	for _, c := range []struct {
		argument Argument
		golang   bool
		pushed   int64
		want     probe.Argument
		bad      bool
	}{
		{argument: Argument{1, 'd'}, want: probe.Argument{Register: di, Size: 4, Signed: true}},
		{argument: Argument{1, 'x'}, golang: true, want: probe.Argument{Register: ax, Size: 8}},
		{argument: Argument{7, 'x'}, pushed: 8, want: memory(sp, 16, 8)},
		{argument: Argument{8, 'b'}, want: memory(sp, 16, 1)},
		{argument: Argument{7, 'x'}, pushed: -1, bad: true},
		{argument: Argument{10, 'x'}, golang: true, bad: true},
	} {
		got, err := c.argument.place(elf.EM_X86_64, c.golang, c.pushed)
		if (err != nil) != c.bad || err == nil && got != c.want {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
	if list, err := argumentPlaces([]Argument{{2, 's'}}, elf.EM_X86_64, true, 0); err != nil || len(list) != 2 ||
		list[0].Length != 2 || !list[0].String {
		t.Errorf("a string of Go: %+v, %v", list, err)
	}
}

func TestParsePlace(t *testing.T) {
	t.Parallel()
	const di, bp, r15, ax, sp = 14, 4, 0, 10, 19
	for text, want := range map[string]probe.Argument{
		"8@%rdi":         {Register: di, Size: 8},
		"-4@%edi":        {Register: di, Size: 4, Signed: true},
		"1@%dil":         {Register: di, Size: 1},
		"2@%ax":          {Register: ax, Size: 2},
		"1@%al":          {Register: ax, Size: 1},
		"4@%r15d":        {Register: r15, Size: 4},
		"-4@$-5":         {Kind: probe.Constant, Offset: -5, Size: 4, Signed: true},
		"8@-24(%rbp)":    {Kind: probe.Memory, Register: bp, Offset: -24, Size: 8},
		"4@(%rsp)":       {Kind: probe.Memory, Register: sp, Size: 4},
		"8@8(%rax,%rbx)": {}, "8@x(%rip)": {}, "3@%rdi": {}, "8%rdi": {}, "8@%xmm0": {}, "8@": {}, "": {}, "1@%ah": {},
	} {
		got, ok := parsePlaceX86(text)
		if ok != (want != probe.Argument{}) || ok && got != want {
			t.Errorf("%q: %+v, %t, not %+v", text, got, ok, want)
		}
	}
}

// TestFormOfStaticArgument: a form decides the size and the sign of an argument, unless the probe's value is narrower.
func TestFormOfStaticArgument(t *testing.T) {
	t.Parallel()
	const di = 14
	for _, c := range []struct {
		note   string
		form   byte
		size   int
		signed bool
	}{
		{"4@%edi", 'd', 4, true}, {"-4@%edi", 'u', 4, false}, {"8@%rdi", 'd', 4, true}, {"-8@%rdi", 'u', 4, false},
		{"-4@%edi", 'b', 1, false}, {"2@%di", 'd', 2, false}, {"-2@%di", 'd', 2, true}, {"-2@%di", 'u', 2, false},
		{"-4@%edi", 'x', 4, true}, {"4@%edi", 'x', 4, false}, {"-4@%edi", 'l', 4, true}, {"4@%edi", 'l', 4, false},
	} {
		p := staticProbe{arguments: []string{c.note}}
		got, ok := p.argument(Argument{1, c.form}, elf.EM_X86_64)
		if want := (probe.Argument{Register: di, Size: c.size, Signed: c.signed}); !ok || got != want {
			t.Errorf("%s as %c: %+v, %t, not %+v", c.note, c.form, got, ok, want)
		}
	}
}

func TestParsePlaceAArch64(t *testing.T) {
	t.Parallel()
	const sp = 31
	for text, want := range map[string]probe.Argument{
		"8@x27":       {Register: 27, Size: 8},
		"-4@x0":       {Register: 0, Size: 4, Signed: true},
		"4@w30":       {Register: 30, Size: 4},
		"8@sp":        {Register: sp, Size: 8},
		"-4@8192":     {Kind: probe.Constant, Offset: 8192, Size: 4, Signed: true},
		"-4@-1":       {Kind: probe.Constant, Offset: -1, Size: 4, Signed: true},
		"4@[x19]":     {Kind: probe.Memory, Register: 19, Size: 4},
		"4@[x20, 8]":  {Kind: probe.Memory, Register: 20, Offset: 8, Size: 4},
		"1@[sp, 99]":  {Kind: probe.Memory, Register: sp, Offset: 99, Size: 1},
		"8@[x29, -8]": {Kind: probe.Memory, Register: 29, Offset: -8, Size: 8},
		"8@[x1, x2]":  {}, "8@[x1, 8": {}, "8@[x1], 8": {}, "8@x31": {}, "8@x": {}, "8@d0": {}, "8@[]": {}, "8@[w1]": {},
		"3@x0": {}, "8x0": {}, "8@": {}, "": {}, "8@[,": {}, "8@x-1": {}, "8@[x1, ]": {}, "8@%rdi": {},
	} {
		got, ok := parsePlaceAArch64(text)
		if ok != (want != probe.Argument{}) || ok && got != want {
			t.Errorf("%q: %+v, %t, not %+v", text, got, ok, want)
		}
	}
	text := "-4@x23 4@[x20, 4] 1@[sp, 64]"
	if got := splitArguments(text); !slices.Equal(got, []string{"-4@x23", "4@[x20, 4]", "1@[sp, 64]"}) {
		t.Errorf("%q: %q", text, got)
	}
}

// note makes a note of a static probe.
func note(pc, base, semaphore uint64, text string) []byte {
	desc := binary.LittleEndian.AppendUint64(nil, pc)
	desc = binary.LittleEndian.AppendUint64(desc, base)
	desc = binary.LittleEndian.AppendUint64(desc, semaphore)
	desc = append(desc, text...)
	p := binary.LittleEndian.AppendUint32(nil, 8)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(desc)))
	p = binary.LittleEndian.AppendUint32(p, 3)
	p = append(p, "stapsdt\x00"...)
	p = append(p, desc...)
	for len(p)%4 != 0 {
		p = append(p, 0)
	}
	return p
}

func TestParseStatic(t *testing.T) {
	t.Parallel()
	data := append(note(0x1000, 0x5000, 0x9000, "postgresql\x00query__start\x008@%rdi -4@4(%rsp)\x00"),
		note(0x2000, 0x5000, 0, "p\x00n\x00\x00")...)
	got := parseStatic(data, binary.LittleEndian, 0x5010)
	want := []staticProbe{
		{"postgresql", "query__start", 0x1010, 0x9010, []string{"8@%rdi", "-4@4(%rsp)"}},
		{"p", "n", 0x2010, 0, nil},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	for name, is := range map[string]bool{
		"query__start": true, "query-start": true, "postgresql:query-start": true, "x:query-start": false, "query": false,
	} {
		if got[0].matches(name) != is {
			t.Errorf("%q: %t", name, !is)
		}
	}
	for i := range data {
		parseStatic(data[:i], binary.LittleEndian, 0) // a part of a note is left out
	}
}

// FuzzStatic: any bytes give probes whose names lie in them.
func FuzzStatic(f *testing.F) {
	f.Add(note(0x1000, 0x5000, 0x9000, "postgresql\x00query__start\x008@%rdi -4@4(%rsp)\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range parseStatic(data, binary.LittleEndian, 1) {
			if !strings.Contains(string(data), p.name) {
				t.Errorf("the name %q is not in the data", p.name)
			}
			for n := range p.arguments {
				_, _ = p.argument(Argument{n + 1, formHex}, elf.EM_X86_64)
			}
		}
	})
}
