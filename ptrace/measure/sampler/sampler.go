package sampler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/ptrace/thread"
)

// EngineSampled is Snapshot.Engine of a Sampler's: the main thread was interrupted, slept or waited for a processor.
const EngineSampled = "sampled"

// Options of a sampler; the zero value is the default.
type Options struct {
	Interval time.Duration // between two samples of a process, give or take a half; 0: 10 ms; 200 µs at the least
	Duration time.Duration // for how long samples are taken; 0: no bound
	MaxStack int           // bytes of stack at most; 0 and more than that: 256 KiB
	RedZone  int           // as in Options
	Batch    time.Duration // how long samples may wait to be handed on; 0: 2 s
}

// Bounds of Options.
const (
	defaultInterval = 10 * time.Millisecond
	leastInterval   = 200 * time.Microsecond
	// With each batch Go's monitor is awake for a while, and what unwinds has left the caches.
	defaultBatch = 2 * time.Second
)

// Sampler takes samples of processes' main threads at a steady rate, without stopping them: see package samplerbpf, and
// samplerThread for how. A capture at each of those moments would cost the processes, and whoever shares the machine
// with them, several times as much: a stop and its end are four switches of threads, often between two processors.
type Sampler struct {
	options Options
	kernel  *kernel
	threads []*samplerThread
	batches chan samples
	spare   chan []byte // memory for stacks that nobody has
	quit    uint32      // set when the threads are to end
	batch   atomic.Int64

	mu      sync.Mutex
	targets []*sampled
	began   time.Time     // when Run did
	rests   time.Time     // since when it rests; zero: it does not
	rested  time.Duration // in all, before that
}

// sampled is one of the processes.
type sampled struct {
	target  process.Target
	layout  *snapshot.MapsSnapshot
	held    *process.Handle
	ended   bool
	started uint64 // as samplerbpf.Sample.Started; 0: not seen yet
}

// Sample is a snapshot of one thread, and at how many moments since the last one it was as it is there.
type Sample struct {
	*snapshot.Snapshot

	Times int
}

// samples are the samples that one thread sends at a time.
type samples struct {
	list   []Sample
	stacks []byte // of all of them
	missed int
	err    error
}

// Stats is how long a sampler was at work, and how often it came to nothing.
type Stats struct {
	// Took is the time from the start of its threads to the end of the last one, but for what it was suspended.
	Took time.Duration
	// Missed counts looks that found a thread and did not sample it: it began to run, was returning from a signal, or
	// there was no room for its stack.
	Missed int
	// Unseen is on how many processors this program may not run: who was there was not sampled.
	Unseen int
}

