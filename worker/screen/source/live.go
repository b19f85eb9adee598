package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of a sample.
const (
	maxStates   = 256             // processes whose state is read from /proc
	maxKernel   = 8               // processes whose kernel function is read
	watchStacks = 5 * time.Second // stacks are taken for this time after the last request for phrases or stacks
	costSpan    = 5 * time.Second // shortest time over which the processor time of this program is measured
	reachWait   = time.Second     // longest wait of an answer for recorded minutes, and for the end of a sample
	filesWait   = 3 * time.Second // wait of a sample for the recorder's files after which the screen shows an error
)

// Options of a live source.
type Options struct {
	// DataDir is the server's data directory.
	DataDir string
	// Interval is the time between two samples; 0: a second.
	Interval time.Duration
	// Capturer takes the stacks; nil: there are no stacks and no phrases.
	Capturer *capture.Capturer
	// Proof returns the fields of plans that were compared with EXPLAIN on a server of the same build. A nil result means that
	// this build was not compared, a nil function that no build was.
	Proof func(build string, major int) *plan.Proof
	// Recorded has the samples of a recorder. They are used for the time before the first own sample, and in place of own
	// samples while the recorder runs; nil: there is no recorder.
	Recorded *Recorded
	// FindRecorded looks for a recorder if Recorded is nil, so that the source finds a worker that was started later. It returns
	// nil if there is none. A nil function means that the source does not look.
	FindRecorded func() *Recorded
}

// Live samples a running server through its memory. It needs no connection, and stops no process.
type Live struct {
	o Options
	// recorded is Options.Recorded, or what Options.FindRecorded has found; nil: there is no recorder.
	recorded atomic.Pointer[Recorded]
	reading  gate // guards reader, max, began, searched and following; locked before mu
	reader   *state.Reader
	max      int
	began    usage
	// searched is the time of the last call of Options.FindRecorded.
	searched time.Time

	mu       sync.Mutex
	server   *cluster.Cluster // the server that reader reads; nil: it does not run
	past     past
	rules    rules
	info     Info
	last     *moment.Moment
	findings *Findings
	watchers map[chan struct{}]struct{}
	stop     context.CancelFunc // ends the sampler; nil: the sampler does not run
	done     chan struct{}      // closed at the end of the sampler
	stacks   stacks
	reached  chan struct{} // closed when recorded minutes have been read; nil: none are being read

	uses      uses
	outside   bool      // the server is in another PID namespace; guarded by mu
	memories  memories  // guarded by reading
	following following // guarded by reading, except two fields
	earlier   earlierTimes
}

// usage is the processor time that this program had used until the time at.
type usage struct {
	at  time.Time
	cpu time.Duration
}

// NewLive returns a source for the server in a data directory. It returns an error if the server does not run or cannot be
// read, and there are no recorded samples.
func NewLive(o Options) (*Live, error) {
	o.Interval = cmp.Or(o.Interval, time.Second)
	l := &Live{o: o, watchers: map[chan struct{}]struct{}{}}
	l.recorded.Store(o.Recorded)
	l.info = Info{DataDir: o.DataDir, IntervalSeconds: o.Interval.Seconds(), Texts: true}
	if err := l.open(); err != nil {
		if o.Recorded == nil {
			return nil, err
		}
		l.info.Error = err.Error()
	}
	if o.Recorded != nil {
		l.info.Recorded, l.past.gap = o.Recorded.Dir(), reasonNeither
		_ = l.reading.enter(context.Background()) // no other goroutine has the source yet
		runs := l.follow()
		l.reading.leave()
		if !runs {
			o.Recorded.fill(time.Now(), &l.past, &l.rules)
		}
	}
	return l, nil
}

// open finds the server and its variables to read, and sets l.reader and l.info.
func (l *Live) open() error {
	c, err := cluster.ByDataDir(l.o.DataDir)
	if err != nil {
		return err
	}
	r, err := state.Open(c)
	if err != nil {
		return err
	}
	l.reader, l.max = r, r.MaxConnections()
	started := c.Started
	processors := processorsOf(c.PostmasterPID)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = &c
	l.info.Ended, l.info.DataDir, l.info.Version, l.info.Port = false, c.DataDir, c.Version, c.Port
	l.info.Started, l.info.MaxConnections, l.info.Processors = &started, l.max, processors
	l.outside = c.Outside()
	return nil
}

