package allocation

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/trace"
)

// Sample types of a profile, as Go's own heap profiles have them.
const (
	AllocObjects = "alloc_objects"
	AllocSpace   = "alloc_space"
	InuseObjects = "inuse_objects"
	InuseSpace   = "inuse_space"
)

// SampleTypes returns the sample types in the order of their values.
func SampleTypes() []string { return []string{AllocObjects, AllocSpace, InuseObjects, InuseSpace} }

// Profile returns the report as a profile. Live memory is called in use there.
func (r *Report) Profile() *profile.Profile {
	b := profileBuilder{
		profile: &profile.Profile{
			SampleType: []*profile.ValueType{
				{Type: AllocObjects, Unit: "count"}, {Type: AllocSpace, Unit: "bytes"},
				{Type: InuseObjects, Unit: "count"}, {Type: InuseSpace, Unit: "bytes"},
			},
			DefaultSampleType: InuseSpace, TimeNanos: r.Started.UnixNano(), DurationNanos: r.Elapsed.Nanoseconds(),
			PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 1,
			Comments: append(append([]string{r.Title()}, r.Summary()...), r.Notes()...),
		},
		functions: make(map[profile.Function]*profile.Function), mappings: make(map[profile.Mapping]*profile.Mapping),
		locations: make(map[string]*profile.Location),
	}
	for _, p := range r.Paths {
		s := &profile.Sample{
			Value: []int64{int64(p.Objects), int64(p.Bytes), int64(p.LiveObjects), int64(p.LiveBytes)},
			Label: map[string][]string{"pid": {strconv.Itoa(r.PID)}},
		}
		if p.Stack == nil {
			s.Location = []*profile.Location{b.location([]trace.Frame{{Function: "[stack not recorded]"}})}
		} else {
			s.Location = b.stack(p.Stack)
		}
		b.profile.Sample = append(b.profile.Sample, s)
	}
	return b.profile
}

// profileBuilder shares functions, mappings and locations.
type profileBuilder struct {
	profile   *profile.Profile
	functions map[profile.Function]*profile.Function
	mappings  map[profile.Mapping]*profile.Mapping
	locations map[string]*profile.Location
}

// stack returns the locations, innermost first. Inlined calls share the location of the function that contains them.
func (b *profileBuilder) stack(t *trace.Thread) []*profile.Location {
	list := make([]*profile.Location, 0, len(t.Frames))
	for at := 0; at < len(t.Frames); {
		end := at + 1
		for end < len(t.Frames) && t.Frames[end-1].Inlined {
			end++
		}
		list = append(list, b.location(t.Frames[at:end]))
		at = end
	}
	if !t.Whole {
		list = append(list, b.location([]trace.Frame{{Function: "..."}}))
	}
	return list
}

// location returns the location of frames with one address.
func (b *profileBuilder) location(frames []trace.Frame) *profile.Location {
	words := make([]string, 0, 2*len(frames))
	for i := range frames {
		words = append(words, strconv.FormatUint(frames[i].Address, 16), nameOf(&frames[i]))
	}
	key := strings.Join(words, ";")
	if l := b.locations[key]; l != nil {
		return l
	}
	last := &frames[len(frames)-1]
	l := &profile.Location{
		ID: uint64(len(b.profile.Location) + 1), Address: last.Address, Mapping: b.mapping(last), IsFolded: false,
	}
	for i := range frames {
		l.Line = append(l.Line, profile.Line{Function: b.function(&frames[i]), Line: int64(frames[i].Line)})
	}
	b.locations[key] = l
	b.profile.Location = append(b.profile.Location, l)
	return l
}

// nameOf is the name of a frame without its offset, except where no symbol covers the address.
func nameOf(f *trace.Frame) string {
	if f.Function != "" {
		return f.Function
	}
	return fmt.Sprintf("%s+0x%x", f.Module, f.Offset)
}

func (b *profileBuilder) function(f *trace.Frame) *profile.Function {
	name := nameOf(f)
	key := profile.Function{Name: name, Filename: f.File}
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

// mapping returns the image of a frame. Its start is the load bias, so that addresses less the start are those in the
// image.
func (b *profileBuilder) mapping(f *trace.Frame) *profile.Mapping {
	if f.Module == "" || f.ModuleOffset == 0 {
		return nil
	}
	bias := f.Address - f.ModuleOffset
	key := profile.Mapping{File: f.Module, BuildID: f.BuildID, Start: bias}
	m := b.mappings[key]
	if m == nil {
		m = &profile.Mapping{
			ID: uint64(len(b.profile.Mapping) + 1), File: f.Module, BuildID: f.BuildID, Start: bias,
			HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
		}
		b.mappings[key] = m
		b.profile.Mapping = append(b.profile.Mapping, m)
	}
	m.Limit = max(m.Limit, f.Address+1)
	return m
}
