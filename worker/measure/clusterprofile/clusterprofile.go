package clusterprofile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
)

// Collect samples all processes of a server, also processes that start later, until Options.Duration or ctx ends.
// Neither end is an error.
//
// The sample types are samples/count and, by mode, cpu/nanoseconds, offcpu/nanoseconds, or both and wall/nanoseconds. These
// labels of a sample are as in pg_stat_activity at the moment of the sample: pid, backend_type, database, user,
// application_name, query_id, wait_event_type, wait_event and state. A BPF program reads them from the server's memory
// together with the stack. Further labels are off_cpu, phrase and, with Options.Texts, query. A label without a value is
// absent. If the process was changing its entry in pg_stat_activity, state, query_id and application_name are absent.
//
// Errors wrap ErrOptions, ErrServerGone, ErrNoSamples, clusterbpf.ErrUnsupported, fs.ErrPermission (root, or CAP_BPF
// and CAP_PERFMON, is needed), waits.ErrUnsupported (the version of the server is not known), or those of
// cluster.ByDataDir. The Summary is nil only if sampling did not start.
func Collect(ctx context.Context, options Options) (*profile.Profile, *Summary, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	c, err := newCollector(&o)
	if err != nil {
		return nil, nil, err
	}
	defer c.sampler.Close()
	defer c.sleepers.end()
	defer c.stacks.Watch()()
	if err := c.run(ctx); err != nil {
		return nil, nil, err
	}
	p := c.profile(ctx)
	if len(p.Sample) == 0 {
		return nil, &c.summary, fmt.Errorf("%w in %s", ErrNoSamples, c.summary.Took.Round(time.Millisecond))
	}
	return p, &c.summary, nil
}

// Times and limits of the collection.
const (
	// interval is the time between two fetches of samples.
	interval = 100 * time.Millisecond
	// quickly is the time between two fetches in the second after a stack has ended in code compiled at run time: the collector
	// must read this code before the process frees the code.
	quickly = 20 * time.Millisecond
	// longWait is how long a wait must have lasted before this process takes its stack, if the BPF program took none when
	// it began.
	longWait = 50 * time.Millisecond
	// stacksOff is the largest number of stacks of waits in a second, for all processes together.
	stacksOff = 500
	// ringSize is the size of the kernel's buffer for samples that were not fetched yet, in bytes.
	ringSize = 16 << 20
	// grace is how long after the requested end of the profile the kernel stops sampling by itself, if the worker has not
	// stopped it.
	grace = 2 * time.Second
	// maxProcesses bounds the processes of one profile: each takes some kB of memory.
	maxProcesses = 200_000
	// sleepersAtOnce is the largest number of sleepers that are examined between two fetches of samples.
	sleepersAtOnce = 256
)

// collector is one call of Collect.
type collector struct {
	options Options
	server  *server
	sampler *clusterbpf.Sampler
	stacks  *capture.StackNamer
	summary Summary
	began   time.Time
	// sleepers reads the stacks of sleeping processes.
	sleepers sleepers
	// unreachable are the processes whose memory could not be read in time.
	unreachable map[int]bool

	base      *capture.StackSpace   // mappings of the postmaster; its children have these and further ones
	spaces    []*capture.StackSpace // base, and the mappings of processes that differ
	byPID     map[int]*profiledProcess
	processes []*profiledProcess
	cpu       map[stackKey]int      // number of samples on the processor
	off       map[waitKey]*waitTime // time off the processor
	samples   int                   // number of samples and of waitKeys, see counted
	// spaceBytes is the memory of the mappings in spaces, without base.
	spaceBytes int
	processors int // on which the server may run
	// generated is the time at which a stack last ended in code compiled at run time.
	generated time.Time
	// active is the number of stacks of statements in client backends, and identified the number of those with a query id.
	active, identified int
	databases          map[uint32]string // names by OID
	users              map[uint32]string // names by OID
	log                *state.SessionLog // nil: no texts
	err                error             // the error of a record
}

// newCollector finds the server and prepares the collection.
func newCollector(o *Options) (*collector, error) {
	server := o.Cluster
	if server == nil {
		found, err := cluster.ByDataDir(o.DataDir)
		if err != nil {
			return nil, err
		}
		server = &found
	}
	if !server.Alive() {
		return nil, fmt.Errorf("%s: %w", server, ErrServerGone)
	}
	s, err := locate(*server)
	if err != nil {
		return nil, err
	}
	return newCollectorOf(o, s)
}

