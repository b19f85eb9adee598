package functrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// Options are the options of a trace.
type Options struct {
	// Functions are names: FUNCTION, LIBRARY:FUNCTION or MODULE+0xADDRESS. Static are names of static probes (USDT).
	Functions, Static []string
	// PIDs are the processes to trace. Postmaster, if not 0, is traced with all its children, also later ones.
	PIDs       []int
	Postmaster int
	// Rights are the rights of the server to which PIDs or Postmaster belong. The trace fails if one of these processes
	// executes a program with other rights. Children of Postmaster with other rights are left out. nil: rights are not checked.
	Rights *process.Rights
	// Arguments are read at each hit that gets a stack. A hit that does not meet all Conditions is not counted.
	Arguments  []Argument
	Conditions []Condition
	// Calls times each call from entry to return.
	Calls bool
	// CountOnly copies no stacks.
	CountOnly bool
	// MaxOverhead is the limit of the cost, as a share of a process's processor time; 0: no limit.
	MaxOverhead float64
	// StacksPerSecond bounds the number of stacks (0: probe.DefaultStacks), and MaxFrames the frames of a stack (0:
	// unwind.DefaultMaxFrames).
	StacksPerSecond, MaxFrames int
	// Notice is called with remarks for the user while a trace runs; nil: no call.
	Notice func(string)
	// Title returns the title of a process for the report; nil: processes have no title.
	Title func(pid int) string
}

// Traced is a function or static probe that is traced.
type Traced struct {
	// Name is the name that the caller gave.
	Name string
	// Function is the name of the function in its image, Module the name of the image and Address the link-time address.
	Function, Module string
	Address          uint64
	// Static is set for a static probe. Sites is the number of probed instructions, which may be in several images. Go is set for a
	// function written in Go.
	Static bool
	Sites  int
	Go     bool
	// Stepped is set if the kernel must single-step the probed instruction at each hit. Instruction is the text of the instruction.
	Stepped     bool
	Instruction string
	// Notes are remarks on the name, such as that it is an alias.
	Notes []string

	arguments []Argument
}

// Tracer traces functions. It must be used by one goroutine at a time.
type Tracer struct {
	capturer *capture.Capturer
	options  Options
	finder   *finder
	traced   []Traced
	points   []probe.Point
	sites    []site // the site of each point
	files    map[string]*os.File
	session  *probe.Session
	stacks   *stacks
	result   *collector
}

// site is the place of a probed instruction.
type site struct {
	image symbolize.Loaded
	addr  uint64 // link-time address of the probed instruction
	// pushed is Point.Pushed of the instruction.
	pushed int64
}

// New finds the functions and chooses the instructions to probe. It attaches no probes. The error is a *FindError, or
// says that the options name no process or no function.
func New(c *capture.Capturer, o Options) (*Tracer, error) {
	pids := slices.Clone(o.PIDs)
	if o.Postmaster != 0 {
		children, _ := process.Children(o.Postmaster)
		pids = append([]int{o.Postmaster}, children...)
	}
	if len(pids) == 0 {
		return nil, errNoProcess
	}
	t := &Tracer{
		capturer: c, options: o, finder: newFinder(c, pids, o.Postmaster != 0), files: make(map[string]*os.File),
	}
	for _, name := range o.Functions {
		if err := t.addFunction(name); err != nil {
			t.Close()
			return nil, err
		}
	}
	for _, name := range o.Static {
		if err := t.addStatic(name); err != nil {
			t.Close()
			return nil, err
		}
	}
	if len(t.points) == 0 {
		return nil, errors.New("no function to trace")
	}
	return t, nil
}

// Traced returns the functions and static probes.
func (t *Tracer) Traced() []Traced { return t.traced }

