package waits

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
)

// kernel is a Provider with the figures that BPF programs write.
type kernel struct {
	procs    *procs
	info     Info
	programs *programs
	stop     chan struct{}
	done     sync.WaitGroup

	mu       sync.Mutex
	since    time.Time
	tallies  map[int]*tally  // figures of the slots' present processes, by slot
	parted   map[life]*tally // figures of ended processes whose last figures were not read yet
	ended    table           // sums of ended processes that are not in keep
	last     map[int]uint32  // by slot: number of the newest life whose last figures were read
	overflow uint64          // Overflow of the processes in ended
	resets   map[int]uint64  // number of resets, by process id
	buffer   slot            // the slot that was read last
	base     Counters        // counters of the programs at the last reset
	keep     keeper
	copied   map[int]*observe.CopiedProcess // processes whose stacks were copied

	// readSlot copies a slot of the kernel's table: programs.Read, or another function in tests.
	readSlot func(i int, into *slot) bool
}

// life identifies the use of a slot by one process: the slot's index and the number of the use.
type life struct{ slot, number uint32 }

func lifeOf(s *slot) life { return life{s.Index, s.Life} }

// tally has the figures of one process. last is its slot at the last read, and events the sums until then. The BPF
// programs' counters of a histogram have few bits and may wrap, so events adds up the differences between two reads.
type tally struct {
	last   slot
	events table
}

// drainInterval is the time between two reads of the figures of ended processes. refreshInterval is the time between
// two reads of all slots. It must be shorter than the time in which a counter of a histogram can wrap.
const (
	drainInterval   = 200 * time.Millisecond
	refreshInterval = 30 * time.Second
)

// openKernel loads and attaches the BPF programs, and starts to read their figures.
func openKernel(p *procs, hooks hooks, info Info, o Options) (*kernel, error) {
	if p.count > maxSlots {
		return nil, impossiblef("the server has room for more than %d processes", maxSlots)
	}
	server := config{
		Postmaster: p.Postmaster, WaitPointer: p.WaitPointer, FirstWait: p.first + uint64(p.Layout.WaitEvent),
		ProcSize: p.Layout.ProcSize, Procs: p.count,
		QueryID: p.Layout.QueryID, State: p.Layout.State, QueryStart: p.Layout.QueryStart,
		StateStart: p.Layout.StateStart, Idle: p.Layout.Idle, Running: p.Layout.Running, Uring: p.Layout.Uring,
	}
	if o.Queries {
		server.Status = p.Status
	}
	server.Stacks = o.Stacks
	server.ExecutorStart, server.ExecutorEnd, server.OpenProgram = p.ExecutorStart, p.ExecutorEnd, p.OpenProgram
	programs, err := loadPrograms(server, hooks)
	if err != nil {
		return nil, err
	}
	info.Counts, info.Queries = true, server.Status != 0
	k := &kernel{
		procs: p, info: info, programs: programs, stop: make(chan struct{}), since: time.Now(),
		tallies: make(map[int]*tally), parted: make(map[life]*tally), ended: make(table), resets: make(map[int]uint64),
		last: make(map[int]uint32), keep: keeper{pids: o.Keep, most: o.KeepEnded}, readSlot: programs.Read,
	}
	if err := k.attach(); err != nil {
		programs.Close()
		return nil, err
	}
	k.info.Unreachable = p.unreachable
	k.done.Go(k.run)
	return k, nil
}

// attach writes the waits in progress into the slots (seeds), and attaches the programs. It then removes the seeds of
// waits that have ended before the programs were attached, because no program has seen their end.
func (k *kernel) attach() error {
	type seed struct {
		slot  int
		event uint32
	}
	since := monotonic()
	children, err := process.Children(k.procs.Postmaster)
	if err != nil {
		return fmt.Errorf("list the server's processes: %w", err)
	}
	seeds := make([]seed, 0, len(children))
	for _, pid := range children {
		slot, ok := k.procs.slotOf(pid)
		if !ok {
			continue
		}
		event := k.procs.eventAt(slot)
		if event == 0 {
			continue
		}
		if err := k.programs.Seed(slot, pid, event, since); err != nil {
			return err
		}
		seeds = append(seeds, seed{slot, event})
	}
	if err := k.programs.Attach(); err != nil {
		return err
	}
	for _, s := range seeds {
		if k.procs.eventAt(s.slot) != s.event {
			k.programs.Unseed(s.slot, since)
		}
	}
	return nil
}

