package profilefmt

import (
	"slices"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestStack checks the names of a stack's locations: a frame without a symbol keeps its note, and inlined calls share
// the location of their caller.
func TestStack(t *testing.T) {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}}}
	b := NewBuilder(p)
	th := &backtrace.Thread{Frames: []backtrace.Frame{
		{Address: 0x1010, Function: "inner", Module: "postgres", ModuleOffset: 0x10, Inlined: true},
		{Address: 0x1010, Function: "outer", Module: "postgres", ModuleOffset: 0x10},
		{Address: 0x1020, Module: "postgres", Offset: 0x20, ModuleOffset: 0x20, Note: "static, in lock.c"},
		{Address: 0x1030, Module: "postgres", Offset: 0x30, ModuleOffset: 0x30},
		{Address: 0x1040, Function: "main", Module: "postgres", ModuleOffset: 0x40, Note: "by frame pointer"},
	}}
	p.Sample = []*profile.Sample{{Location: b.Stack(th), Value: []int64{1}}}
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, l := range p.Sample[0].Location {
		var names []string
		for _, line := range l.Line {
			names = append(names, line.Function.Name)
		}
		got = append(got, names)
	}
	want := [][]string{
		{"inner", "outer"}, {"postgres+0x20 [static, in lock.c]"}, {"postgres+0x30"}, {"main"}, {"..."},
	}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("%q", got)
	}
	if again := b.Stack(th); !slices.Equal(again, p.Sample[0].Location) {
		t.Error("an equal stack has other locations")
	}
}