// addFunction adds a function: it finds the function's places, and chooses the instruction to probe in each.
func (t *Tracer) addFunction(name string) error {
	places, err := t.finder.find(name)
	if err != nil {
		return err
	}
	group := len(t.traced)
	first := &places[0]
	traced := Traced{
		Name: name, Function: first.function.Name, Module: first.image.Name(), Address: first.function.Addr,
		Go: first.function.Go, Sites: len(places), arguments: t.options.Arguments,
	}
	for i := range places {
		p := &places[i]
		if err := t.finder.refuse(name, p, t.options.Calls); err != nil {
			return err
		}
		point, err := t.choose(p)
		if err != nil {
			return &FindError{Name: name, Reason: err.Error()}
		}
		if !point.Emulated {
			traced.Stepped, traced.Instruction = true, point.Text
		}
		golang := p.function.Go
		made := probe.Point{Emulated: point.Emulated, Group: group}
		made.Stack, made.Go = !t.options.CountOnly, golang || p.image.IsGo()
		machine := p.image.Machine()
		if made.Arguments, err = argumentPlaces(t.options.Arguments, machine, golang, point.Pushed); err == nil {
			made.Conditions, err = conditions(t.options.Conditions, machine, golang, point.Pushed)
		}
		if err != nil {
			return &FindError{Name: name, Reason: err.Error()}
		}
		if err := t.addPoint(p.image, p.function.Addr+point.Offset, 0, point.Pushed, made); err != nil {
			return &FindError{Name: name, Reason: err.Error()}
		}
	}
	traced.Notes = notes(name, first)
	t.traced = append(t.traced, traced)
	return nil
}

// notes returns remarks on the function that was found for a name.
func notes(name string, p *place) (list []string) {
	if p.function.Derived {
		list = append(list, "no symbol has this name: it follows from the code of the server")
	}
	_, function, _ := splitName(name)
	if own, ok := p.image.Contains(p.function.Addr); ok && !p.function.Derived && p.inside == 0 && own.Name != "" &&
		own.Name != p.function.Name && own.Name != function {
		list = append(list, own.Name+" is the same function")
	}
	return list
}

// choose chooses the instruction of a function to probe.
func (t *Tracer) choose(p *place) (Point, error) {
	if p.inside != 0 {
		return t.exactly(p)
	}
	size := p.function.Size
	if size == 0 {
		if own, ok := p.image.Contains(p.function.Addr); ok && own.Addr == p.function.Addr {
			size = own.Size
		}
	}
	const some = 64 // number of bytes that are read if the function's size is not known
	code, err := p.image.Code(p.function.Addr, cmp.Or(size, some))
	if err != nil {
		return Point{}, err
	}
	return ChoosePoint(p.image.Machine(), code, PointOptions{
		Go: p.function.Go, Arguments: len(t.options.Arguments)+len(t.options.Conditions) > 0, Return: t.options.Calls,
	})
}

// exactly returns the instruction that the caller has named by its address inside of a function.
func (t *Tracer) exactly(p *place) (Point, error) {
	if len(t.options.Arguments)+len(t.options.Conditions) > 0 {
		return Point{}, errors.New("arguments can be read only where a function begins")
	}
	code, err := p.image.Code(p.function.Addr, cmp.Or(p.function.Size, p.inside+16))
	if err != nil {
		return Point{}, err
	}
	return PointAt(p.image.Machine(), code, p.inside)
}

// addPoint completes the point in the parameter made with the file and the offset of its instruction, and adds it. addr is the
// instruction's link-time address in the image l. counter is the link-time address of the probe's semaphore; 0: none.
func (t *Tracer) addPoint(l symbolize.Loaded, addr, counter uint64, pushed int64, made probe.Point) error {
	offset, ok := l.Offset(addr)
	if !ok {
		return fmt.Errorf("address %#x is not in the file of %s", addr, l.Name())
	}
	if counter != 0 {
		if made.Counter, ok = l.Offset(counter); !ok {
			return fmt.Errorf("the semaphore at %#x is not in the file of %s", counter, l.Name())
		}
	}
	key := fmt.Sprintf("%p", l.Image.Image)
	file := t.files[key]
	if file == nil {
		var err error
		if file, err = l.OpenFile(); err != nil {
			return err
		}
		t.files[key] = file
	}
	made.File, made.Offset = file, offset
	t.points = append(t.points, made)
	t.sites = append(t.sites, site{image: l, addr: addr, pushed: pushed})
	return nil
}

