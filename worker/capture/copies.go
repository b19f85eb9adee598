package capture

import (
	"errors"
	"fmt"
	"time"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/procmap"
	"pg_stat_backtrace/worker/symbolize"
	"pg_stat_backtrace/worker/trace"
)

// Copy is a copy of a thread's registers, and of its stack from the stack pointer on.
type Copy struct {
	// PID is the process, and StartTime when it started, in ticks as in procfs.Stat.
	PID       int
	StartTime uint64
	// Thread has at least Registers and Stack.
	Thread snapshot.Thread
}

// CopiesOptions configures how copies are unwound. The zero value is the default.
type CopiesOptions struct {
	// MaxFrames bounds a stack's frames, inlined calls included; 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Parent is the process from which the others were forked. If a process ends before its mappings are read, its
	// stacks are unwound with Parent's mappings. That works because both have the shared images at the same
	// addresses. 0 means that there is none.
	Parent int
}

// Copies unwinds and names copies of stacks. It is for one goroutine.
type Copies struct {
	capturer  *Capturer
	options   CopiesOptions
	processes map[procmap.ProcessKey]*copied
	key       []byte
}

// copied is one process.
type copied struct {
	pid       int // the process whose memory is read
	startTime uint64
	maps      []procfs.Mapping
	check     procmap.Check
	stacks    map[string]*trace.Trace
	inherited bool // maps are those of the parent
}

// maxCopied bounds the processes in the cache, and maxStacks the different stacks of each.
const (
	maxCopied = 4096
	maxStacks = 16384
)

// ErrNoMappings means that a process ended before its mappings could be read.
var ErrNoMappings = errors.New("ended before its mappings were read")

// NewCopies returns an empty set of processes.
func (c *Capturer) NewCopies(o CopiesOptions) *Copies {
	return &Copies{capturer: c, options: o, processes: make(map[procmap.ProcessKey]*copied)}
}

// Close drops all processes.
func (c *Copies) Close() {
	for _, p := range c.processes {
		p.check.Close()
	}
	clear(c.processes)
}

// Meet reads the mappings of a process if that has not been done. Call it early, because a process may end.
func (c *Copies) Meet(pid int, startTime uint64) error {
	_, err := c.process(pid, startTime)
	return err
}

// Trace unwinds and names a copy. Equal stacks of a process give the same trace, and callers must not change it. The
// error is ErrNoMappings.
func (c *Copies) Trace(of *Copy) (*trace.Trace, error) {
	p, err := c.process(of.PID, of.StartTime)
	if err != nil {
		return nil, err
	}
	t, b := c.build(p, of)
	if b == nil || p.inherited || p.stillMapped(b) {
		return t, nil
	}
	// The process has other mappings than before: it has loaded a library since.
	maps, err := procfs.Maps(of.PID)
	if err != nil {
		return t, nil //nolint:nilerr // it has ended: what was known of it is what counts
	}
	c.capturer.processes.ForgetMaps(procmap.ProcessKey{PID: p.pid, StartTime: p.startTime})
	p.maps = maps
	clear(p.stacks)
	t, _ = c.build(p, of)
	return t, nil
}

// process returns the state of a process. The first call reads its mappings.
func (c *Copies) process(pid int, startTime uint64) (*copied, error) {
	key := procmap.ProcessKey{PID: pid, StartTime: startTime}
	if p := c.processes[key]; p != nil {
		return p, nil
	}
	if len(c.processes) >= maxCopied {
		for k, p := range c.processes {
			p.check.Close()
			delete(c.processes, k)
			break
		}
	}
	p := &copied{pid: pid, startTime: startTime, stacks: make(map[string]*trace.Trace)}
	p.check = procmap.NewCheck(pid)
	maps, err := procfs.Maps(pid)
	if stat, e := procfs.ReadStat(pid); err != nil || e != nil || stat.StartTime != startTime || len(maps) == 0 {
		p.check.Close()
		if err := p.inherit(c.options.Parent); err != nil {
			return nil, fmt.Errorf("process %d %w", pid, ErrNoMappings)
		}
	} else {
		p.maps = maps
	}
	c.processes[key] = p
	return p, nil
}

// inherit uses the mappings of the parent.
func (p *copied) inherit(parent int) error {
	if parent == 0 {
		return ErrNoMappings
	}
	stat, err := procfs.ReadStat(parent)
	if err != nil {
		return fmt.Errorf("process %d: %w", parent, err)
	}
	maps, err := procfs.Maps(parent)
	if err != nil {
		return fmt.Errorf("process %d: %w", parent, err)
	}
	p.pid, p.startTime, p.maps, p.inherited = parent, stat.StartTime, maps, true
	p.check = procmap.Check{PID: parent}
	return nil
}

// stillMapped reports whether the mappings that were used for a stack are unchanged, as far as that can be checked.
func (p *copied) stillMapped(b *built) bool {
	return p.check.File == nil || p.check.StillMappedRetry(p.maps, b.used, b.mapsTrusted)
}

// build unwinds and names a copy. For a stack that is known already, the second result is nil.
func (c *Copies) build(p *copied, of *Copy) (*trace.Trace, *built) {
	files := symbolize.Deadline{At: time.Now().Add(defaultDeadline), After: c.capturer.linesWait}
	defer files.Stop()
	b := &built{mapsTrusted: true, space: c.capturer.processes.Open(p.pid, p.startTime, p.maps)}
	b.space.Files, b.space.Generated.Disabled = &files, true
	w := c.capturer.walker(b.space, Options{MaxFrames: c.options.MaxFrames})
	defer w.close()
	th := &of.Thread
	stop := w.walk(th, nil)
	c.key = appendWalk(append(c.key[:0], stop.String()...), w.frames)
	if known := p.stacks[string(c.key)]; known != nil {
		return known, nil
	}
	t := &trace.Trace{PID: of.PID, Threads: []trace.Thread{w.describe(th, stop)}}
	b.record(w.frames, stop)
	if len(p.stacks) >= maxStacks {
		clear(p.stacks)
	}
	p.stacks[string(c.key)] = t
	return t, b
}

// ProcessStarted converts a time since boot in ns, as the kernel has it, to procfs.Stat.StartTime.
func ProcessStarted(sinceBoot uint64) uint64 {
	const tick = 10_000_000 // ns: USER_HZ is 100 on all supported architectures
	return sinceBoot / tick
}

// Loaded returns the executable images of a process, the program first.
func (c *Capturer) Loaded(pid int) ([]symbolize.Loaded, error) { return c.images.Loaded(pid) }
