package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/measure/sampler"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// ProfileOptions says how processes are sampled; the zero value is the default.
type ProfileOptions struct {
	// MaxFrames bounds a stack's frames, inlined calls included; 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Interval is the time between two samples of a process, give or take a half; 0 means ptrace's default.
	Interval time.Duration
	// Duration bounds how long samples are taken, from when all is prepared; 0 is no bound. What the program is suspended
	// meanwhile (ptrace.Suspend) does not count.
	Duration time.Duration
	// Batch bounds how long a sample may wait until it is unwound; 0 means ptrace's default.
	Batch time.Duration
}

// ProfileStats has the cost of a profile.
type ProfileStats struct {
	sampler.Stats

	// Unwind and Symbolize are what it took to walk all stacks, and to name those that were different.
	Unwind, Symbolize time.Duration
}

// Profile takes samples of the targets' main threads without stopping them, until ctx or Duration ends, which is no
// error, or until all of them have ended, which is process.ErrExited. Each stack is handed to each, with how many of
// the last samples had it; an error of each ends it, too. Other errors are those of sampler.New. What a
// PostgreSQL process says of itself is not in these traces: it would have to be read at the same moment.
func (c *Capturer) Profile(
	ctx context.Context, targets []process.Target, o ProfileOptions, each func(t *backtrace.Trace, times int) error,
) (ProfileStats, error) {
	s, err := sampler.New(targets, sampler.Options{
		Interval: o.Interval, Duration: o.Duration, Batch: o.Batch, RedZone: c.arch.RedZone,
	})
	if err != nil {
		return ProfileStats{}, err
	}
	defer s.Close()
	defer c.processes.WatchGenerated()()
	p := profile{capturer: c, options: o, sampler: s, each: each, checks: make(map[int]*naming.Check)}
	defer p.close()
	p.stats.Stats, err = s.Run(ctx, p.take)
	return p.stats, err
}

// profile is one call of Profile.
type profile struct {
	capturer *Capturer
	options  ProfileOptions
	sampler  *sampler.Sampler
	each     func(*backtrace.Trace, int) error
	checks   map[int]*naming.Check // by process id
	stats    ProfileStats
	key      []byte
}

func (p *profile) close() {
	for _, check := range p.checks {
		check.Close()
	}
}

// take unwinds and names samples, and compares what it went by with the processes afterwards.
func (p *profile) take(list []sampler.Sample) error {
	slices.SortStableFunc(list, func(a, b sampler.Sample) int { return a.PID - b.PID })
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].PID == list[0].PID {
			n++
		}
		if err := p.takeOf(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// takeOf does so for samples of one process.
func (p *profile) takeOf(list []sampler.Sample) error {
	pid := list[0].PID
	check := p.checks[pid]
	if check == nil {
		opened := naming.NewCheck(pid)
		check = &opened
		p.checks[pid] = check
	}
	b, stacks := p.build(list)
	if !check.StillMappedRetry(list[0].Maps, b.used, b.mapsTrusted) {
		maps, err := p.sampler.Refresh(pid, list[0].MapsSnapshot)
		switch {
		case err == nil:
			p.capturer.processes.ForgetMaps(keyOf(list[0].Snapshot))
			_, stacks = p.build(withMaps(list, maps))
		case errors.Is(err, process.ErrUnreachable): // nothing says which code was there
			_, stacks = p.build(withMaps(list, nil))
		case !errors.Is(err, process.ErrExited): // of a process that has ended, what was known of it is what counts
			return err
		}
	}
	for i := range stacks {
		if generated(&stacks[i].trace.Threads[0]) {
			p.sampler.Hasten(generatedBatch)
		}
		if err := p.each(stacks[i].trace, stacks[i].times); err != nil {
			return err
		}
	}
	return nil
}

// generatedBatch bounds how long samples wait if a process compiles code at run time. Such code may be freed soon, and
// without it the walk ends there.
const generatedBatch = 20 * time.Millisecond

// generated reports whether a stack has frames in such code.
func generated(t *backtrace.Thread) bool {
	return t.Generated || slices.ContainsFunc(t.Frames, func(f backtrace.Frame) bool { return f.Module == naming.GeneratedModule })
}

func keyOf(snap *snapshot.Snapshot) naming.ProcessKey {
	return naming.ProcessKey{PID: snap.PID, StartTime: snap.MapsSnapshot.StartTime()}
}

// withMaps are samples with other mappings.
func withMaps(list []sampler.Sample, maps []procfs.Mapping) []sampler.Sample {
	for _, snap := range list {
		snap.Maps = maps
	}
	return list
}

// counted is a stack that some samples had.
type counted struct {
	trace *backtrace.Trace
	times int
}

// build unwinds samples of one process, and names those that differ.
func (p *profile) build(list []sampler.Sample) (b built, stacks []counted) {
	files := symbolize.Deadline{At: time.Now().Add(snapshot.DefaultDeadline), After: p.capturer.linesWait}
	defer files.Stop()
	first := list[0]
	b = built{mapsTrusted: true, space: p.capturer.processes.Open(first.PID, first.MapsSnapshot.StartTime(), first.Maps)}
	b.space.Files = &files
	b.space.ReadLater(true)
	w := p.capturer.walker(b.space, Options{MaxFrames: p.options.MaxFrames})
	defer w.close()
	known := make(map[string]int)
	for _, snap := range list {
		th := &snap.Threads[0]
		began := time.Now()
		stop := w.walk(th, nil)
		alike := stop.Whole() && th.Err == nil
		if alike {
			p.key = appendWalk(append(p.key[:0], th.State), w.frames)
			if i, ok := known[string(p.key)]; ok {
				stacks[i].times += snap.Times
				p.stats.Unwind += time.Since(began)
				continue
			}
			known[string(p.key)] = len(stacks)
		}
		ended := time.Now()
		t := &backtrace.Trace{PID: snap.PID, Engine: snap.Engine, Threads: []backtrace.Thread{w.describe(th, stop)}}
		b.record(w.frames, stop)
		stacks = append(stacks, counted{trace: t, times: snap.Times})
		p.stats.Unwind += ended.Sub(began)
		p.stats.Symbolize += time.Since(ended)
	}
	return b, stacks
}

// appendWalk appends all of a walk that its frames are named by.
func appendWalk(key []byte, frames []unwind.Frame) []byte {
	for i := range frames {
		f := &frames[i]
		var how byte
		if f.Exact {
			how |= 1
		}
		if f.Signal {
			how |= 2
		}
		key = append(binary.LittleEndian.AppendUint64(key, f.PC), how, byte(f.Method))
	}
	return key
}
