package capture

import (
	"context"
	"errors"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/worker/trace"
)

// ProfileOptions says how processes are sampled; the zero value is the default.
type ProfileOptions struct {
	// MaxFrames bounds a stack's frames, inlined calls included; 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Interval is the time between two samples of a process, give or take a half; 0 means ptrace's default.
	Interval time.Duration
	// Batch bounds how long a sample may wait until it is unwound; 0 means ptrace's default.
	Batch time.Duration
}

// Profile takes samples of the targets' main threads without stopping them, until ctx ends, which is no error, or until
// all of them have ended, which is ptrace.ErrExited. Each sample is handed to each, whose error ends it too. Other
// errors are those of ptrace.NewSampler. What a PostgreSQL process says of itself is not in these traces: it would have
// to be read at the same moment.
func (c *Capturer) Profile(
	ctx context.Context, targets []ptrace.Target, o ProfileOptions, each func(*trace.Trace) error,
) (ptrace.SamplerStats, error) {
	s, err := ptrace.NewSampler(targets, ptrace.SamplerOptions{
		Interval: o.Interval, Batch: o.Batch, RedZone: c.arch.RedZone,
	})
	if err != nil {
		return ptrace.SamplerStats{}, err
	}
	defer s.Close()
	p := profile{capturer: c, options: o, sampler: s, each: each, checks: make(map[int]*check)}
	defer p.close()
	return s.Run(ctx, p.take)
}

// profile is one call of Profile.
type profile struct {
	capturer *Capturer
	options  ProfileOptions
	sampler  *ptrace.Sampler
	each     func(*trace.Trace) error
	checks   map[int]*check // by process id
}

func (p *profile) close() {
	for _, check := range p.checks {
		check.close()
	}
}

// take unwinds and names samples, and compares what it went by with the processes afterwards.
func (p *profile) take(list []*ptrace.Snapshot) error {
	slices.SortStableFunc(list, func(a, b *ptrace.Snapshot) int { return a.PID - b.PID })
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
func (p *profile) takeOf(list []*ptrace.Snapshot) error {
	pid := list[0].PID
	process := p.checks[pid]
	if process == nil {
		opened := newCheck(pid)
		process = &opened
		p.checks[pid] = process
	}
	results := p.build(list)
	all := built{settled: true}
	for i := range results {
		all.settled = all.settled && results[i].settled
		for _, u := range results[i].used {
			if at, known := slices.BinarySearchFunc(all.used, u, byMapping); !known {
				all.used = slices.Insert(all.used, at, u)
			}
		}
	}
	if !process.stillSound(list[0].Maps, &all) {
		maps, err := p.sampler.Refresh(pid)
		switch {
		case err == nil:
			p.capturer.spaces.forget(keyOf(list[0]))
			results = p.build(withMaps(list, maps))
		case !errors.Is(err, ptrace.ErrExited): // of a process that has ended, what was known of it is what counts
			return err
		}
	}
	for i := range results {
		if err := p.each(results[i].trace); err != nil {
			return err
		}
	}
	return nil
}

// stillSound tells whether what walks went by still is as it was, for all that can be asked. Of a process that has just
// ended nothing can.
func (c *check) stillSound(maps []procfs.Mapping, b *built) bool {
	if c.file == nil {
		return false
	}
	ok, err := c.sound(maps, b)
	return ok || err != nil
}

func keyOf(snap *ptrace.Snapshot) processKey { return processKey{snap.PID, snap.Layout.StartTime()} }

// withMaps are samples with other mappings.
func withMaps(list []*ptrace.Snapshot, maps []procfs.Mapping) []*ptrace.Snapshot {
	for _, snap := range list {
		snap.Maps = maps
	}
	return list
}

// build unwinds and names samples of one process.
func (p *profile) build(list []*ptrace.Snapshot) []built {
	began := time.Now()
	files := deadline{at: began.Add(defaultDeadline), after: p.capturer.linesWait}
	defer files.stop()
	results := make([]built, len(list))
	for i, snap := range list {
		space := p.capturer.spaces.open(snap.PID, snap.Layout.StartTime(), snap.Maps)
		space.files, space.generated.off = &files, true
		results[i] = p.capturer.build(snap, space, Options{MaxFrames: p.options.MaxFrames}, &serverProcess{})
		results[i].trace.Total = time.Since(began)
		began = time.Now()
	}
	return results
}