// newCollectorOf loads the BPF programs for a server.
func newCollectorOf(o *Options, s *server) (*collector, error) {
	var err error
	server := &s.cluster
	if o.Capturer == nil {
		if o.Capturer, err = capture.New(capture.Config{AwaitNames: true, Kept: buildcache.Own}); err != nil {
			return nil, err
		}
	}
	c := &collector{
		options: *o, server: s, byPID: make(map[int]*profiledProcess),
		stacks: o.Capturer.StackNamer(capture.StackNamerOptions{
			MaxFrames: o.MaxFrames, MaxBytes: maxStackBytes, CompleteLater: true,
		}),
		cpu: make(map[stackKey]int), off: make(map[waitKey]*waitTime), databases: make(map[uint32]string),
		users: make(map[uint32]string), unreachable: make(map[int]bool),
		summary: Summary{Mode: o.Mode, Rate: o.Rate, Server: server.String()},
	}
	maps, err := process.Maps(server.PostmasterPID)
	if err != nil {
		return nil, gone(err)
	}
	c.base = capture.NewStackSpace(server.PostmasterPID, server.PostmasterStart, maps)
	c.spaces = append(c.spaces, c.base)
	period := time.Duration(float64(time.Second) / o.Rate)
	c.processors = processorsOf(server.PostmasterPID)
	c.sampler, err = clusterbpf.Load(s.target, clusterbpf.Options{
		Clock: o.Mode != OffCPU, Period: period, Switches: o.Mode != CPU, StackPeriod: period,
		StackSpacing: time.Second / stacksOff * time.Duration(c.processors),
		Chosen:       o.chosen(), Processes: 2*s.procs + 64, RingSize: ringSize, RedZone: redZone,
	})
	return c, err
}

// processorsOf returns the number of processors on which a server may run: the host may have more, and this process may have others.
func processorsOf(postmaster int) int {
	var set unix.CPUSet // the kernel sets only processors that are online
	if err := unix.SchedGetaffinity(postmaster, &set); err == nil && set.Count() > 0 {
		return set.Count()
	}
	return clusterbpf.Processors()
}

// redZone is the number of bytes below the stack pointer that belong to the stack (System V ABI, x86_64).
const redZone = 128

// run collects until Options.Duration or ctx ends, or loop ends earlier.
func (c *collector) run(ctx context.Context) error {
	before := ownTime()
	if err := c.sampler.Start(c.options.Duration + grace); err != nil {
		return err
	}
	c.began = time.Now() // the sampler counts from now on
	c.readTexts()
	if err := c.seed(); err != nil {
		return err
	}
	if c.options.Started != nil {
		c.options.Started()
	}
	err := c.loop(ctx)
	if err == nil {
		err = c.lookAtSleepers(0, time.Second) // take a stack of each process that sleeps at the end
	}
	c.sampler.Stop()
	end := clusterbpf.Now()
	c.summary.Took = time.Since(c.began)
	if c.log != nil {
		c.log.Look()
	}
	var list []clusterbpf.Process
	if err == nil && c.options.Mode != CPU {
		var counted bool
		list, counted, err = c.sampler.End(end)
		c.summary.NoDelays = !counted
	}
	if err == nil {
		err = c.fetchUntil(time.Now().Add(time.Hour)) // the rest of the ring
	}
	if err == nil {
		err = c.finish(end, list)
	}
	c.summary.WorkerCPU = ownTime() - before
	return err
}

func ownTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// readTexts begins to collect the texts of statements if Options.Texts is set. If this fails, only the label LabelQuery is
// missing.
func (c *collector) readTexts() {
	if !c.options.Texts {
		return
	}
	reader, err := state.Open(c.server.cluster)
	if err != nil {
		return
	}
	c.log = state.NewSessionLog(reader, textInterval)
	c.log.Look()
}

// textInterval is the least time between two reads of the texts of statements.
const textInterval = 200 * time.Millisecond

