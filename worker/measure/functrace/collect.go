package functrace

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/units"
)

// Event is a hit (a call of a traced function, or a pass of a static probe) with a stack or arguments.
type Event struct {
	Traced *Traced
	PID    int
	TID    int
	UID    int
	// At is the time of the hit, of CLOCK_MONOTONIC in ns.
	At uint64
	// Thread is the stack; nil with Options.CountOnly.
	Thread *backtrace.Thread
	// Arguments are texts such as arg1=3 and arg2="x"; empty without Options.Arguments.
	Arguments []string
}

// Result is the result of a trace.
type Result struct {
	Took      time.Duration
	Functions []FunctionResult
	// Notes are remarks, such as that probes were removed.
	Notes []string
	// Removed are the notes on probes that were removed because they cost too much. Figures of such a function are of the
	// time before the removal.
	Removed []string
}

// FunctionResult is the result for one function.
type FunctionResult struct {
	Traced

	// Processes are the processes with hits, the one with most hits first.
	Processes []ProcessResult
	// Latency has the durations of calls; nil without Options.Calls.
	Latency *probe.Latency
	// Stacks are the different stacks, the most frequent first.
	Stacks []StackResult
	// Unread is the number of hits whose stack could not be unwound, because the process ended before its mappings were read.
	Unread uint64
}

// Total adds up the figures of all processes.
func (f *FunctionResult) Total() (sum probe.Figures) {
	for i := range f.Processes {
		sum.Add(f.Processes[i].Figures)
	}
	return sum
}

// ProcessResult has the figures of a function in a process. A result with PID 0 stands for all processes for which there was
// no room.
type ProcessResult struct {
	probe.Figures

	PID   int
	Title string
}

// StackResult is a stack, and the number of a process's hits with this stack and these arguments. Thread is nil without a stack.
type StackResult struct {
	PID       int
	Title     string
	Thread    *backtrace.Thread
	Arguments string
	Count     uint64
}

// stackKey identifies the hits that are counted together. group is the index of the function in Tracer.traced.
type stackKey struct {
	group     int
	process   probe.Process
	thread    *backtrace.Thread
	arguments string
}

// maxKeys bounds the number of stackKeys. Beyond it, a hit with a new key is counted under its key without arguments, if that
// key exists. Otherwise the hit is missing in the list of stacks.
const maxKeys = 100_000

// collector counts hits.
type collector struct {
	tracer *Tracer
	counts map[stackKey]uint64
	titles map[probe.Process]string
	unread []uint64 // see FunctionResult.Unread
	left   uint64   // number of hits that are missing in counts
	notes  []string
	// removed are some of the notes: see Result.Removed.
	removed []string
	// stacks is the number of unwound stacks, and generated the number of stacks that end in code compiled at run time.
	stacks, generated int
	looked            time.Time // of the last tick that did its work
}

func newCollector(t *Tracer) *collector {
	return &collector{
		tracer: t, counts: make(map[stackKey]uint64), titles: make(map[probe.Process]string),
		unread: make([]uint64, len(t.traced)),
	}
}

// title returns the title of a process. It reads the title at the first hit, since the process may end later.
func (c *collector) title(p probe.Process) string {
	text, known := c.titles[p]
	if !known && c.tracer.options.Title != nil && p.PID != 0 && len(c.titles) < maxKeys {
		text = c.tracer.options.Title(p.PID)
		c.titles[p] = text
	}
	return text
}

// verifyRights returns an error if the postmaster or a process in Options.PIDs has executed a program with rights other than
// Options.Rights.
func (c *collector) verifyRights() error {
	o := &c.tracer.options
	if o.Rights == nil {
		return nil
	}
	for _, pid := range append([]int{o.Postmaster}, o.PIDs...) {
		if pid == 0 {
			continue
		}
		if err := o.Rights.Verify(pid); err != nil && !errors.Is(err, process.ErrExited) {
			return err
		}
	}
	return nil
}