// addStatic adds all sites of a static probe.
func (t *Tracer) addStatic(name string) error {
	group := len(t.traced)
	traced := Traced{Name: name, Function: name, Static: true, arguments: t.options.Arguments}
	var failed error
	known := make(map[string]bool)
	t.finder.each(func(l *symbolize.Loaded, _ bool) bool {
		for _, p := range staticProbes(l.Image.Image) {
			known[p.provider+":"+p.name] = true
			if !p.matches(name) {
				continue
			}
			if t.options.Calls {
				failed = &FindError{name, "a static probe has no duration", "Leave out --latency."}
				return false
			}
			if t.finder.all && isSystemWide(l) {
				failed = everyProcess(name, l)
				return false
			}
			if l.Moved(p.addr) {
				failed = movedCode(name, l)
				return false
			}
			made := probe.Point{Emulated: true, Group: group}
			made.Stack = !t.options.CountOnly
			if made.Arguments, made.Conditions, failed = t.staticArguments(name, &p, l); failed != nil {
				return false
			}
			if failed = t.addPoint(*l, p.addr, p.semaphore, -1, made); failed != nil {
				return false
			}
			traced.Module, traced.Address = l.Name(), p.addr
			traced.Sites++
		}
		return true
	})
	if failed != nil {
		return failed
	}
	if traced.Sites == 0 {
		return noStatic(name, known)
	}
	t.traced = append(t.traced, traced)
	return nil
}

// noStatic returns the error for a static probe that was not found. known has the names of the existing static probes.
func noStatic(name string, known map[string]bool) error {
	if len(known) == 0 {
		return &FindError{name, "the processes have no static probes: their builds were configured without them " +
			"(--enable-dtrace)", "Trace functions instead."}
	}
	const most = 100
	list := slices.Sorted(maps.Keys(known))
	return &FindError{name, "no static probe of that name", "Name one of: " +
		strings.Join(list[:min(most, len(list))], ", ") + "."}
}

// staticArguments returns the places of the arguments and conditions at a site of a static probe. The error is a *FindError.
func (t *Tracer) staticArguments(name string, p *staticProbe, l *symbolize.Loaded) (
	arguments []probe.Argument, conditions []probe.Condition, err error,
) {
	place := func(a Argument) (probe.Argument, error) {
		out, ok := p.argument(a, l.Machine())
		if !ok {
			return out, &FindError{name, fmt.Sprintf("its argument %d of %d cannot be read", a.Number, len(p.arguments)),
				"Choose other arguments with --args."}
		}
		return out, nil
	}
	for _, a := range t.options.Arguments {
		one, err := place(a)
		if err != nil {
			return nil, nil, err
		}
		arguments = append(arguments, one)
	}
	for _, c := range t.options.Conditions {
		one, err := place(c.Argument)
		if err != nil {
			return nil, nil, err
		}
		conditions = append(conditions, probe.Condition{
			What: one, Op: c.Op, Signed: one.Signed || c.Argument.signed(), Value: c.Value,
		})
	}
	return arguments, conditions, nil
}

// Others returns the number of processes that are not traced but run a traced program. With a Postmaster, the kernel stops every
// process that passes a probe, so these processes pay for the probes too. Others compares the programs of processes, not their
// libraries. It returns 0 without a Postmaster.
func (t *Tracer) Others() int {
	if t.options.Postmaster == 0 {
		return 0
	}
	pids, err := process.Processes()
	if err != nil {
		return 0
	}
	own := append([]int{t.options.Postmaster}, t.finder.pids...)
	n := 0
	for _, pid := range pids {
		if slices.Contains(own, pid) {
			continue
		}
		info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			continue
		}
		for _, file := range t.files {
			if mine, err := file.Stat(); err == nil && os.SameFile(info, mine) {
				n++
				break
			}
		}
	}
	return n
}

