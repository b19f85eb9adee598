package allocs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// Options bound the cost, the memory and the time of a trace. The zero value is the default.
type Options struct {
	// MaxOverhead is the share of the process's processor time that the trace may cost; 0: DefaultOverhead; negative:
	// no limit.
	MaxOverhead float64
	// MaxBlocks and MaxPaths are the largest numbers of live blocks and call paths that the kernel keeps; 0:
	// DefaultBlocks and DefaultPaths.
	MaxBlocks, MaxPaths int
	// Blocks adds each live block to Result.Blocks.
	Blocks bool
	// Duration is how long the trace lasts after the functions were probed; 0: no limit.
	Duration time.Duration
}

// Defaults of Options.
const (
	DefaultOverhead = 0.5
	DefaultBlocks   = 1 << 18 // 20 MB of kernel memory
	DefaultPaths    = 1 << 16 // 6 MB
)

// burst is the cost that a trace may have beyond Options.MaxOverhead. So a burst of allocations after a quiet time does not
// end the trace.
const burst = 100 * time.Millisecond

// The least costs of one hit of a probe, without the run time of the BPF programs, which is measured. If probe.Calibrate
// measures a higher cost of a trap on this machine, that cost is used.
const (
	entryCost   = 500 * time.Nanosecond // a breakpoint at an instruction that the kernel emulates
	steppedCost = 9 * time.Microsecond  // a breakpoint at another instruction, which is executed in a single step
	returnCost  = 500 * time.Nanosecond // the probe of a return
)

// interval is how often the cost is compared with the budget and Run reports the figures.
const interval = 50 * time.Millisecond

// Stack is a stack at the first call with its call path. Number is the number of the call path. One call path can have
// several numbers.
type Stack struct {
	Number   uint64
	Snapshot *snapshot.Snapshot
}

// Progress has the figures of a trace from its start to the time when they were read.
type Progress struct {
	Elapsed  time.Duration
	Counters Counters
	// CPU is the processor time of the process since the start of the trace, Overhead the part that the trace caused
	// (estimated).
	CPU, Overhead time.Duration
}

// Share is the estimated cost as a share of the process's processor time.
func (p *Progress) Share() float64 {
	if p.CPU <= 0 {
		return 0
	}
	return min(1, float64(p.Overhead)/float64(p.CPU))
}

// Result is the result of a trace.
type Result struct {
	Progress

	// Paths are the figures of each call path, by its number. Call path 0 has the allocations without a stack, or without
	// room for their path.
	Paths map[uint64]Sums
	// Blocks are the live blocks, if Options.Blocks is set.
	Blocks []Block
	// Ended means that the process ended during the trace. Blocks that it had not freed before its end count as live.
	Ended bool
	// TooDear means that the trace ended because its cost exceeded the budget.
	TooDear bool
}

// Tracer traces one process.
type Tracer struct {
	target  Target
	options Options
	process *observe.CopiedProcess
	kernel  *programs
	clock   int32 // processor time of the process, for clock_gettime
	began   time.Time
	cpu     time.Duration // processor time at the start of the trace
	last    time.Duration // processor time when it was last read
	pages   uint64        // number of pages with code when the mappings were read
	stepped map[Kind]bool
	trap    probe.Cost // cost of traps on this machine
}