// seed passes the processes that already live, with their present states, to the BPF programs. Mode CPU does not need them.
func (c *collector) seed() error {
	if c.options.Mode == CPU {
		return nil
	}
	pids, err := c.living()
	if err != nil {
		return fmt.Errorf("list the server's processes: %w", err)
	}
	for _, pid := range pids {
		p, lives, answers := c.server.seed(pid)
		if !answers {
			c.unreachable[pid] = true
		}
		if !lives {
			continue
		}
		if err := c.sampler.Seed(p); err != nil {
			return err
		}
	}
	return nil
}

// living returns the processes to be sampled that live now, in the PID namespace of this process.
func (c *collector) living() ([]int, error) {
	if c.options.Processes == nil {
		return process.Children(c.server.cluster.PostmasterPID)
	}
	var pids []int
	for _, id := range c.options.Processes {
		if !id.Ended() {
			pids = append(pids, id.PID)
		}
	}
	return pids, nil
}

// chosen returns Options.Processes in the form of clusterbpf.Options: start times by process id; nil: all.
func (o Options) chosen() map[int]uint64 {
	if o.Processes == nil {
		return nil
	}
	chosen := make(map[int]uint64, len(o.Processes))
	for _, id := range o.Processes {
		chosen[id.PID] = id.StartTime
	}
	return chosen
}

// loop fetches samples until the duration or ctx ends. It ends earlier if the server or all chosen processes have ended, or if the
// profile is too large or too expensive.
func (c *collector) loop(ctx context.Context) error {
	end := time.NewTimer(c.options.Duration)
	defer end.Stop()
	tick, quick := time.NewTicker(interval), time.NewTicker(quickly)
	defer tick.Stop()
	defer quick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-end.C:
			return nil
		case now := <-quick.C:
			n--
			if now.Sub(c.generated) > time.Second {
				continue
			}
			if err := c.fetch(); err != nil {
				return err
			}
			continue
		case <-tick.C:
		}
		if err := c.fetch(); err != nil {
			return err
		}
		if err := c.lookAtSleepers(longWait, interval/2); err != nil {
			return err
		}
		if n%int(time.Second/interval) != 0 {
			continue
		}
		if c.log != nil {
			c.log.Look()
		}
		if err := c.takeWaits(); err != nil {
			return err
		}
		if c.options.Progress != nil {
			c.options.Progress(time.Since(c.began), c.summary.Taken)
		}
		if len(c.processes) > maxProcesses {
			c.summary.StoppedBySize = true
			return nil
		}
		if !c.server.cluster.Alive() {
			c.summary.ServerEnded = true
			return nil
		}
		if pids, _ := c.living(); c.options.Processes != nil && len(pids) == 0 {
			c.summary.ProcessesEnded = true
			return nil
		}
		if expensive, err := c.expensive(); err != nil || expensive {
			c.summary.StoppedByCost = expensive
			return err
		}
	}
}

// expensive reports whether the BPF programs, and reading the stacks of sleepers, take more than Options.CostLimit.
func (c *collector) expensive() (bool, error) {
	n, err := c.sampler.Counters()
	c.summary.KernelTime = n.Time
	limit := c.options.CostLimit * float64(time.Since(c.began)) * float64(c.processors)
	return err == nil && float64(n.Time+c.sleepers.took) > limit, err
}

// fetch reads the samples in the ring, and names their stacks, at most for interval. If samples come faster, it leaves the rest for
// the next call, so that loop can check the limits of the profile.
func (c *collector) fetch() error { return c.fetchUntil(time.Now().Add(interval)) }

func (c *collector) fetchUntil(end time.Time) error {
	_, err := c.sampler.Read(end, c.add)
	return errors.Join(err, c.err)
}

// lookAtSleepers takes a stack of each wait that has lasted for the time least and has no stack yet. It stops after the time most;
// the next call does the rest.
func (c *collector) lookAtSleepers(least, most time.Duration) error {
	if c.options.Mode == CPU {
		return nil
	}
	list, err := c.sampler.Processes()
	if err != nil {
		return err
	}
	now, looked, end := clusterbpf.Now(), 0, time.Now().Add(most)
	for i := range list {
		p := &list[i]
		if p.Running || p.HasStack || p.Since+uint64(least) > now {
			continue
		}
		if err := c.sleepers.read(c, p.PID); err != nil {
			return err
		}
		if time.Now().After(end) {
			break
		}
		if looked++; looked%sleepersAtOnce == 0 {
			if err := c.fetch(); err != nil {
				return err
			}
		}
	}
	return c.fetch()
}