// Attach attaches the probes, and verifies that the kernel has put breakpoints into the processes. cost is the result of
// probe.Calibrate.
func (t *Tracer) Attach(cost probe.Cost) (err error) {
	o := probe.Options{
		Points: t.points, PIDs: t.options.PIDs, Postmaster: t.options.Postmaster, Calls: t.options.Calls,
		MaxOverhead: t.options.MaxOverhead, StacksPerSecond: t.options.StacksPerSecond, Cost: cost, Notice: t.notice,
	}
	t.stacks = newStacks(t.capturer, &t.options)
	for _, pid := range t.finder.pids {
		if stat, err := process.ReadStat(pid); err == nil {
			t.stacks.space(pid, stat.StartTime) // read the mappings now, because the process may end soon
		}
	}
	if t.session, err = probe.Open(o); err != nil {
		return err
	}
	return t.verify()
}

// verify returns an error if a breakpoint is missing in a process.
func (t *Tracer) verify() error {
	for i := range t.sites {
		s := &t.sites[i]
		for n, pid := range t.finder.pids {
			if n >= enough && t.options.Postmaster != 0 {
				break
			}
			for _, l := range t.finder.images(pid) {
				if l.Image.Image != s.image.Image.Image {
					continue
				}
				if err := probe.Verify(pid, l.Bias+s.addr); err != nil {
					return fmt.Errorf("%s: %w", t.traced[t.points[i].Group].Name, err)
				}
			}
		}
	}
	return nil
}

// notice adds a note to the result for a notice of the probe session, and passes the note's text to Options.Notice.
func (t *Tracer) notice(n probe.Notice) {
	share := fmt.Sprintf("the probes took %.0f %% of the processor time of process %d", 100*n.Overhead, n.PID)
	if n.Other {
		share += " of another server that runs the same file"
	}
	if n.PID == 0 {
		share = fmt.Sprintf("in processes that have ended, the probes took %.0f %% of the time of one processor",
			100*n.Overhead)
	}
	text := fmt.Sprintf("%s: one hit in %d gets a stack from now on, every hit is counted", share, n.Every)
	if n.Removed {
		text = fmt.Sprintf("%s: the probe of %s was removed", share, t.traced[n.Group].Name)
		t.result.removed = append(t.result.removed, text)
	}
	t.result.notes = append(t.result.notes, text)
	if t.options.Notice != nil {
		t.options.Notice(text)
	}
}

// Run traces until the time d after Attach has passed (0: no limit), or until ctx ends, and returns the result. The end of ctx is
// no error. It passes each hit with a stack or arguments to the callback each; nil: no call.
func (t *Tracer) Run(ctx context.Context, d time.Duration, each func(*Event) error) (*Result, error) {
	c := t.collector()
	err := t.session.Run(ctx, d, func(h *probe.Hit) error { return c.take(h, each) }, c.tick)
	if err != nil {
		return nil, err
	}
	return c.finish(t.session.Took())
}

// collector returns the collector of the hits. The first call makes it.
func (t *Tracer) collector() *collector {
	if t.result == nil {
		t.result = newCollector(t)
	}
	return t.result
}

// Close removes the probes, and closes files and descriptors.
func (t *Tracer) Close() {
	if t.session != nil {
		t.session.Close()
		t.session = nil
	}
	if t.stacks != nil {
		t.stacks.unwatch()
		t.stacks.close()
		t.stacks = nil
	}
	for _, file := range t.files {
		_ = file.Close()
	}
	clear(t.files)
}