// Open attaches to a process. The error is ErrUnsupported, fs.ErrPermission, or an error of observe.Observe. The caller
// calls Close after Run.
func Open(t Target, o Options) (tr *Tracer, err error) {
	if o.MaxOverhead == 0 {
		o.MaxOverhead = DefaultOverhead
	}
	if o.MaxBlocks <= 0 {
		o.MaxBlocks = DefaultBlocks
	}
	if o.MaxPaths <= 0 {
		o.MaxPaths = DefaultPaths
	}
	if len(t.Functions) == 0 {
		return nil, fmt.Errorf("%w: no functions to probe", ErrUnsupported)
	}
	if err := bpf.ReturnProbes(t.Process.PID); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	tr = &Tracer{target: t, options: o, stepped: make(map[Kind]bool)}
	tr.trap, _ = probe.Calibrate() // an error leaves 0: the least costs apply
	// The bitwise form is the kernel's for a process's clock (CPUCLOCK_SCHED, include/linux/posix-timers.h).
	tr.clock = ^int32(t.Process.PID)<<3 | 2
	for i := range t.Functions {
		tr.stepped[t.Functions[i].Kind] = tr.stepped[t.Functions[i].Kind] || t.Functions[i].Stepped
	}
	defer func() {
		if err != nil {
			tr.Close()
			tr = nil
		}
	}()
	if tr.process, err = observe.NewCopiedProcess(t.Process); err != nil {
		return tr, err
	}
	tr.kernel, err = loadPrograms(config{
		StackEnd: tr.process.StackEnd(), LibraryStart: t.Library.Start, LibrarySize: t.Library.End - t.Library.Start,
		HasHeaders: t.HasHeaders, MaxBlocks: o.MaxBlocks, MaxPaths: o.MaxPaths,
	})
	if err != nil {
		return tr, err
	}
	return tr, tr.attach()
}

func (t *Tracer) attach() error {
	if err := t.learnCode(); err != nil {
		return err
	}
	path := fmt.Sprintf("/proc/self/fd/%d", t.target.File.Fd())
	err := t.kernel.Attach(path, t.target.Process.PID, t.target.Functions)
	t.began, t.cpu = time.Now(), t.cpuTime() // calls are counted from the end of Attach on
	if errors.Is(err, fs.ErrNotExist) && !t.process.Lives() {
		return fmt.Errorf("process %d: %w", t.target.Process.PID, process.ErrExited)
	}
	if err != nil {
		return err
	}
	return t.target.verify(t.process.Maps())
}

// learnCode gives the BPF programs the addresses at which the process has code.
func (t *Tracer) learnCode() error {
	pid := t.target.Process.PID
	before := codePages(pid)
	if err := t.process.Refresh(); err != nil {
		return err
	}
	ranges := codeRanges(t.process.Maps())
	if before == 0 || codePages(pid) != before {
		return nil // without ranges, the BPF programs take every word that can be an address for one in code
	}
	t.pages = before
	if len(ranges) > MaxRanges {
		return nil // the mappings are known, but the BPF programs have no room for the ranges
	}
	return t.kernel.SetCode(ranges, before)
}

// cpuTime returns the processor time of the process; after its end, the time that was read last.
func (t *Tracer) cpuTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(t.clock, &ts) == nil {
		t.last = time.Duration(ts.Nano())
	}
	return t.last
}

