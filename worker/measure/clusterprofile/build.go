package clusterprofile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
)

// builder makes a pprof profile.
type builder struct {
	collector *collector
	profile   *profile.Profile
	mappings  map[process.Mapping]*profile.Mapping
	functions map[functionKey]*profile.Function
	locations map[locationKey]*profile.Location
	// whole has the locations of each stack.
	whole map[*backtrace.Thread][]*profile.Location
	// labels has the labels in the form of a profile. Samples with equal labels share them.
	labels map[labels]map[string][]string
	// phrases has the phrases of stacks.
	phrases map[phraseKey]string
}

// phraseKey has everything that decides the phrase of a stack.
type phraseKey struct {
	thread      *backtrace.Thread
	event       uint32
	backendType string
}

type functionKey struct{ name, file string }

// locationKey is an address with its functions, innermost first.
type locationKey struct {
	mapping *profile.Mapping
	address uint64
	lines   string
}

// noStack is the frame for time for which no stack was taken.
const noStack = "[no stack was taken]"

// profile makes the pprof profile of the collected samples and times.
func (c *collector) profile(ctx context.Context) *profile.Profile {
	c.completeNames(ctx)
	c.stacks.Complete(c.spaces)
	b := &builder{
		collector: c, mappings: make(map[process.Mapping]*profile.Mapping), functions: make(map[functionKey]*profile.Function),
		locations: make(map[locationKey]*profile.Location), whole: make(map[*backtrace.Thread][]*profile.Location),
		labels: make(map[labels]map[string][]string), phrases: make(map[phraseKey]string),
		profile: &profile.Profile{
			SampleType: c.sampleTypes(), DefaultSampleType: string(c.options.Mode),
			PeriodType: &profile.ValueType{Type: string(c.options.Mode), Unit: "nanoseconds"},
			Period:     int64(float64(time.Second) / c.options.Rate), TimeNanos: c.began.UnixNano(),
			DurationNanos: c.summary.Took.Nanoseconds(),
		},
	}
	if c.options.Mode != OffCPU {
		b.addCPU()
	}
	if c.options.Mode != CPU {
		b.addOff()
	}
	b.profile.Comments = append([]string{"pg_stat_backtrace: " + c.summary.Server}, c.summary.Notes()...)
	slices.SortStableFunc(b.profile.Sample, func(x, y *profile.Sample) int {
		return cmp.Compare(y.Value[len(y.Value)-1], x.Value[len(x.Value)-1])
	})
	return b.profile
}

// readNames replaces the names with which sessions logged in by the present names, as far as these can be read.
func (c *collector) readNames() {
	reader, err := state.Open(c.server.cluster)
	if err != nil {
		return
	}
	if databases, users, err := reader.CurrentNames(); err == nil {
		maps.Copy(c.databases, databases)
		maps.Copy(c.users, users)
	}
}

// completeNames reads the names of databases and users. It calls Options.Names, if it is set and the name of a sampled process's
// database or user is still not known.
func (c *collector) completeNames(ctx context.Context) {
	c.readNames()
	if c.options.Names == nil {
		return
	}
	missing := false
	for _, p := range c.processes {
		missing = missing || p.known && (p.identity.database != 0 && c.databases[p.identity.database] == "" ||
			p.identity.user != 0 && c.users[p.identity.user] == "")
	}
	if !missing {
		return
	}
	names, err := c.options.Names(ctx)
	if err != nil {
		return // the labels then have OIDs
	}
	for oid, name := range names.Databases {
		c.databases[oid] = clean([]byte(name))
	}
	for oid, name := range names.Users {
		c.users[oid] = clean([]byte(name))
	}
}

// sampleTypes returns the sample types for the mode.
func (c *collector) sampleTypes() []*profile.ValueType {
	types := []*profile.ValueType{{Type: "samples", Unit: "count"}}
	add := func(name Mode) { types = append(types, &profile.ValueType{Type: string(name), Unit: "nanoseconds"}) }
	switch c.options.Mode {
	case Wall:
		add(CPU)
		add(OffCPU)
		add(Wall)
	default:
		add(c.options.Mode)
	}
	return types
}

// addCPU adds samples for time on the processor. In mode Wall, the kernel has measured the time of each process, and the number of
// samples of each stack decides how the time is divided. In mode CPU, the time is the number of samples times the period.
func (b *builder) addCPU() {
	c := b.collector
	period := time.Duration(float64(time.Second) / c.options.Rate)
	for key, n := range c.cpu {
		took := time.Duration(n) * period
		if c.options.Mode == Wall {
			took = time.Duration(float64(key.process.on) * float64(n) / float64(key.process.samples))
		}
		b.add(key.space, key.thread, &key.labels, n, took, 0)
	}
	if c.options.Mode != Wall {
		return
	}
	for _, p := range c.processes {
		if p.samples == 0 && p.on > 0 {
			b.add(nil, nil, &labels{identity: p.fallback(), state: absent}, 0, p.on, 0)
		}
	}
}

