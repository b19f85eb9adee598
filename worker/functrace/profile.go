package functrace

import (
	"fmt"
	"strings"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/trace"
)

// Profile returns the stacks as a profile. Its values are hits that have a stack. Labels are pid and process, and those
// of the arguments.
func (r *Result) Profile() *profile.Profile {
	b := builder{
		profile: &profile.Profile{
			SampleType:    []*profile.ValueType{{Type: "samples", Unit: "count"}},
			PeriodType:    &profile.ValueType{Type: "samples", Unit: "count"},
			Period:        1,
			DurationNanos: r.Took.Nanoseconds(),
			Comments:      r.summary(),
		},
		functions: make(map[functionKey]*profile.Function), mappings: make(map[mappingKey]*profile.Mapping),
		locations: make(map[string]*profile.Location),
	}
	for i := range r.Functions {
		f := &r.Functions[i]
		for j := range f.Stacks {
			b.add(f, &f.Stacks[j])
		}
	}
	return b.profile
}

// summary has a line for each function and each note.
func (r *Result) summary() (lines []string) {
	for i := range r.Functions {
		lines = append(lines, r.Functions[i].summary())
	}
	return append(lines, r.Notes...)
}

// summary is a line about a function.
func (f *FunctionResult) summary() string {
	sum := f.Total()
	text := fmt.Sprintf("%s: %d hits in %d processes", f.label(), sum.Hits, len(f.Processes))
	if n := sum.Stacks + sum.Lost + sum.Skipped; n > 0 {
		text += fmt.Sprintf(", of which %d have a stack, %d are lost and %d are not in the sample", sum.Stacks, sum.Lost,
			sum.Skipped)
	}
	if f.Unread > 0 {
		text += fmt.Sprintf("; %d stacks are of processes that ended before they could be read", f.Unread)
	}
	return text
}

// label is the name of a function with its module.
func (f *Traced) label() string {
	name := f.Function
	if name == "" {
		name = f.Name
	}
	if strings.Contains(name, "+0x") {
		return name
	}
	return name + " (" + f.Module + ")"
}

type functionKey struct{ name, file string }

type mappingKey struct {
	module, build string
	bias          uint64
}

// builder makes a profile.
type builder struct {
	profile   *profile.Profile
	functions map[functionKey]*profile.Function
	mappings  map[mappingKey]*profile.Mapping
	locations map[string]*profile.Location
}

// add adds a stack.
func (b *builder) add(f *FunctionResult, s *StackResult) {
	sample := &profile.Sample{Value: []int64{int64(s.Count)}, Label: map[string][]string{"pid": {fmt.Sprint(s.PID)}}}
	if s.Title != "" {
		sample.Label["process"] = []string{s.Title}
	}
	if s.Arguments != "" {
		sample.Label["arguments"] = []string{s.Arguments}
	}
	if s.Thread == nil {
		sample.Location = []*profile.Location{b.location([]trace.Frame{{Function: f.Function, Module: f.Module}})}
	} else {
		sample.Location = b.stack(s.Thread)
	}
	b.profile.Sample = append(b.profile.Sample, sample)
}

// stack returns the locations of a stack, innermost first. Inlined calls share the location of the function that
// contains them.
func (b *builder) stack(th *trace.Thread) (list []*profile.Location) {
	for at := 0; at < len(th.Frames); {
		end := at + 1
		for end < len(th.Frames) && th.Frames[end-1].Inlined {
			end++
		}
		list = append(list, b.location(th.Frames[at:end]))
		at = end
	}
	if !th.Whole {
		list = append(list, b.location([]trace.Frame{{Function: "..."}}))
	}
	return list
}

// location returns the location of frames with one address.
func (b *builder) location(frames []trace.Frame) *profile.Location {
	last := &frames[len(frames)-1]
	var key strings.Builder
	fmt.Fprintf(&key, "%x %s", last.Address, last.Module)
	for i := range frames {
		fmt.Fprintf(&key, ";%s:%d", frameName(&frames[i]), frames[i].Line)
	}
	if known := b.locations[key.String()]; known != nil {
		return known
	}
	l := &profile.Location{ID: uint64(len(b.profile.Location) + 1), Address: last.Address, Mapping: b.mapping(last)}
	for i := range frames {
		l.Line = append(l.Line, profile.Line{Function: b.function(&frames[i]), Line: int64(frames[i].Line)})
	}
	b.locations[key.String()] = l
	b.profile.Location = append(b.profile.Location, l)
	return l
}

// frameName is the name of a frame: without an offset, except where no symbol covers the address.
func frameName(f *trace.Frame) string {
	switch {
	case f.Function != "":
		return f.Function
	case f.Note != "":
		return fmt.Sprintf("%s+%#x [%s]", f.Module, f.Offset, f.Note)
	}
	return fmt.Sprintf("%s+%#x", f.Module, f.Offset)
}

func (b *builder) function(f *trace.Frame) *profile.Function {
	name := frameName(f)
	key := functionKey{name, f.File}
	if known := b.functions[key]; known != nil {
		return known
	}
	made := &profile.Function{
		ID: uint64(len(b.profile.Function) + 1), Name: name, SystemName: name, Filename: f.File,
	}
	b.functions[key] = made
	b.profile.Function = append(b.profile.Function, made)
	return made
}

// mapping returns the mapping of a frame's module. It starts at the load bias, so that an address less the start is the
// one in the file.
func (b *builder) mapping(f *trace.Frame) *profile.Mapping {
	if f.Module == "" || f.Address == 0 {
		return nil
	}
	key := mappingKey{f.Module, f.BuildID, f.Address - f.ModuleOffset}
	m := b.mappings[key]
	if m == nil {
		m = &profile.Mapping{
			ID: uint64(len(b.profile.Mapping) + 1), File: f.Module, BuildID: f.BuildID, Start: key.bias, HasFunctions: true,
		}
		b.mappings[key] = m
		b.profile.Mapping = append(b.profile.Mapping, m)
	}
	m.Limit = max(m.Limit, f.Address+1)
	return m
}