// processorsOf returns the number of processors on which a process may run.
func processorsOf(pid int) float64 {
	var set unix.CPUSet
	if unix.SchedGetaffinity(pid, &set) == nil {
		return float64(set.Count())
	}
	return float64(runtime.NumCPU())
}

// Watch implements Source.Watch.
func (l *Live) Watch() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[c] = struct{}{}
	if l.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		before := l.done
		l.stop, l.done = cancel, make(chan struct{})
		go l.run(ctx, before, l.done)
	}
	return c, sync.OnceFunc(func() {
		l.mu.Lock()
		delete(l.watchers, c)
		if len(l.watchers) == 0 && l.stop != nil {
			l.stop()
			l.stop = nil
		}
		l.mu.Unlock()
	})
}

// run takes samples until ctx ends. If before is not nil, run first waits until this channel is closed, at the end of an
// earlier run. It closes the channel done at the end.
func (l *Live) run(ctx context.Context, before <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	if before != nil {
		<-before
	}
	ticker := time.NewTicker(l.o.Interval)
	defer ticker.Stop()
	for {
		if err := host.Catch("sample", l.Sample); err != nil {
			l.failed(err)
		}
		l.changed()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// changed sends a value to each watcher, except to watchers that have not received the last value yet.
func (l *Live) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (l *Live) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.info.Error, _, _ = strings.Cut(err.Error(), "\n")
}

// Sample takes one sample. The source itself calls Sample while there are watchers. If a recorder runs, Sample takes the
// recorder's new sweeps as samples. After a restart of the server, Sample finds the new server.
func (l *Live) Sample() error {
	_ = l.reading.enter(context.Background())
	defer l.reading.leave()
	l.search()
	if l.follow() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last != nil && l.wantsStacks() && time.Since(l.following.stacks) > time.Minute { // the recorder takes no stacks
			l.stacks.take(l, l.last)
		}
		l.measure()
		return nil
	}
	if l.reader == nil || !l.reader.Cluster().Alive() {
		l.reader = nil
		if err := l.open(); err != nil {
			l.mu.Lock()
			l.server = nil
			l.info.Ended = errors.Is(err, cluster.ErrNotRunning) || errors.Is(err, cluster.ErrNotDataDir) // it can be removed too
			l.mu.Unlock()
			return err
		}
	}
	m, err := l.reader.Read(state.Options{Texts: true})
	if err != nil {
		return err
	}
	l.reader.Blocking(m)
	f := l.look(m)
	f.interval = l.o.Interval
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stacks.addPhrases(m)
	l.info.IntervalSeconds = l.o.Interval.Seconds()
	l.add(m, f, l.rules.apply(f), KindSampled, 2*l.o.Interval)
	if l.wantsStacks() {
		l.stacks.take(l, m)
	}
	return nil
}

// search looks for a recorder that was started after this source. The recorder's new sweeps then take the place of own samples, and
// its files have earlier times.
func (l *Live) search() {
	const every = 5 * time.Second
	if l.recorded.Load() != nil || l.o.FindRecorded == nil || time.Since(l.searched) < every {
		return
	}
	l.searched = time.Now()
	done := l.reads()
	r := l.o.FindRecorded()
	done()
	if r == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	after := time.Now().Add(-followBack)
	if l.last != nil {
		after = l.last.Time
	}
	l.following.f = r.reader.Follow(after)
	l.info.Recorded, l.past.gap = r.Dir(), reasonNeither
	l.recorded.Store(r)
}

// reads makes the wait for the recorder's files an error on the screen if it lasts for more than filesWait. The caller calls done at the
// end of the wait. The next sample removes the error.
func (l *Live) reads() (done func() bool) {
	return time.AfterFunc(filesWait, func() {
		l.failed(fmt.Errorf("the recorder's files could not be read in %s", units.Age(filesWait)))
		l.changed()
	}).Stop
}

// wantsStacks reports whether a reader has requested stacks or phrases within the last watchStacks.
func (l *Live) wantsStacks() bool { return time.Since(l.stacks.wanted) < watchStacks }

