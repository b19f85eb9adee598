package clusterprofile

import (
	"encoding/binary"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

type profiledProcess struct {
	pid       int
	serverPID int    // the process id that the server sees; 0: not known
	started   uint64 // ns since boot; 0: not known yet
	// identity is the identity in the latest record of the process; known is false if no record had one.
	identity identity
	known    bool
	ended    bool
	// foreign: the process has other rights than the server, and the profile omits it.
	foreign bool
	// on and off are the times of the process on and off the processor. timed is set when the kernel has reported them. In mode
	// CPU, on is estimated by samples, the number of stacks on the processor.
	on, off time.Duration
	timed   bool
	samples int

	// pending is the wait in progress if a stack of it was taken.
	pending *pendingWait
	// space has the mappings of the process itself; nil: those of the postmaster suffice. read is the time at which they were read.
	space *capture.StackSpace
	read  time.Time
}

// pendingWait is a wait that has a stack, and whose end is not known yet.
type pendingWait struct {
	number uint64
	began  uint64 // CLOCK_MONOTONIC, ns
	waits  uint64 // number of waits since the last stack, including this one; see endWait
	weight *weight
}

// stackKey is a named stack with its labels. The label offCPU is not part of it.
type stackKey struct {
	process *profiledProcess
	space   *capture.StackSpace
	thread  *backtrace.Thread
	labels  labels
}

// waitKey is the activity of a process while it was off the processor. Times of equal waitKeys are added up.
type waitKey struct {
	process *profiledProcess
	query   uint64
	event   uint32
	state   uint32
}

// Parts of the time off the processor.
const (
	partSleeping = iota
	partRunnable // the process waits for a processor
	numParts
)

// offCPULabels are the values of the label off_cpu.
var offCPULabels = [numParts]string{sleeping, runnable}

// waitTime is the time of a waitKey, by parts, and the stacks among which the time is divided.
type waitTime struct {
	took   [numParts]time.Duration
	stacks map[stackKey]*weight
}

// weight has the time and the number of the waits in which a stack was taken. The time of a waitTime is divided among its
// stacks in proportion to their weights. A wait counts as runnable if the process lost its processor without going to sleep.
type weight struct {
	time    [numParts]float64 // ns
	samples [numParts]int
}

// processOf returns the process of a record. It makes a new profiledProcess if the process id is new or belongs to another
// process now.
func (c *collector) processOf(pid int, started uint64) *profiledProcess {
	p := c.byPID[pid]
	if p != nil && started != 0 && p.started == 0 {
		p.started = started
	}
	if p == nil || started != 0 && p.started != started {
		p = &profiledProcess{pid: pid, serverPID: c.serverPID(pid), started: started}
		p.foreign = c.server.isForeign(pid)
		c.byPID[pid] = p
		if !p.foreign {
			c.processes = append(c.processes, p)
		}
	}
	return p
}

// add handles a record of the BPF programs.
func (c *collector) add(r *clusterbpf.Record) {
	p := c.processOf(r.PID, r.Started)
	if p.foreign {
		return
	}
	switch r.Kind {
	case clusterbpf.Exit:
		if p.pending != nil {
			c.endWait(p, ended(p.pending.began, r.At), 0)
		}
		p.ended, p.timed, p.on, p.off = true, true, r.Took, r.Off
	case clusterbpf.OffEnd:
		if p.pending != nil && p.pending.number == r.Number {
			c.endWait(p, r.Took, r.Delay)
		}
	case clusterbpf.Running:
		c.addRunning(c.name(p, r))
		p.samples++
	case clusterbpf.Off, clusterbpf.Sleeper:
		c.beginWait(p, r)
	}
}

// beginWait counts the stack of a wait, and makes the wait pending until endWait.
func (c *collector) beginWait(p *profiledProcess, r *clusterbpf.Record) {
	key := c.name(p, r)
	of, w := c.waitTime(p, &key.labels)
	share := c.share(of, w, key)
	if r.Flags&clusterbpf.Runnable != 0 {
		share.samples[partRunnable]++
	} else {
		share.samples[partSleeping]++
	}
	p.pending = &pendingWait{number: r.Number, began: r.At, waits: max(1, r.Waits), weight: share}
}

// ended returns the time from began to at; 0 if at is earlier.
func ended(began, at uint64) time.Duration { return time.Duration(max(began, at) - began) }

// endWait adds the time of the pending wait to the weight of its stack. A short wait also represents the waits without a stack
// before it, so its time is multiplied by their number. A long wait represents only itself, since each long wait has a stack.
func (c *collector) endWait(p *profiledProcess, took, delay time.Duration) {
	w := p.pending
	p.pending = nil
	if took < longWait+interval {
		took *= time.Duration(w.waits)
		delay *= time.Duration(w.waits)
	}
	w.weight.time[partSleeping] += float64(took - delay)
	w.weight.time[partRunnable] += float64(delay)
}

// waitTime returns the waitTime for a process and the query, wait event and state in its labels.
func (c *collector) waitTime(p *profiledProcess, l *labels) (waitKey, *waitTime) {
	key := waitKey{process: p, query: l.query, event: l.event, state: l.state}
	if key.state == absent {
		key.state, key.query = 0, 0
	}
	return c.waitTimeOf(key)
}

// name names the stack of a record, and counts it for the summary.
func (c *collector) name(p *profiledProcess, r *clusterbpf.Record) stackKey {
	key := c.nameOne(p, r)
	if c.stacks.Shortened() {
		c.summary.Shortened++
	}
	if key.thread.Generated {
		c.summary.Generated++
		c.generated = time.Now()
	}
	return key
}

func (c *collector) nameOne(p *profiledProcess, r *clusterbpf.Record) stackKey {
	l := c.labelsOf(p, r)
	changing := r.Flags&(clusterbpf.HasEntry|clusterbpf.Consistent) == clusterbpf.HasEntry
	switch {
	case changing && p.known:
		l.identity = p.identity
		l.application = ""
	case r.Flags&clusterbpf.Consistent != 0:
		p.identity, p.known = l.identity, true
	}
	c.count(r, p.known)
	th := snapshot.Thread{TID: r.PID, State: 'R', Registers: r.AppendRegisters(nil)}
	if r.Kind != clusterbpf.Running && r.Flags&clusterbpf.Runnable == 0 {
		th.State = 'S'
	}
	th.Stack = snapshot.Stack{Start: r.StackStart, Data: r.Stack, Cut: r.Flags&clusterbpf.CutStack != 0}
	if r.Flags&clusterbpf.NoStack != 0 {
		th.Err = snapshot.ErrNoStack
	}
	memory := c.memoryOf(r)
	named, complete := c.stacks.Name(c.base, &th, memory)
	key := stackKey{process: p, space: c.base, thread: named, labels: l}
	if complete || !c.refresh(p) {
		return key
	}
	key.thread, complete = c.stacks.Name(p.space, &th, memory)
	key.space = p.space
	if !complete && time.Since(p.read) > refreshAfter && c.readSpace(p) { // the process may have loaded a library meanwhile
		key.thread, _ = c.stacks.Name(p.space, &th, memory)
		key.space = p.space
	}
	return key
}

// memoryOf returns the memory that was copied with the stack: error_context_stack, and the pieces to which its entries point.
func (c *collector) memoryOf(r *clusterbpf.Record) []snapshot.Stack {
	if len(r.Pieces) == 0 {
		return nil
	}
	list := binary.NativeEndian.AppendUint64(nil, r.Context)
	memory := []snapshot.Stack{{Start: c.server.target.Context, Data: list}}
	for _, p := range r.Pieces {
		memory = append(memory, snapshot.Stack{Start: p.Start, Data: p.Data})
	}
	return memory
}

// refreshAfter is the least time between two reads of a process's mappings. They are read again if a stack cannot be named
// completely with the known mappings.
const refreshAfter = time.Second

// count counts a stack for the summary.
func (c *collector) count(r *clusterbpf.Record, known bool) {
	c.summary.Taken++
	switch {
	case r.Flags&clusterbpf.HasEntry == 0:
		c.summary.NoEntry++
	case r.Flags&clusterbpf.Consistent != 0:
		c.summary.Labelled++
	case known:
		c.summary.Partial++
	default:
		c.summary.Unlabelled++
	}
	if r.Flags&clusterbpf.NoStack != 0 {
		c.summary.NoStack++
	}
}

// refresh reports whether p.space has mappings of the process itself. It reads them if needed.
func (c *collector) refresh(p *profiledProcess) bool { return p.space != nil || c.readSpace(p) }

// readSpace reads the mappings of a process into p.space. It returns false if they are the same as in p.space, if the process
// has ended, if its mappings cannot be read in time, or if there is no room for them.
func (c *collector) readSpace(p *profiledProcess) bool {
	if p.ended || p.space == nil && time.Since(p.read) < refreshAfter {
		return false
	}
	p.read = time.Now()
	stat, err := process.ReadStat(p.pid)
	if err != nil || p.started != 0 && stat.StartTime != process.StartTicks(p.started) {
		return false
	}
	var maps []process.Mapping
	if c.unreachable[p.pid] {
		return false
	}
	if !process.WithTimeout(p.pid, func() { maps, err = process.Maps(p.pid) }, func() {}) {
		c.unreachable[p.pid] = true
		return false
	}
	if err != nil || len(maps) == 0 {
		return false
	}
	if p.space != nil && slices.EqualFunc(p.space.Maps, maps, func(a, b process.Mapping) bool { return a.SameMemory(&b) }) {
		return false
	}
	if !c.roomFor(maps) {
		c.summary.Cut++
		return false
	}
	p.space = capture.NewStackSpace(p.pid, stat.StartTime, maps)
	c.spaces = append(c.spaces, p.space)
	return true
}

// takeWaits reads the times of ended waits from the kernel's table, and adds them.
func (c *collector) takeWaits() error {
	if c.options.Mode == CPU {
		return nil
	}
	list, err := c.sampler.TakeWaits()
	for i := range list {
		c.addWaits(&list[i])
	}
	return err
}

func (c *collector) addWaits(w *clusterbpf.WaitTime) {
	p := c.processOf(w.PID, w.Started)
	if p.foreign {
		return
	}
	_, sum := c.waitTimeOf(waitKey{process: p, query: c.queryOf(w.QueryID, w.State), event: w.Event, state: w.State})
	sum.took[partSleeping] += w.Took - w.Delay
	sum.took[partRunnable] += w.Delay
}

// finish completes the summary. It also adds the waits and the time on processors that are in progress at the end. list has the
// processes that live then.
func (c *collector) finish(end uint64, list []clusterbpf.Process) error {
	if err := c.takeWaits(); err != nil {
		return err
	}
	n, err := c.sampler.Counters()
	if err != nil {
		return err
	}
	c.summary.Lost, c.summary.Uncounted, c.summary.KernelTime = int(n.Lost), int(n.Uncounted), n.Time
	c.summary.UnseenProcessors = c.sampler.Unseen()
	c.summary.Unreachable = len(c.unreachable)
	if c.identified == 0 {
		c.summary.NoQueryIDs = c.active
	}
	if c.options.Mode == CPU {
		c.finishClock()
		return nil
	}
	for i := range list {
		now := &list[i]
		if now.Started == 0 && dead(now.PID) {
			continue // the process ended while seed described it
		}
		c.finishProcess(now, end)
	}
	c.addRests()
	for _, w := range c.off {
		c.summary.Runnable += w.took[partRunnable]
	}
	for _, p := range c.processes {
		c.summary.CPU += p.on
		c.summary.OffCPU += p.off
		c.countProcess(p)
	}
	return nil
}

// finishProcess adds the last wait of a process that lives when the profile ends, and the time that it has spent in its
// present state.
func (c *collector) finishProcess(now *clusterbpf.Process, end uint64) {
	p := c.processOf(now.PID, now.Started)
	if p.foreign {
		return
	}
	p.timed, p.on, p.off = true, now.On, now.Off
	c.addWaits(&now.Last)
	last := func(took, delay time.Duration) {
		p.off += took
		c.addWaits(&clusterbpf.WaitTime{
			PID: now.PID, Started: now.Started, QueryID: now.QueryID, Event: now.Event, State: now.State,
			Took: took, Delay: delay,
		})
		if p.pending != nil && p.pending.number == now.Number {
			c.endWait(p, took, delay)
		}
	}
	if now.Undivided {
		last(now.UndividedTook, now.UndividedDelay)
	}
	rest := ended(now.Since, end)
	if now.Running && now.Started != 0 { // the table still has the labels of the previous wait
		now.QueryID, now.Event, now.State = 0, 0, 0
	}
	switch {
	case !now.Running:
		last(rest, now.Delay)
	case rest < longWait || runs(now.PID): // else the kernel has not reported that the process left its processor
		p.on += rest - now.Delay
		if now.Delay > 0 {
			last(now.Delay, now.Delay)
		}
	default:
		last(rest, now.Delay)
	}
}

// runs reports whether a process has a processor or waits for one.
func runs(pid int) bool {
	stat, err := process.ReadStat(pid)
	return err == nil && stat.State == 'R'
}

// dead reports whether a process has ended. A zombie has ended too.
func dead(pid int) bool {
	return process.ID{PID: pid}.Ended()
}

// addRests adds the time of waits for which the kernel's table had no room. If the record of a process's end was lost, it estimates
// the time on the processor by the number of samples.
func (c *collector) addRests() {
	sums := make(map[*profiledProcess]time.Duration)
	for key, w := range c.off {
		for _, took := range w.took {
			sums[key.process] += took
		}
	}
	for _, p := range c.processes {
		if !p.timed {
			p.ended, p.on, p.off = true, c.period(p.samples), sums[p]
		}
		if rest := p.off - sums[p]; rest > 0 {
			_, w := c.waitTimeOf(waitKey{process: p})
			w.took[partSleeping] += rest
		}
	}
}

// finishClock completes the summary in mode CPU. It estimates times by the number of samples.
func (c *collector) finishClock() {
	for _, p := range c.processes {
		p.on = c.period(p.samples)
		c.summary.CPU += p.on
		stat, err := process.ReadStat(p.pid)
		p.ended = p.ended || err != nil || process.HasEnded(&stat) || stat.PPID != c.server.cluster.PostmasterPID
		c.countProcess(p)
	}
}

// period returns the time that corresponds to a number of samples.
func (c *collector) period(samples int) time.Duration {
	return time.Duration(float64(samples) * float64(time.Second) / c.options.Rate)
}

func (c *collector) countProcess(p *profiledProcess) {
	c.summary.Processes++
	if p.ended {
		c.summary.Ended++
	}
}