// Run traces until ctx ends, the process ends, the duration is over, or the cost exceeds the budget. None of these is an
// error. Run calls the callback take with new stacks, one call at a time. take may keep their memory. It calls the callback
// report with the figures several times a second. An error of take ends the trace, and Run returns it. When Run returns, the
// process is not probed any more.
func (t *Tracer) Run(ctx context.Context, take func([]Stack) error, report func(*Progress)) (*Result, error) {
	// Naming the first stacks can take a second. During this time, run fetches further stacks, gives the kernel new
	// ranges of code, and compares the cost with the budget.
	const waiting = 16
	stacks, failed := make(chan []Stack, waiting), make(chan error, 1)
	var taking sync.WaitGroup
	taking.Go(func() {
		var err error
		for list := range stacks {
			if err == nil {
				err = take(list)
			}
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		}
	})
	q := &queue{to: stacks}
	r, err := t.run(ctx, q, failed, report)
	elapsed, cpu := time.Since(t.began), t.cpuTime()-t.cpu // calls are not counted from the beginning of Detach on
	t.kernel.Detach()
	if err == nil {
		if r.Ended {
			elapsed = r.Elapsed
		}
		err = t.finish(q, r)
	}
	if err == nil {
		r.Elapsed, r.CPU = elapsed, cpu
	}
	close(stacks)
	taking.Wait()
	select {
	case takeErr := <-failed:
		err = errors.Join(err, takeErr)
	default:
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// run fetches stacks and figures until the trace ends.
func (t *Tracer) run(ctx context.Context, q *queue, failed <-chan error, report func(*Progress)) (*Result, error) {
	r := &Result{}
	end := t.began.Add(t.options.Duration)
	over := func() bool { return ctx.Err() != nil || t.options.Duration > 0 && !time.Now().Before(end) }
	for {
		next := time.Now().Add(interval)
		if t.options.Duration > 0 && end.Before(next) {
			next = end
		}
		for ctx.Err() == nil && time.Now().Before(next) {
			q.send()
			if q.full() {
				q.wait(ctx, next)
				continue
			}
			list, err := t.fetch(next)
			if err != nil {
				return nil, err
			}
			if len(list) > 0 {
				q.add(list)
			}
		}
		p, err := t.progress()
		if err != nil {
			return nil, err
		}
		r.Progress = p
		report(&p)
		if err := t.kernel.CheckThreads(t.target.Process.PID); err != nil {
			return nil, err
		}
		select {
		case err := <-failed:
			return nil, err
		default:
		}
		switch {
		case !t.process.Lives():
			r.Ended = true
		case t.tooDear(&p):
			r.TooDear = true
		case !over():
			continue
		}
		return r, nil
	}
}

// finish reads the last stacks and the sums, after the programs were detached.
func (t *Tracer) finish(q *queue, r *Result) (err error) {
	for {
		q.finish()
		list, err := t.fetch(time.Now())
		if err != nil {
			return err
		}
		if len(list) == 0 {
			break
		}
		q.add(list)
	}
	if r.Progress, err = t.progress(); err != nil {
		return err
	}
	if r.Paths, err = t.kernel.Sums(); err != nil || !t.options.Blocks {
		return err
	}
	r.Blocks, err = t.kernel.Blocks()
	return err
}

// batch is the largest number of stacks in a batch.
const batch = 256

// fetch returns new stacks. It waits for the first one, up to a deadline.
func (t *Tracer) fetch(deadline time.Time) (stacks []Stack, err error) {
	for len(stacks) < batch {
		s, ok := t.kernel.Stack(deadline)
		if !ok {
			break
		}
		deadline = time.Now()
		if s.CodePages != t.pages || len(stacks) == 0 {
			// After the end of the process, learnCode fails. Then the mappings that were read before are used.
			if err := t.learnCode(); err != nil && !errors.Is(err, process.ErrExited) && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
		}
		r := &s.Registers
		stacks = append(stacks, Stack{s.Number, t.process.Snapshot(&observe.CopiedStack{
			TID: s.TID, IP: r.IP, SP: r.SP, BP: r.BP, BX: r.BX, R12: r.R12, R13: r.R13, R14: r.R14, R15: r.R15,
			Data: append([]byte(nil), s.Data...), Cut: s.Cut,
		})})
	}
	return stacks, nil
}

// progress reads the present figures of the trace.
func (t *Tracer) progress() (p Progress, err error) {
	p.Elapsed, p.CPU = time.Since(t.began), t.cpuTime()-t.cpu
	if p.Counters, err = t.kernel.Counters(); err != nil {
		return p, err
	}
	p.Overhead = t.cost(&p.Counters)
	return p, nil
}

// cost estimates how much processor time the trace has cost the process.
func (t *Tracer) cost(c *Counters) time.Duration {
	cost := time.Duration(c.Time)
	for kind, hits := range c.Hits {
		each := max(entryCost, t.trap.Emulated)
		if t.stepped[Kind(kind)] {
			each = max(steppedCost, t.trap.Stepped)
		}
		if Kind(kind).Returns() {
			each += returnCost
		}
		cost += each * time.Duration(hits)
	}
	return cost
}

func (t *Tracer) tooDear(p *Progress) bool {
	if t.options.MaxOverhead < 0 {
		return false
	}
	return p.Overhead > burst+time.Duration(t.options.MaxOverhead*float64(p.CPU))
}

// Close detaches and frees everything.
func (t *Tracer) Close() {
	if t.kernel != nil {
		t.kernel.Close()
	}
	if t.process != nil {
		t.process.Release()
	}
	t.kernel, t.process = nil, nil
}
