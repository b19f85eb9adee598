package profilefmt

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Builder makes the locations of stacks, and adds them to a profile. Stacks share equal functions, mappings and locations. The
// caller adds the samples.
type Builder struct {
	profile   *profile.Profile
	functions map[profile.Function]*profile.Function
	mappings  map[profile.Mapping]*profile.Mapping
	locations map[string]*profile.Location
}

// NewBuilder returns a builder for a profile without stacks.
func NewBuilder(p *profile.Profile) *Builder {
	return &Builder{
		profile: p, functions: make(map[profile.Function]*profile.Function),
		mappings: make(map[profile.Mapping]*profile.Mapping), locations: make(map[string]*profile.Location),
	}
}

// Named returns a location for a text that is not a function, such as "[no stack]".
func (b *Builder) Named(name string) *profile.Location {
	return b.location([]backtrace.Frame{{Function: name}})
}

// Stack returns the locations of a thread's frames, innermost first. Inlined calls share the location of the function that contains
// them. If the stack is not complete, the last location has the name "...".
func (b *Builder) Stack(t *backtrace.Thread) []*profile.Location { return b.stack(t, false) }

// stack is Stack. If levels is set, it also returns locations for the functions of procedural languages (backtrace.Level).
func (b *Builder) stack(t *backtrace.Thread, levels bool) []*profile.Location {
	list := make([]*profile.Location, 0, len(t.Frames))
	for at := 0; at < len(t.Frames); {
		end := at + 1
		for end < len(t.Frames) && t.Frames[end-1].Inlined {
			end++
		}
		for i := at; levels && i < end; i++ {
			for _, l := range t.Frames[i].Levels {
				if l.Function != "" {
					list = append(list, b.location([]backtrace.Frame{{Function: string(l.Kind) + ":" + l.Function, Line: l.Line}}))
				}
			}
		}
		list = append(list, b.location(t.Frames[at:end]))
		at = end
	}
	if !t.Whole {
		list = append(list, b.Named("..."))
	}
	return list
}

// Traces counts equal stacks of traces, and makes a profile of them. Functions of PostgreSQL's procedural languages are frames
// that come directly before the C function that runs them. The labels of a sample are LabelThread, "pid" and, if it is known,
// LabelBackendType.
type Traces struct {
	// ByProcess appends the process id to the name of a thread, so that names of different processes differ.
	ByProcess bool

	frames  int
	profile profile.Profile
	builder *Builder
	samples map[string]*profile.Sample
}

// Labels of the samples of Traces.
const (
	// LabelThread is the name of the thread, or "goroutines".
	LabelThread = "thread"
	// LabelBackendType is the type of a server process, as in pg_stat_activity.backend_type.
	LabelBackendType = "backend_type"
)

// Add counts each stack of the trace the given number of times.
func (c *Traces) Add(t *backtrace.Trace, times int) { c.AddTyped(t, "", times) }

// AddTyped is Add for a process of a server. backendType is the value of LabelBackendType; "": the type is not known.
func (c *Traces) AddTyped(t *backtrace.Trace, backendType string, times int) {
	for i := range t.Threads {
		// In a core file only the first thread has a name.
		c.add(t.PID, backendType, cmp.Or(t.Threads[i].Name, t.Threads[0].Name, "[no name]"), &t.Threads[i], times)
	}
	for i := range t.Goroutines {
		c.add(t.PID, backendType, "goroutines", &t.Goroutines[i].Thread, times)
	}
}

// Frames returns the number of frames of all different stacks.
func (c *Traces) Frames() int { return c.frames }

func (c *Traces) add(pid int, backendType, name string, th *backtrace.Thread, times int) {
	p := c.Profile()
	process := strconv.Itoa(pid)
	if c.ByProcess {
		name += "-" + process
	}
	var stack []*profile.Location
	if len(th.Frames) == 0 {
		stack = []*profile.Location{c.builder.Named("[" + th.Stop + "]")}
	} else {
		stack = c.builder.stack(th, true)
	}
	key := []byte(process + " " + name + "\n")
	for _, l := range stack {
		key = strconv.AppendUint(append(key, ' '), l.ID, 36)
	}
	s := c.samples[string(key)]
	if s == nil {
		s = &profile.Sample{
			Location: stack, Value: []int64{0}, Label: map[string][]string{LabelThread: {name}, "pid": {process}},
		}
		if backendType != "" {
			s.Label[LabelBackendType] = []string{backendType}
		}
		c.frames += len(stack)
		c.samples[string(key)] = s
		p.Sample = append(p.Sample, s)
	}
	s.Value[0] += int64(times)
}

// Profile returns the profile. A value is the number of times that a stack was counted.
func (c *Traces) Profile() *profile.Profile {
	if c.builder == nil {
		samples := profile.ValueType{Type: "samples", Unit: "count"}
		c.profile = profile.Profile{SampleType: []*profile.ValueType{&samples}, PeriodType: &samples, Period: 1}
		c.builder, c.samples = NewBuilder(&c.profile), map[string]*profile.Sample{}
	}
	return &c.profile
}

// location returns the location of frames with the same address: a function and the calls inlined into it, innermost first.
func (b *Builder) location(frames []backtrace.Frame) *profile.Location {
	words := make([]string, 0, 3*len(frames)) //nolint:mnd // three words for each frame
	for i := range frames {
		words = append(words, strconv.FormatUint(frames[i].Address, 16), frames[i].Label(), strconv.Itoa(frames[i].Line))
	}
	key := strings.Join(words, ";")
	if l := b.locations[key]; l != nil {
		return l
	}
	last := &frames[len(frames)-1]
	l := &profile.Location{
		ID: uint64(len(b.profile.Location) + 1), Address: last.Address, Mapping: b.mapping(last),
	}
	for i := range frames {
		l.Line = append(l.Line, profile.Line{Function: b.function(&frames[i]), Line: int64(frames[i].Line)})
	}
	b.locations[key] = l
	b.profile.Location = append(b.profile.Location, l)
	return l
}

func (b *Builder) function(f *backtrace.Frame) *profile.Function {
	name := f.Label()
	if f.Function == "" && f.Note == "" && b.mapping(f) == nil { // code without a file: its address means nothing in another process
		name = "[" + strings.Trim(f.Module, "[]") + "]"
	}
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

// mapping returns the mapping of a frame's image; nil: the image is not known. Start is the load bias, so that an address less
// Start is the address in the image.
func (b *Builder) mapping(f *backtrace.Frame) *profile.Mapping {
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