// New prepares to sample up to samplerbpf.MaxTargets processes. It ignores processes that have ended. The error
// is ErrExited if all have. The other errors are those of package samplerbpf, and Observe's.
func New(targets []process.Target, o Options) (*Sampler, error) {
	if len(targets) == 0 || len(targets) > MaxTargets {
		return nil, fmt.Errorf("%d processes: a sampler takes 1 to %d", len(targets), MaxTargets)
	}
	s := &Sampler{options: o.withDefaults()}
	s.batch.Store(int64(s.options.Batch))
	err := s.hold(targets)
	if err == nil {
		err = s.load()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	const waiting = 2 // batches of each thread that the caller may be behind with
	s.batches, s.spare = make(chan samples, waiting*len(s.threads)), make(chan []byte, len(s.threads))
	return s, nil
}

// hold looks at the processes for the first time.
func (s *Sampler) hold(targets []process.Target) error {
	for i, t := range targets {
		p, err := newSampled(t)
		if errors.Is(err, process.ErrExited) && (len(s.targets) > 0 || i < len(targets)-1) {
			continue
		}
		if err != nil {
			return err
		}
		s.targets = append(s.targets, p)
	}
	return nil
}

// load prepares a thread for each processor.
func (s *Sampler) load() error {
	set, err := allowedCPUs()
	if err != nil {
		return err
	}
	processors := make([]int, 0, set.Count())
	for number := 0; len(processors) < set.Count(); number++ {
		if set.IsSet(number) {
			processors = append(processors, number)
		}
	}
	if s.kernel, err = loadKernel(processors); err != nil {
		return err
	}
	for i, number := range processors {
		t := &samplerThread{sampler: s, number: number, processor: s.kernel.Processors[i], call: -1}
		s.threads = append(s.threads, t)
		if t.call, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return process.Failed(unix.Getpid(), "eventfd", err)
		}
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	o.Interval = max(o.Interval, leastInterval)
	if o.Batch <= 0 {
		o.Batch = defaultBatch
	}
	if o.MaxStack <= 0 || o.MaxStack > MaxStack {
		o.MaxStack = MaxStack
	}
	o.RedZone = snapshot.Options{RedZone: o.RedZone}.WithDefaults().RedZone
	return o
}

// newSampled looks at a process for the first time.
func newSampled(t process.Target) (*sampled, error) {
	if err := process.CheckPID(t.PID); err != nil {
		return nil, err
	}
	held, err := process.Hold(t.PID)
	if err != nil {
		return nil, err
	}
	p := &sampled{target: t, held: held}
	stat, err := process.ReadTarget(t.PID)
	if err == nil {
		err = t.Identify(&stat)
	}
	if err == nil {
		err = p.refresh()
	}
	if err != nil {
		held.Release()
		return nil, err
	}
	return p, nil
}

// refresh reads the mappings.
func (p *sampled) refresh() error {
	layout, err := readMaps(p.target.PID)
	if err == nil {
		p.layout = layout
	}
	return err
}

// readMaps reads the mappings of a process, with a timeout. The error is also process.ErrUnreachable.
func readMaps(pid int) (*snapshot.MapsSnapshot, error) {
	var layout *snapshot.MapsSnapshot
	var err error
	if !process.WithTimeout(pid, func() { layout, err = observe.Maps(pid) }, func() {}) {
		return nil, fmt.Errorf("process %d: %w", pid, process.ErrUnreachable) // the reader may still write to both
	}
	return layout, err
}

// end is that of the main thread's stack, 0 if it has none: where the kernel has put the arguments of the program,
// with the first words of these. What lies behind, their text and the environment, often is longer than the stack;
// and before it there may be a page without memory, which a timer's program cannot read.
func (p *sampled) end() (end uint64) {
	const arguments = 64
	for _, span := range p.layout.Spans() {
		if begin := p.layout.Stat().StackStart; span.Grows {
			end = span.End
			if span.Start <= begin && begin < end {
				end = min(end, begin+arguments)
			}
		}
	}
	return end
}

// Run takes samples until ctx ends, or for as long as the options say, neither of which is an error, or until all
// processes have ended: ErrExited. Samples are handed on to take, which must not keep them; an error of take ends it,
// too. New and Refresh read the mappings. The samples of a batch have the mappings that were read last before it began.
func (s *Sampler) Run(ctx context.Context, take func([]Sample) error) (stats Stats, err error) {
	defer thread.RegisterWork(s.suspend, s.resume)()
	defer s.begin()()
	var group sync.WaitGroup
	took := time.Duration(0)
	for _, t := range s.threads {
		group.Go(t.run)
	}
	go func() {
		group.Wait()
		took = s.worked()
		close(s.batches)
	}()
	defer context.AfterFunc(ctx, s.stop)()
	for b := range s.batches {
		stats.Missed += b.missed
		if err != nil {
			continue // it has ended with this
		}
		err = b.err
		if err == nil && len(b.list) > 0 {
			err = take(b.list)
		}
		select {
		case s.spare <- b.stacks:
		default:
		}
		if err == nil && s.allEnded() {
			err = process.Exited(s.targets[0].target.PID)
		}
		if err != nil {
			s.stop()
		}
	}
	stats.Took, stats.Unseen = took, max(0, online()-len(s.threads))
	return stats, err
}

// Hasten hands on samples after this time, if they would wait longer.
func (s *Sampler) Hasten(batch time.Duration) {
	if int64(batch) < s.batch.Load() {
		s.batch.Store(int64(batch))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.alert()
	}
}

// begin starts the clock of what a sampler is at work; the result stops it.
func (s *Sampler) begin() func() {
	s.mu.Lock()
	s.began = time.Now()
	s.mu.Unlock()
	if s.options.Duration <= 0 {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		for left := s.options.Duration; left > 0; left = s.options.Duration - s.worked() {
			select {
			case <-ended:
				return
			case <-time.After(left):
			}
		}
		s.stop()
	}()
	return func() { close(ended) }
}

// worked is how long a sampler has been at work.
func (s *Sampler) worked() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := s.rests
	if until.IsZero() {
		until = time.Now()
	}
	return until.Sub(s.began) - s.rested
}

// stop has the threads end.
func (s *Sampler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	atomic.StoreUint32(&s.quit, 1)
	s.alert()
}

// suspend has the threads stop their clocks, and wait.
func (s *Sampler) suspend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rests = time.Now()
	s.alert()
}

// resume is for threads that are about to go on.
func (s *Sampler) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rested += time.Since(s.rests)
	s.rests = time.Time{}
}

// alert has the threads end their batches.
func (s *Sampler) alert() {
	for _, t := range s.threads { // none if it is closed
		_, _ = unix.Write(t.call, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// allEnded looks which processes have ended.
func (s *Sampler) allEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.targets {
		p.ended = p.ended || !p.held.Lives()
	}
	return !slices.ContainsFunc(s.targets, func(p *sampled) bool { return !p.ended })
}

// Refresh reads the mappings of a process anew, for batches to come. It returns those that hold for samples that were
// taken by a layout: code that has taken the place of other code is in neither, and nothing is of a program that has
// executed another one. The error is process.ErrUnreachable if the process does not answer in time.
func (s *Sampler) Refresh(pid int, by *snapshot.MapsSnapshot) ([]procfs.Mapping, error) {
	layout, err := readMaps(pid) // without the lock, for which all threads would wait
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.targets {
		if p.target.PID != pid {
			continue
		}
		switch {
		case errors.Is(err, process.ErrExited):
			p.ended = true
			return nil, err
		case err != nil:
			return nil, err
		}
		p.layout = layout
		if !by.Describes(p.layout.Stat()) {
			s.alert() // it is sampled by another layout from now on
			return nil, nil
		}
		return snapshot.MapsBetween(by.Maps(), slices.Clone(p.layout.Maps())), nil
	}
	return nil, fmt.Errorf("process %d is not sampled", pid)
}

// Close gives everything back. Run must have returned.
func (s *Sampler) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.threads {
		if t.call >= 0 {
			_ = unix.Close(t.call)
		}
	}
	if s.kernel != nil {
		s.kernel.Close()
	}
	for _, p := range s.targets {
		p.held.Release()
	}
	s.kernel, s.threads, s.targets = nil, nil, nil
}