// run reads the figures of ended processes, and from time to time all slots, until Close.
func (k *kernel) run() {
	ticker := time.NewTicker(drainInterval)
	defer ticker.Stop()
	refreshed := time.Now()
	for {
		select {
		case <-k.stop:
			return
		case <-ticker.C:
		}
		k.mu.Lock()
		k.drain()
		if time.Since(refreshed) > refreshInterval {
			k.refresh()
			refreshed = time.Now()
		}
		k.mu.Unlock()
	}
}

// drain reads the last figures of the processes that have ended since the previous call of drain, and returns the number of
// these processes.
func (k *kernel) drain() (n int) {
	for k.programs.Gone(time.Now(), &k.buffer) {
		n++
		k.end(&k.buffer)
	}
	// These processes have ended, but their last figures did not come: the kernel has counted them as lost.
	for l, t := range k.parted {
		k.ended.addAll(t.events.list())
		delete(k.parted, l)
	}
	return n
}

// end adds the last figures of a process that has ended. Its slot may already have a new process.
func (k *kernel) end(s *slot) {
	t := k.parted[lifeOf(s)]
	switch now := k.tallies[int(s.Index)]; {
	case t != nil:
		delete(k.parted, lifeOf(s))
	case now != nil && now.last.Life == s.Life:
		t = now
		delete(k.tallies, int(s.Index))
	default:
		t = &tally{events: make(table)}
	}
	t.add(s)
	k.last[int(s.Index)] = s.Life
	p := Process{
		PID: int(s.Pid), Slot: int(s.Index), Events: t.events.list(), Overflow: s.Overflow,
		Resets: k.resets[int(s.Pid)], Ended: true,
	}
	if !k.keep.add(p) {
		k.ended.addAll(p.Events)
		k.overflow += p.Overflow
	}
	delete(k.resets, int(s.Pid))
}

// refresh reads all slots, before the counters of their histograms can wrap. It also follows the clock.
func (k *kernel) refresh() {
	k.programs.followClock()
	for i := range k.programs.Slots() {
		if k.read(i) && k.buffer.Pid != 0 && holds(&k.buffer) {
			k.take(&k.buffer)
		}
	}
}

// read copies slot i into k.buffer. If a BPF program is writing to the slot for long, because its processor does something
// else, the buffer gets the figures of the previous read, without the wait in progress: a lower bound. Without a previous
// read, the result is false. When a process ends, the programs first send its final figures and then clear its
// slot. On a busy host, milliseconds pass between the two. Once the final figures were received, read returns false until the
// slot is cleared. Otherwise the process would be counted twice.
func (k *kernel) read(i int) bool {
	if k.readSlot(i, &k.buffer) {
		over, known := k.last[i]
		return !known || k.buffer.Life != over
	}
	t := k.tallies[i]
	if t == nil {
		return false
	}
	k.buffer = t.last
	k.buffer.Since = 0
	return true
}

// take adds the new waits of a slot's present process to the process's tally, and returns the tally.
func (k *kernel) take(s *slot) *tally {
	t := k.tallies[int(s.Index)]
	if t == nil || t.last.Life != s.Life {
		if t != nil && t.last.Pid != s.Pid {
			k.parted[lifeOf(&t.last)] = t
		}
		t = &tally{events: make(table)}
		k.tallies[int(s.Index)] = t
	}
	t.add(s)
	return t
}

// add adds the waits that are new since the previous add. Figures of one life only grow. If a figure is smaller than
// then, a BPF program wrote to the slot during the read, and add does nothing.
func (t *tally) add(s *slot) {
	if s.Life == t.last.Life && shrunk(&t.last, s) {
		return
	}
	for i := range s.Events {
		now, last := &s.Events[i], &t.last.Events[i]
		if now.Key == 0 {
			continue
		}
		e := t.events.at(now.Key)
		e.Total += time.Duration(now.Total - last.Total)
		e.Longest = max(e.Longest, time.Duration(now.Longest))
		for b := range now.Hist {
			n := uint64(now.Hist[b] - last.Hist[b])
			e.Buckets[b] += n
			e.Calls += n
		}
	}
	t.last = *s
}