// look reads from /proc the states of active processes in the wait classes CPU, IO, Other and Extension, and the kernel
// functions in which some of them sleep.
func (l *Live) look(m *moment.Moment) *facts {
	f := &facts{m: m, maxConnections: l.max, states: map[int]byte{}, kernel: map[int]string{}}
	f.processors = processorsOf(l.reader.Cluster().PostmasterPID)
	f.memory = l.memories.limitOf(l.reader.Cluster().PostmasterPID)
	l.memories.read(m, l.reader.Cluster().Outside())
	f.replay = l.replay(m)
	f.readStates(m, l.reader.Cluster().Outside())
	return f
}

// readStates reads the states. outside is set if the server is in another PID namespace. The states of sessions from a recorder whose
// process id on this host is not known are then not read: another process of the host can have the server's process id.
func (f *facts) readStates(m *moment.Moment, outside bool) {
	kernel := 0
	for i := range m.Sessions {
		s := &m.Sessions[i]
		class := ClassOf(s)
		if class != CPU && class != IO && class != Other && class != Extension {
			continue
		}
		if len(f.states) >= maxStates || outside && s.PID == s.ServerPID {
			f.unseen++
			continue
		}
		stat, err := process.ReadStat(s.PID)
		if err != nil {
			continue
		}
		f.states[s.ServerPID] = stat.State
		if stat.State == 'D' && kernel < maxKernel {
			kernel++
			if name, err := process.WaitChannel(s.PID, s.PID); err == nil && name != "0" {
				f.kernel[s.ServerPID] = name
			}
		}
	}
}

// add stores a sample and its findings. The sample stands for the time since the sample before it, but at most for the time
// longest.
func (l *Live) add(m *moment.Moment, f *facts, list []Finding, kind Kind, longest time.Duration) {
	s := l.past.add(m, kind, longest)
	s.before = l.missing()
	l.past.addFindings(s, list)
	l.last = m
	l.findings = &Findings{Time: m.Time, Findings: list}
	for _, missing := range m.Missing {
		if after, ok := strings.CutPrefix(missing, "locks: "); ok {
			l.findings.Unknown = append(l.findings.Unknown, "blocked sessions: "+after)
		}
	}
	if l.max == 0 {
		l.findings.Unknown = append(l.findings.Unknown, "connections: max_connections was not found in the server's memory")
	}
	i := &l.info
	i.Error, i.Missing = "", m.Missing
	if f.processors > 0 {
		i.Processors = f.processors
	}
	standby := startup(m) != nil
	i.Standby, i.Replay, i.OwnPIDs = &standby, f.replay, m.OwnPIDs()
	i.Sessions = counts(m)
	first, last := l.past.samples[0].at, m.Time
	i.First, i.Last = &first, &last
	l.measure()
}

// addFindings stores the number of active sessions that each finding of a sample concerns. The rules have set Share to this
// number; see activeShare.
func (p *past) addFindings(s *sample, list []Finding) {
	for i := range list {
		if list[i].Share != nil {
			s.found = append(s.found, found{p.names.number("f"+list[i].Key, list[i].Key), float32(*list[i].Share)})
		}
	}
}

// measure sets l.info.CostPercent, the processor time that this program has used lately.
func (l *Live) measure() {
	now := usage{at: time.Now()}
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return
	}
	now.cpu = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	switch {
	case l.began.at.IsZero():
		l.began = now
	case now.at.Sub(l.began.at) >= costSpan:
		cost := 100 * float64(now.cpu-l.began.cpu) / float64(now.at.Sub(l.began.at))
		l.info.CostPercent, l.began = &cost, now
	}
}

func counts(m *moment.Moment) (c Counts) {
	waiting := map[int]bool{}
	for i := range m.Sessions {
		s := &m.Sessions[i]
		switch {
		case ClassOf(s) != "":
			c.Active++
		case inTransaction(s):
			c.IdleInTransaction++
		case s.State == stateIdle:
			c.Idle++
		}
		if len(s.Blockers) > 0 || s.BlockersUnknown != "" || s.Wait != nil && s.Wait.Type == Lock {
			waiting[s.ServerPID] = true
		}
	}
	c.Waiting, c.Clients = len(waiting), clients(m)
	return c
}

// Info implements Source.Info.
func (l *Live) Info(context.Context) (*Info, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.info
	return &i, nil
}