// fallback returns the identity for time without a stack: the last known one, or only the process id.
func (p *profiledProcess) fallback() identity {
	if p.known {
		return p.identity
	}
	return identity{pid: p.serverPID}
}

// addOff adds samples for time off the processor. The kernel has measured the time of each waitKey. The time is divided among the
// stacks of the waitKey. If it has no stacks, the time is divided among the stacks that other processes had in the same wait event
// and state of the same query.
func (b *builder) addOff() {
	c := b.collector
	pools := make(map[waitKey]map[stackKey]*weight)
	for key, w := range c.off {
		key.process = nil
		if len(w.stacks) > 0 && pools[key] == nil {
			pools[key] = make(map[stackKey]*weight)
		}
		if len(w.stacks) > 0 {
			maps.Copy(pools[key], w.stacks)
		}
	}
	for part := range numParts { // the part of the sleep first: there may be no room for a second sample of a stack
		for key, w := range c.off {
			alike := key
			alike.process = nil
			if w.took[partSleeping]+w.took[partRunnable] > 0 && (w.took[part] > 0 || len(w.stacks) > 0) {
				b.addPart(key, w, part, pools[alike])
			}
		}
	}
}

// addPart adds one part of a waitKey's time: the time asleep, or the time of waiting for a processor. pool has the stacks of all
// processes with an equal wait event, state and query.
func (b *builder) addPart(key waitKey, w *waitTime, part int, pool map[stackKey]*weight) {
	l := labels{
		identity: key.process.fallback(), query: key.query, event: key.event, state: key.state, offCPU: offCPULabels[part],
	}
	stacks, own, took := w.stacks, true, w.took[part]
	if len(stacks) == 0 && key.query != 0 {
		stacks, own = pool, false
	}
	switch {
	case len(stacks) == 0:
		b.add(nil, nil, &l, 0, 0, took)
	case len(b.profile.Sample)+len(stacks) > maxSamples && (!own || part == partRunnable):
		n := 0
		if own {
			for _, w := range stacks {
				n += w.samples[part]
			}
			b.collector.summary.Joined += n
		}
		if n > 0 || took > 0 {
			b.add(b.collector.base, capture.TooManyStacks, &l, n, 0, took)
		}
	default:
		b.distribute(part, took, stacks, own, l)
	}
}

// distribute divides the time in the parameter took among stacks, and adds a sample for each. If own is set, a sample has the
// labels of its stack. Otherwise all samples have the labels l.
func (b *builder) distribute(part int, took time.Duration, stacks map[stackKey]*weight, own bool, l labels) {
	share := sharing(part, stacks)
	var sum float64
	for _, w := range stacks {
		sum += share(w)
	}
	for stack, w := range stacks {
		n := 0
		if own {
			n, l = w.samples[part], stack.labels
			l.offCPU = offCPULabels[part]
		}
		of := time.Duration(share(w) / sum * float64(took))
		if n > 0 || of > 0 {
			b.add(stack.space, stack.thread, &l, n, 0, of)
		}
	}
}

// sharing returns the figure in whose proportion the time of a part is divided among stacks: their time of this part, their time of
// both parts, or their number of samples. It returns the first of these figures that is not zero for all stacks, else a constant.
func sharing(part int, stacks map[stackKey]*weight) func(*weight) float64 {
	shares := []func(*weight) float64{
		func(w *weight) float64 { return w.time[part] },
		func(w *weight) float64 { return w.time[partSleeping] + w.time[partRunnable] },
		func(w *weight) float64 { return float64(w.samples[partSleeping] + w.samples[partRunnable]) },
	}
	for _, share := range shares {
		for _, w := range stacks {
			if share(w) > 0 {
				return share
			}
		}
	}
	return func(*weight) float64 { return 1 }
}

// add adds a sample with n stacks and its times on and off the processor, if it passes the filter. If th is nil, no stack was
// taken.
func (b *builder) add(space *capture.StackSpace, th *backtrace.Thread, l *labels, n int, on, off time.Duration) {
	c := b.collector
	if !c.passes(l) {
		return
	}
	key := *l
	key.phrase = b.phrase(th, l)
	named := b.labels[key]
	if named == nil {
		named = c.named(&key)
		b.labels[key] = named
	}
	s := &profile.Sample{Label: named, Value: []int64{int64(n)}}
	switch c.options.Mode {
	case CPU:
		s.Value = append(s.Value, on.Nanoseconds())
	case OffCPU:
		s.Value = append(s.Value, off.Nanoseconds())
	case Wall:
		s.Value = append(s.Value, on.Nanoseconds(), off.Nanoseconds(), (on + off).Nanoseconds())
	}
	if th == nil {
		s.Location = []*profile.Location{b.special(noStack)}
		c.summary.WithoutStack += on + off
	} else {
		s.Location = b.stack(space, th)
	}
	c.summary.Samples += n
	c.summary.Time += on + off
	b.profile.Sample = append(b.profile.Sample, s)
}

