package functrace

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// Profile returns the stacks as a profile. A value is the number of hits with the stack. Labels are pid, process and arguments.
func (r *Result) Profile() *profile.Profile {
	p := &profile.Profile{
		SampleType:    []*profile.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType:    &profile.ValueType{Type: "samples", Unit: "count"},
		Period:        1,
		DurationNanos: r.Took.Nanoseconds(),
		Comments:      r.summary(),
	}
	b := profilefmt.NewBuilder(p)
	for i := range r.Functions {
		f := &r.Functions[i]
		for j := range f.Stacks {
			p.Sample = append(p.Sample, f.Stacks[j].sample(b, f.Function))
		}
	}
	return p
}

// sample returns a stack as a sample. Without a stack, the sample has one frame: the traced function.
func (s *StackResult) sample(b *profilefmt.Builder, function string) *profile.Sample {
	out := &profile.Sample{Value: []int64{int64(s.Count)}, Label: map[string][]string{"pid": {strconv.Itoa(s.PID)}}}
	if s.Title != "" {
		out.Label["process"] = []string{s.Title}
	}
	if s.Arguments != "" {
		out.Label["arguments"] = []string{s.Arguments}
	}
	if s.Thread == nil {
		out.Location = []*profile.Location{b.Named(function)}
		return out
	}
	out.Location = b.Stack(s.Thread)
	return out
}

// summary returns a line for each function and each note.
func (r *Result) summary() (lines []string) {
	for i := range r.Functions {
		lines = append(lines, r.Functions[i].summary())
	}
	return append(lines, r.Notes...)
}

// summary returns a line with the figures of a function.
func (f *FunctionResult) summary() string {
	sum := f.Total()
	text := fmt.Sprintf("%s: %s in %s", f.label(), units.Count(sum.Hits, "hit"), units.Count(len(f.Processes), "process"))
	if n := sum.Stacks + sum.Lost + sum.Skipped; n > 0 {
		text += fmt.Sprintf(", of which %d have a stack, %d are lost and %d are not in the sample", sum.Stacks, sum.Lost,
			sum.Skipped)
	}
	if f.Unread > 0 {
		text += "; " + units.Plural(f.Unread, unreadText)
	}
	return text
}

// label returns the name of a function with its module.
func (f *Traced) label() string {
	name := f.Function
	if name == "" {
		name = f.Name
	}
	if !strings.Contains(name, "+0x") {
		name += " (" + f.Module + ")"
	}
	return render.VisibleLine(name)
}