// Load implements Source.Load.
func (l *Live) Load(ctx context.Context, q Query, columns int) (*Load, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	if err := l.reach(ctx, q.From); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.past.load(q, columns, l.o.Interval, l.missing()), nil
}

// missing returns the reason to show for a time without samples that lasts until now.
func (l *Live) missing() string {
	if l.info.Error != "" {
		return reasonUnreadable + l.info.Error
	}
	if l.recorded.Load() != nil {
		return reasonNeither
	}
	return reasonNotSampled
}

// reach reads the recorded minutes between the time from and the first own sample, if there is a recorder and this time is at least
// a minute. If the files are not read within reachWait, reading continues in the background, and a later answer has the minutes.
func (l *Live) reach(ctx context.Context, from time.Time) error {
	if l.recorded.Load() == nil {
		return nil
	}
	own, _ := l.ownSamples()
	if own.IsZero() || !from.Before(own.Add(-time.Minute)) {
		return nil
	}
	l.mu.Lock()
	read := l.reached
	if read == nil {
		read = make(chan struct{})
		l.reached = read
		go l.reachBack(from, own, read)
	}
	l.mu.Unlock()
	late := time.NewTimer(reachWait)
	defer late.Stop()
	select {
	case <-read:
	case <-late.C:
	case <-ctx.Done():
	}
	return nil
}

// reachBack reads the recorded minutes between the times from and own, and then closes the channel in the parameter read.
func (l *Live) reachBack(from, own time.Time, read chan<- struct{}) {
	err := host.Catch("history", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 4*readTime)
		defer cancel()
		if err := l.earlier.enter(ctx); err != nil {
			return err
		}
		defer l.earlier.leave()
		return l.extend(ctx, Span{from, own})
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.past.first = reasonNotRecorded
	if err != nil {
		l.past.first, _, _ = strings.Cut(reasonUnread+err.Error(), "\n")
	}
	l.reached = nil
	close(read)
}

// check validates a span.
func (s *Span) check() error {
	if !s.To.After(s.From) {
		return fmt.Errorf("the span from %s to %s is empty", s.From.Format(time.RFC3339), s.To.Format(time.RFC3339))
	}
	return nil
}

func (b By) check() error {
	if b != ByClass && !slices.Contains(Properties(), b) {
		return fmt.Errorf("there is no property %q", b)
	}
	return nil
}

// `Who` implements the method of Source.
func (l *Live) Who(ctx context.Context, q Query, by By, limit int) (*Who, error) {
	if err := errors.Join(q.check(), by.check()); err != nil {
		return nil, err
	}
	if err := l.reach(ctx, q.From); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if by == ByPhrase {
		l.stacks.wanted = time.Now()
	}
	return l.past.shares(q, by, limit), nil
}

// Findings implements Source.Findings.
func (l *Live) Findings(_ context.Context, s Span) (*Findings, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.findings == nil {
		return nil, l.noSample()
	}
	return l.past.withShares(l.findings, s), nil
}

// withShares returns findings with Share set to their part of the database time of a span.
func (p *past) withShares(list *Findings, s Span) *Findings {
	f := *list
	f.Findings = slices.Clone(f.Findings)
	for i := range f.Findings {
		if x := &f.Findings[i]; x.Share != nil {
			x.Share = nil
			if share, ok := p.share(x, s); ok {
				x.Share = &share
			}
		}
	}
	return &f
}

// noSample returns the error for a source that has no sample yet.
func (l *Live) noSample() error {
	if l.info.Error != "" {
		return errors.New(l.info.Error)
	}
	return ErrNoSample
}

// Sessions implements Source.Sessions.
func (l *Live) Sessions(_ context.Context, f Filter, limit int) (*Sessions, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return nil, l.noSample()
	}
	l.stacks.wanted = time.Now()
	return l.past.sessions(l.last, f, limit), nil
}