// phrase returns the phrase for what a process with this stack and these labels does; empty: there is none.
func (b *builder) phrase(th *backtrace.Thread, l *labels) string {
	if th == nil {
		return ""
	}
	key := phraseKey{th, l.event, l.backendType}
	text, ok := b.phrases[key]
	if !ok {
		var wait backtrace.Wait
		server := b.collector.server
		if l.event != 0 {
			wait.Class, wait.Event, _ = server.waits.Names.Name(l.event)
		}
		text = render.PlainPhrase(th.Frames, wait, l.backendType, server.waits.Cluster.Version)
		b.phrases[key] = text
	}
	return text
}

// stack returns the locations of a stack, innermost first.
func (b *builder) stack(space *capture.StackSpace, th *backtrace.Thread) []*profile.Location {
	if list := b.whole[th]; list != nil {
		return list
	}
	var list []*profile.Location
	for frames := th.Frames; len(frames) > 0; {
		n := 1
		for n < len(frames) && frames[n-1].Inlined { // the function that contains the inlined call is the next frame
			n++
		}
		for i := range frames[n-1].Levels {
			if l := &frames[n-1].Levels[i]; l.Function != "" {
				list = append(list, b.level(l))
			}
		}
		list = append(list, b.location(space, frames[:n]))
		frames = frames[n:]
	}
	switch {
	case len(list) == 0:
		list = append(list, b.special("["+th.Stop+"]"))
	case !th.Whole:
		list = append(list, b.special("..."))
	}
	b.whole[th] = list
	return list
}

// location returns the location of the last frame in frames. The frames before it are calls that are inlined there.
func (b *builder) location(space *capture.StackSpace, frames []backtrace.Frame) *profile.Location {
	outer := &frames[len(frames)-1]
	loc := &profile.Location{Address: outer.Address, Mapping: b.mapping(space, outer)}
	key := locationKey{mapping: loc.Mapping, address: outer.Address}
	for i := range frames {
		f := &frames[i]
		key.lines += fmt.Sprintf("%s\x00%s\x00%d\x00", f.Name(), f.File, f.Line)
	}
	if known := b.locations[key]; known != nil {
		return known
	}
	for i := range frames {
		f := &frames[i]
		loc.Line = append(loc.Line, profile.Line{Function: b.function(f.Label(), f.File), Line: int64(f.Line)})
	}
	loc.ID = uint64(len(b.profile.Location) + 1)
	b.profile.Location = append(b.profile.Location, loc)
	b.locations[key] = loc
	return loc
}

// level returns the location of a function in a procedural language.
func (b *builder) level(l *backtrace.Level) *profile.Location {
	name := string(l.Kind) + ":" + l.Function
	key := locationKey{lines: fmt.Sprintf("%s\x00%d", name, l.Line)}
	loc := b.locations[key]
	if loc == nil {
		loc = b.newLocation(key)
		loc.Line = []profile.Line{{Function: b.function(name, ""), Line: int64(l.Line)}}
	}
	return loc
}

// newLocation adds a location without an address.
func (b *builder) newLocation(key locationKey) *profile.Location {
	loc := &profile.Location{ID: uint64(len(b.profile.Location) + 1)}
	b.profile.Location = append(b.profile.Location, loc)
	b.locations[key] = loc
	return loc
}

// special returns the location of a frame that is not code, such as noStack.
func (b *builder) special(name string) *profile.Location {
	key := locationKey{lines: name}
	loc := b.locations[key]
	if loc == nil {
		loc = b.newLocation(key)
		loc.Line = []profile.Line{{Function: b.function(name, "")}}
	}
	return loc
}

func (b *builder) function(name, file string) *profile.Function {
	key := functionKey{name, file}
	f := b.functions[key]
	if f == nil {
		f = &profile.Function{
			ID: uint64(len(b.profile.Function) + 1), Name: name, SystemName: name, Filename: file,
		}
		b.functions[key] = f
		b.profile.Function = append(b.profile.Function, f)
	}
	return f
}

// mapping returns the mapping that contains a frame's address; nil if there is none.
func (b *builder) mapping(space *capture.StackSpace, f *backtrace.Frame) *profile.Mapping {
	at := f.Address
	i, ok := slices.BinarySearchFunc(space.Maps, at, func(m process.Mapping, at uint64) int {
		switch {
		case at < m.Start:
			return 1
		case at >= m.End:
			return -1
		}
		return 0
	})
	if !ok {
		return nil
	}
	m := space.Maps[i]
	known := b.mappings[m]
	if known == nil {
		known = &profile.Mapping{
			ID: uint64(len(b.profile.Mapping) + 1), Start: m.Start, Limit: m.End, Offset: m.Offset, File: m.Path,
			HasFunctions: true,
		}
		if known.File == "" {
			known.File = path.Base(f.Module)
		}
		b.mappings[m] = known
		b.profile.Mapping = append(b.profile.Mapping, known)
	}
	if known.BuildID == "" {
		known.BuildID = f.BuildID
	}
	if f.File != "" {
		known.HasFilenames, known.HasLineNumbers = true, true
	}
	known.HasInlineFrames = known.HasInlineFrames || f.Inlined
	return known
}