// tick verifies the rights of the processes, at most every 100 ms. With Options.CountOnly it also reads the titles of new
// processes; otherwise the method take reads them.
func (c *collector) tick() error {
	const pause = 100 * time.Millisecond
	if time.Since(c.looked) < pause {
		return nil
	}
	c.looked = time.Now()
	if err := c.verifyRights(); err != nil || !c.tracer.options.CountOnly {
		return err
	}
	figures, err := c.tracer.session.Figures()
	for key := range figures {
		c.title(key.Process)
	}
	return err
}

// take counts the hit h. If the callback each is not nil, take passes it an Event that describes the hit, and returns the
// callback's error. A hit without a readable stack counts as unread, and is not passed to each.
func (c *collector) take(h *probe.Hit, each func(*Event) error) error {
	t := c.tracer
	group := t.points[h.Probe].Group
	traced := &t.traced[group]
	c.title(h.Process)
	key := stackKey{group: group, process: h.Process}
	e := Event{Traced: traced, PID: h.Process.PID, TID: h.TID, UID: h.UID, At: h.At}
	if !t.options.CountOnly {
		stack := t.stacks.of(h)
		if stack == nil {
			c.unread[group]++
			return nil
		}
		key.thread, e.Thread = stack, stack
		if c.stacks++; stack.Generated {
			c.generated++
		}
	}
	if len(traced.arguments) > 0 {
		e.Arguments = format(traced.arguments, h.Arguments[:], h.Unreadable, h.Strings)
		key.arguments = strings.Join(e.Arguments, " ")
	}
	if each != nil {
		if err := each(&e); err != nil {
			return err
		}
	}
	if _, known := c.counts[key]; !known && c.full() {
		key.arguments = ""
		if _, known := c.counts[key]; !known {
			c.left++
			return nil
		}
	}
	c.counts[key]++
	return nil
}

// full reports whether there is no room for another stackKey.
func (c *collector) full() bool { return len(c.counts) >= maxKeys || c.tracer.stacks.shared.Full() }

func (c *collector) finish(took time.Duration) (*Result, error) {
	if err := c.verifyRights(); err != nil {
		return nil, err
	}
	t := c.tracer
	r := &Result{Took: took, Functions: make([]FunctionResult, len(t.traced)), Notes: c.notes, Removed: c.removed}
	figures, err := t.session.Figures()
	if err != nil {
		return nil, err
	}
	for i := range r.Functions {
		f := &r.Functions[i]
		f.Traced, f.Unread = t.traced[i], c.unread[i]
		if t.options.Calls {
			l, err := t.session.Latency(i)
			if err != nil {
				return nil, err
			}
			f.Latency = &l
		}
	}
	others, err := t.session.Others()
	if err != nil {
		return nil, err
	}
	for i := range r.Functions {
		if n := others[i]; n > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: not counted: %s in processes of other servers, which pay for the "+
				"probe too", t.traced[i].Name, units.Count(n, "hit")))
		}
	}
	for key, sum := range figures {
		f := &r.Functions[key.Group]
		f.Processes = append(f.Processes, ProcessResult{
			Figures: sum, PID: key.Process.PID, Title: c.title(key.Process),
		})
	}
	for key, n := range c.counts {
		f := &r.Functions[key.group]
		f.Stacks = append(f.Stacks, StackResult{
			PID: key.process.PID, Title: c.titles[key.process], Thread: key.thread, Arguments: key.arguments, Count: n,
		})
	}
	for i := range r.Functions {
		f := &r.Functions[i]
		slices.SortFunc(f.Processes, func(a, b ProcessResult) int {
			return cmp.Or(cmp.Compare(b.Hits, a.Hits), cmp.Compare(a.PID, b.PID))
		})
		slices.SortFunc(f.Stacks, func(a, b StackResult) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Arguments, b.Arguments))
		})
	}
	if note := backtrace.GeneratedNote(c.generated, c.stacks); note != "" {
		r.Notes = append(r.Notes, note)
	}
	if c.left > 0 {
		r.Notes = append(r.Notes, units.Plural(c.left,
			"too many different stacks: %d {hit is|hits are} not in the list of stacks, and {counts|count} in all other figures"))
	}
	return r, nil
}