// sessions lists the sessions of a moment that pass a filter.
func (p *past) sessions(m *moment.Moment, f Filter, limit int) *Sessions {
	list := &Sessions{Time: m.Time, Sessions: []SessionLine{}, Missing: m.Missing}
	match := p.matcher(f)
	for i := range m.Sessions {
		s := &m.Sessions[i]
		line := lineOf(s)
		if line.Class == "" && s.Type != clientBackend {
			continue
		}
		if len(f) > 0 {
			if line.Class == "" {
				continue
			}
			r := p.knownRow(s).row
			r.class = int8(slices.Index(Classes(), line.Class))
			if !match.match(&r) {
				continue
			}
		}
		list.Sessions = append(list.Sessions, *line)
	}
	slices.SortStableFunc(list.Sessions, func(a, b SessionLine) int {
		return cmp.Or(cmp.Compare(importance(&a), importance(&b)), cmp.Compare(startOf(&a), startOf(&b)))
	})
	if limit > 0 && len(list.Sessions) > limit {
		list.More = len(list.Sessions) - limit
		list.Sessions = list.Sessions[:limit]
	}
	return list
}

// importance sorts active sessions first, then open transactions. Idle sessions of this program come last.
func importance(s *SessionLine) int {
	const active, open, idle, own = 0, 1, 2, 3
	switch {
	case s.Class != "":
		return active
	case inTransaction(&s.Session):
		return open
	case s.Own:
		return own
	}
	return idle
}

// startOf returns, for sorting, the start of the statement of an active session, or the start of the state of another session. An
// unknown start sorts last.
func startOf(s *SessionLine) int64 {
	t := s.QueryStart
	if s.Class == "" || t == nil {
		t = s.StateStart
	}
	if t == nil {
		return 1 << 62
	}
	return t.UnixMicro()
}

// Blocking implements Source.Blocking.
func (l *Live) Blocking(context.Context) (*Blocking, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return nil, l.noSample()
	}
	l.stacks.wanted = time.Now()
	return BlockingOf(l.last), nil
}

// Session implements Source.Session.
func (l *Live) Session(_ context.Context, pid int, q Span) (*Session, error) {
	x, outside, err := l.session(pid, q)
	// In another PID namespace, the process id on this host may not be known.
	if err == nil && x.Now != nil && (!outside || x.Now.PID != x.Now.ServerPID) {
		x.Used = l.uses.of(&x.Now.Session)
	}
	return x, err
}

func (l *Live) session(pid int, q Span) (x *Session, outside bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return nil, false, l.noSample()
	}
	x, err = sessionOf(l.last, pid, l.past.waits(pid, q))
	return x, l.outside, err
}

// sessionOf returns a process of a moment. The error is ErrNoSession if the process is not in the moment and waits is empty.
func sessionOf(m *moment.Moment, pid int, waits []WaitSpan) (*Session, error) {
	x := &Session{Time: m.Time, Waits: waits}
	for i := range m.Sessions {
		s := &m.Sessions[i]
		if s.ServerPID == pid {
			x.Now, x.Blocker = lineOf(s), blockerText(m, s)
		}
		if slices.ContainsFunc(s.Blockers, func(b moment.Blocker) bool { return b.PID == pid && pid != 0 }) {
			x.Blocked = append(x.Blocked, s.ServerPID)
		}
	}
	if x.Now == nil && len(x.Waits) == 0 {
		return nil, ErrNoSession
	}
	return x, nil
}

// blockerText describes the first process that blocks a session; empty: none is known.
func blockerText(m *moment.Moment, s *moment.Session) string {
	if len(s.Blockers) == 0 {
		return ""
	}
	b := &s.Blockers[0]
	text := strconv.Itoa(b.PID)
	switch i := slices.IndexFunc(m.Sessions, func(x moment.Session) bool { return x.ServerPID == b.PID }); {
	case b.PID == 0 && b.GID == "" && b.XID == 0:
		text = "a prepared transaction"
	case b.PID == 0:
		text = "the prepared transaction " + cmp.Or(b.GID, strconv.FormatUint(uint64(b.XID), 10))
	case i >= 0:
		text = strings.TrimPrefix(sessionName(m.Time, &m.Sessions[i]), "PID ")
	}
	if b.Object != "" {
		text += onObject(&facts{m: m}, &moment.LockWait{Lock: b.Lock, Object: b.Object, Relation: b.Relation})
	}
	others := map[int]bool{}
	for i := range s.Blockers {
		if p := s.Blockers[i].PID; p != b.PID {
			others[p] = true
		}
	}
	if n := len(others); n > 0 {
		text += ", and by " + units.Count(n, "other process")
	}
	return text
}