// shrunk reports whether a figure is less in now than in last, or an event has another key.
func shrunk(last, now *slot) bool {
	for i := range last.Events {
		l, n := &last.Events[i], &now.Events[i]
		if l.Key != 0 && n.Key != l.Key || n.Total < l.Total {
			return true
		}
		for b := range l.Hist {
			if int32(n.Hist[b]-l.Hist[b]) < 0 { // a plain comparison would be wrong after a counter has wrapped
				return true
			}
		}
	}
	return false
}

func (k *kernel) Info() Info { return k.info }

func (k *kernel) Snapshot() (*Snapshot, error) {
	if err := k.procs.alive(); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drain()
	s := &Snapshot{Since: k.since}
	// A process that ends while the slots are read would be missing or counted twice. Then all slots are read again.
	const tries = 20
	for range tries {
		s.At, s.Lost.Overflow = time.Now(), k.overflow
		s.Processes = k.processes(s.Processes[:0])
		if k.drain() == 0 {
			break
		}
	}
	for i := range s.Processes {
		s.Lost.Overflow += s.Processes[i].Overflow
	}
	s.Processes = k.keep.addTo(s.Processes)
	s.Ended = k.ended.list()
	return s, k.losses(&s.Lost)
}

// processes appends the figures of all slots.
func (k *kernel) processes(list []Process) []Process {
	for i := range k.programs.Slots() {
		if k.read(i) && k.buffer.Pid != 0 {
			list = append(list, k.process(&k.buffer))
		}
	}
	return list
}

// process returns the figures of a slot, with the wait in progress.
func (k *kernel) process(slot *slot) Process {
	p := Process{PID: int(slot.Pid), Slot: int(slot.Index), Resets: k.resets[int(slot.Pid)]}
	events := make(table)
	if holds(slot) {
		events.addAll(k.take(slot).events.list())
		p.Overflow = slot.Overflow
	}
	if slot.Since != 0 {
		p.wait(events, slot.Waiting, max(slot.Since, slot.ResetAt))
	}
	p.Events = events.list()
	return p
}

// losses reads the numbers of waits and processes that the programs could not count since the last reset of all figures.
func (k *kernel) losses(l *Lost) error {
	c, err := k.programs.Counters()
	if err != nil {
		return err
	}
	l.Processes = c.LostProcesses - k.base.LostProcesses
	l.Missed = c.Missed - k.base.Missed
	l.Outside = c.Outside - k.base.Outside
	l.Queries = c.LostQueries - k.base.LostQueries
	l.Records = c.LostRecords - k.base.LostRecords
	l.Stacks = c.LostStacks - k.base.LostStacks
	return nil
}

func (k *kernel) Check() error { return k.procs.alive() }

func (k *kernel) Queries() ([]QueryFigures, error) {
	if !k.info.Queries {
		return nil, nil
	}
	return k.programs.Queries()
}

func (k *kernel) Reset(pid int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drain()
	known := false
	for i := range k.programs.Slots() {
		if k.read(i) && int(k.buffer.Pid) == pid {
			k.reset(i)
			known = true
		}
	}
	return known
}

func (k *kernel) reset(i int) {
	k.programs.Reset(i, monotonic())
	delete(k.tallies, i)
	k.resets[int(k.buffer.Pid)]++
}

func (k *kernel) ResetAll() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drain()
	for i := range k.programs.Slots() {
		if k.read(i) && k.buffer.Pid != 0 {
			k.reset(i)
		}
	}
	k.keep.ended = nil
	k.ended, k.overflow, k.since = make(table), 0, time.Now()
	var err error
	if k.base, err = k.programs.Counters(); err != nil {
		return err
	}
	return k.programs.ResetQueries()
}

func (k *kernel) Cost() (Cost, error) {
	c, err := k.programs.Counters()
	return Cost{Runs: c.Runs, Time: c.Time}, err
}

func (k *kernel) Close() {
	close(k.stop)
	k.done.Wait()
	k.programs.Close()
	for _, p := range k.copied {
		p.Release()
	}
}

// monotonic returns the time of CLOCK_MONOTONIC, the clock of the programs, in ns.
func monotonic() uint64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}
