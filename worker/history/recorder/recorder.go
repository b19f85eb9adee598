// Package recorder writes the history of a server: once a second it reads the state of each session, and appends the sessions that
// are not idle to a store. Doing both once is called a sweep. The recorder reads the server's memory only. So it needs no session,
// and also works while the server accepts no connections.
//
// A separate goroutine writes the store (disk.go): looks and rules do not wait for the disk.
//
// TakeStack takes the stack of one process without stopping it (stacktaker.go), with a phrase for what the process does.
//
// The package does not know the readers of the history. It logs only to Options.Log.
package recorder

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/locks"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/units"
)

// Texts selects the form in which texts of statements are recorded.
type Texts string

// The kinds of texts.
const (
	TextsOff        Texts = "off"
	TextsNormalized Texts = "normalized"
	TextsAll        Texts = "all"
)

// Options of a recorder. Store.Dir, DataDir and Server must be set.
type Options struct {
	// Store has the directory and the bounds of the store. The recorder sets its Meta.
	Store store.Options
	// DataDir is the server's data directory. Its control file identifies the cluster, also while the server does not run.
	DataDir string
	// Server returns the running server, or an error if it does not run.
	Server func() (cluster.Cluster, error)
	// Period is the time between sweeps; 0: a second.
	Period time.Duration
	// Texts is the form in which query texts are kept; empty: TextsNormalized.
	Texts Texts
	// Redact names the roles whose query texts are not kept. Redacted has the roles that had one of these names earlier, for
	// recorders that share it; nil: the recorder has its own.
	Redact   []string
	Redacted *RedactedRoles
	// Version is the version of this program.
	Version string
	// Watch, if not nil, is called with each look, even while the store cannot be written. It must not block.
	Watch func(*rules.Look)
	// Next, if not nil, returns how long after the last look Watch needs another look; 0: the next sweep is soon enough. If the
	// next sweep is more than a second later, the recorder makes a look at that time, and writes nothing.
	Next func() time.Duration
	// TakeStack, if not nil, returns the stack of a process without stopping it, within about the limit.
	TakeStack func(ctx context.Context, pid int, limit time.Duration) (*Stack, error)
	// TakePlan, if not nil, describes the plan of a process, like the function TakePlan. If TakeStack is nil, the recorder does not
	// call it.
	TakePlan func(ctx context.Context, pid int) (string, error)
	// Log gets a line when recording begins to fail, and when it works again. The zero value discards these lines.
	Log zerolog.Logger
	// Progress, if not nil, counts the sweeps.
	Progress *Progress
}

// Limits of the recorder's own cost.
const (
	defaultPeriod = time.Second
	slowPeriod    = 10 * time.Second // between sweeps while the cost exceeds costLimit
	costSpan      = time.Minute      // time over which the cost is measured
	costLimit     = 0.05             // of a processor
	renew         = time.Minute      // between looks at the control file
	maxPause      = time.Minute      // between attempts to open the store or the server's memory
	steady        = 10               // sweeps on disk after which recording works again
	maxTold       = 10               // kinds of errors that are logged until recording works again
)

// Recorder records one server. It must be used by one goroutine at a time.
type Recorder struct {
	o         Options
	disk      disk
	state     *state.Reader
	locks     *locks.Reader
	noLocks   error // why locks is nil
	readWait  pause
	before    map[identity]store.Row // rows of the last sweep, for the method ended
	texts     map[string]string      // normalized texts of the last sweep's statements, by their full text
	last      time.Time              // of the last sweep
	cost      meter
	slots     int                      // connection slots for ordinary roles; 0: not known
	waited    map[string]time.Duration // time for which each thread has waited for a processor since its start; nil: not read yet
	stopped   time.Duration            // process.Throttled at the same time
	throttled time.Duration            // time in the last sweep for which a CPU quota stopped the worker
	stacks    *stackTaker              // nil: no stacks
	statuses  statuses                 // of processes
	told      map[string]bool          // kinds of errors that were logged since recording worked last
	good      int                      // sweeps on disk since the last error
	began     bool                     // the log says that recording works
}

// identity identifies a session of the server.
type identity struct {
	pid   int32 // as the server sees it
	start int64 // of the backend, microseconds since 1970; 0: not known
}

// New returns a recorder. Run does the work.
func New(o Options) *Recorder {
	if o.Period <= 0 {
		o.Period = defaultPeriod
	}
	if o.Texts == "" {
		o.Texts = TextsNormalized
	}
	if o.Progress == nil {
		o.Progress = new(Progress)
	}
	if o.Redacted == nil {
		o.Redacted = new(RedactedRoles)
	}
	r := &Recorder{o: o, cost: meter{period: o.Period}, told: map[string]bool{}}
	r.disk.o = &r.o
	if o.TakeStack != nil {
		r.stacks = &stackTaker{take: o.TakeStack, known: map[identity]*knownStack{}}
		if o.TakePlan != nil {
			r.stacks.plans = &planTaker{take: o.TakePlan, known: map[identity]*takenPlan{}}
		}
	}
	return r
}

// Run records until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	runtime.LockOSThread() // the cost is the processor time of this thread
	defer runtime.UnlockOSThread()
	defer r.close()
	planned, begin := time.Now(), time.Time{}
	for {
		at, only := r.nextLook(begin, planned)
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		used, throttled := threadTime(), process.Throttled()
		begin = time.Now()
		err := host.Catch("recorder", func() error {
			if only {
				r.glance(begin)
				return nil
			}
			return r.sweep(begin, begin.Sub(planned))
		})
		var failed *host.Panic
		if errors.As(err, &failed) { // after a panic the readers may be in a wrong state
			r.forget()
		}
		// The kernel does not count the time for which a quota stops a thread as waiting for a processor (see starved). If a quota
		// has stopped the thread during the sweep, the delay before the sweep is regarded as throttled too.
		if r.throttled = min(process.Throttled()-throttled, time.Since(begin)-(threadTime()-used)); r.throttled > 0 {
			r.throttled += max(0, begin.Sub(at))
		}
		if only && err == nil {
			r.cost.spend(threadTime() - used)
			continue
		}
		r.report(err)
		r.cost.add(begin, threadTime()-used)
		for planned = planned.Add(r.cost.period); !planned.After(time.Now()); {
			planned = planned.Add(r.cost.period)
		}
	}
}

// evidence is the shortest time between a look and the next look for the rules. It is also the time by which a look for the rules
// may be late: if the next sweep comes within this time, the recorder makes no extra look before the sweep.
const evidence = time.Second

// nextLook returns the time of the next look. only is true if this is a look for the rules, and false if it is the planned sweep.
// Without Options.Next, and while the meter has made sweeps rare because of their cost, there are no looks for the rules.
func (r *Recorder) nextLook(last, planned time.Time) (at time.Time, only bool) {
	if r.o.Next == nil || last.IsZero() || r.cost.period > r.o.Period {
		return planned, false
	}
	next := r.o.Next()
	if at = last.Add(max(next, evidence)); next <= 0 || planned.Sub(at) <= evidence {
		return planned, false
	}
	return at, true
}

// glance makes a look for the rules between two sweeps. An error of reading is not logged: the next sweep does that, if it has the
// error too.
func (r *Recorder) glance(now time.Time) {
	saw, err := r.read(now)
	l := r.look(now, 0, &saw, err)
	l.Stacks = nil // r.stacks.fresh has the stacks of the last sweep
	r.o.Watch(l)
}

func (r *Recorder) close() {
	r.statuses.close()
	if r.stacks != nil {
		r.stacks.close()
	}
	results, err := r.disk.close()
	if failed := r.settle(results); err != nil || failed != nil {
		r.report(errors.Join(err, failed))
	}
}

// forget drops the readers of the server's memory. The next sweep opens them again.
func (r *Recorder) forget() {
	r.state, r.locks, r.noLocks = nil, nil, nil
	r.statuses.close()
	if r.stacks != nil {
		r.stacks.close()
	}
}

// report logs the first success, and each kind of error once until recording works again. It logs that recording works again only
// after the number steady of sweeps without an error, because on a disk that is nearly full, sweeps fail and succeed by turns.
func (r *Recorder) report(err error) {
	log := r.o.Log.With().Str("directory", r.o.Store.Dir).Logger()
	switch text := kind(err); {
	case errors.Is(err, errPending):
	case err != nil:
		r.good = 0
		if !r.told[text] && len(r.told) < maxTold {
			r.told[text] = true
			log.Error().Err(err).Msg("history is not recorded")
		}
	case !r.began && len(r.told) == 0:
		r.began = true
		log.Info().Dur("period_ms", r.o.Period).Str("query_text", string(r.o.Texts)).Msg("history is recorded")
	case len(r.told) > 0:
		if r.good++; r.good >= steady {
			clear(r.told)
			r.began = true
			_, lost, _ := r.o.Progress.Figures()
			log.Info().Uint64("lost_sweeps", lost).Msg("history is recorded")
		}
	}
}

// kind returns the text of an error without numbers, because a number such as the free space may differ each time.
func kind(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	var failed *host.Panic
	if errors.As(err, &failed) {
		text = fmt.Sprint(failed.Place, failed.Value)
	}
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, text)
}

// Sweep reads the sessions and appends them to the store. delay is the time by which the sweep begins later than planned. The
// errors are those of the store and of reading the sessions; a server that does not run is not an error. Sweep does not wait for a
// slow disk: a later call of Sweep then returns the error of this write.
func (r *Recorder) Sweep(now time.Time, delay time.Duration) error {
	err := r.sweep(now, delay)
	if errors.Is(err, errPending) {
		return nil
	}
	return err
}

func (r *Recorder) sweep(now time.Time, delay time.Duration) error {
	if err := r.disk.closed(now); err != nil && r.o.Watch == nil {
		r.disk.lose(err)
		return err
	}
	s := store.Sweep{Time: now, Period: r.since(now), Delay: max(0, delay)}
	var notes []string
	if delay > r.cost.period {
		notes = append(notes, fmt.Sprintf("%s late: the host had no time for the worker, or the worker was stopped",
			delay.Round(time.Millisecond)))
	}
	if r.cost.period > r.o.Period {
		notes = append(notes, fmt.Sprintf("a sweep each %s: the recorder has used more than %.0f %% of a processor", slowPeriod, costLimit*100))
	}
	saw, readErr := r.read(now)
	if readErr != nil {
		notes = append(notes, "no sessions: "+readErr.Error())
	}
	if r.stacks != nil && readErr == nil {
		list, note := r.stacks.add(now, r.cost.period, delay, saw.rows, saw.procs)
		if s.Stacks = list; note != "" {
			saw.notes = append(saw.notes, note)
		}
	}
	if r.o.Watch != nil {
		r.o.Watch(r.look(now, delay, &saw, readErr))
	}
	s.Rows, s.Note = saw.rows, strings.Join(append(notes, saw.notes...), "; ")
	r.last = now
	r.remember(s.Rows)
	results := r.disk.append(now, r.cost.period, &s)
	if err := r.settle(results); err != nil {
		return err
	}
	if errors.Is(readErr, errDown) {
		return nil // an administrator may have stopped the server
	}
	if readErr == nil && len(results) == 0 {
		return errPending
	}
	return readErr
}

// settle adds the cost of the written sweeps, and returns the error of the last result; nil: it has none. If a sweep that was not
// written had the row for the end of a session, the next sweep gets such a row again.
func (r *Recorder) settle(results []written) (err error) {
	for i := range results {
		w := &results[i]
		r.cost.spend(w.used)
		if err = w.err; err == nil || w.sweep == nil {
			continue
		}
		for j := range w.sweep.Rows {
			row := &w.sweep.Rows[j]
			if id := (identity{row.PID, row.Start}); row.Ended {
				if _, found := r.before[id]; !found {
					r.before[id] = *row
				}
			}
		}
	}
	return err
}

// remember keeps the rows of a sweep for the method ended. If a session of an earlier sweep has no row in this sweep, not even for
// its end, it could not be read. Its earlier row stays.
func (r *Recorder) remember(rows []store.Row) {
	if r.before == nil {
		r.before = map[identity]store.Row{}
	}
	for i := range rows {
		id := identity{rows[i].PID, rows[i].Start}
		if rows[i].Ended {
			delete(r.before, id)
		} else {
			r.before[id] = rows[i]
		}
	}
}

// since returns the time for which the rows of a sweep count: the time since the last sweep. If this is more than two periods,
// since returns one period, because nothing is known about the rest of that time.
func (r *Recorder) since(now time.Time) time.Duration {
	since := now.Sub(r.last)
	if r.last.IsZero() || since <= 0 || since > 2*r.cost.period {
		return r.cost.period
	}
	return since
}

// errDown means that the server does not run.
var errDown = errors.New("the server does not run")

// seen has the data that a sweep has read.
type seen struct {
	moment  *moment.Moment // nil: nothing could be read
	rows    []store.Row
	procs   map[int32]rules.Proc // by the server's process id; nil without Options.Watch and TakeStack
	waits   map[int]*locks.Wait  // by the server's process id; nil: not read, or there are no waits
	partial bool                 // some of the sessions could not be read
	notes   []string             // notes about missing parts
}

// read reads the sessions, their blockers and, if needed, the kernel's state of their processes. If the server does not run, it
// returns errDown or waits.ErrServerGone, with rows for the sessions that have ended.
func (r *Recorder) read(now time.Time) (s seen, err error) {
	m, err := r.moment(now)
	if errors.Is(err, errDown) || errors.Is(err, waits.ErrServerGone) {
		s.rows = r.ended(nil, nil, nil)
		return s, err
	}
	if err != nil {
		return s, err
	}
	s.moment, s.notes, s.partial = m, slices.Clone(m.Missing), unread(m.Missing)
	blocked, err := r.waits(m)
	if err != nil {
		s.notes = append(s.notes, "no blockers: "+err.Error())
	}
	s.waits = blocked
	rows, incomplete, shortened := r.rows(m, blocked)
	if incomplete > 0 {
		s.notes = append(s.notes, "blockers of "+units.Count(incomplete, "session")+" are not known")
	}
	if shortened > 0 {
		s.notes = append(s.notes, fmt.Sprintf("only the %d oldest blockers of %s are recorded", maxBlockers, units.Count(shortened, "session")))
	}
	if r.o.Watch != nil || r.stacks != nil {
		s.procs = r.procs(rows, m.Sessions)
	}
	rows = append(rows, r.ended(rows, m.Sessions, m.Missing)...)
	s.rows = rows
	return s, nil
}

// moment reads the sessions. If the server was restarted, it opens the readers of the server's memory again.
func (r *Recorder) moment(now time.Time) (*moment.Moment, error) {
	c, err := r.o.Server()
	if err != nil {
		r.forget()
		return nil, fmt.Errorf("%w: %w", errDown, err)
	}
	if r.state == nil || !r.state.Cluster().Same(c) {
		if err := r.readWait.err(now); err != nil {
			return nil, err
		}
		r.forget()
		if r.state, err = state.Open(c); err != nil {
			return nil, r.readWait.after(now, err)
		}
		r.readWait, r.slots = pause{}, r.state.OrdinarySlots()
		if r.stacks != nil {
			r.stacks.local, r.stacks.parents = r.state.Cluster().Local, []int{r.state.Cluster().PostmasterPID}
		}
		if r.locks, r.noLocks = locks.Open(c); r.locks != nil {
			r.locks.MaxSoft = maxBlockers // further soft blockers have rows of their own, since they wait too
		}
	}
	if r.slots == 0 { // the read before may not have ended in time
		r.slots = r.state.OrdinarySlots()
	}
	m, err := r.state.Read(state.Options{Texts: true, Logins: len(r.o.Redact) > 0})
	if err != nil {
		r.forget()
		return nil, err
	}
	if len(r.o.Redact) > 0 {
		r.o.Redacted.add(r.state.RolesNamed(m, r.o.Redact))
	}
	return m, nil
}

// waits reads the locks, if the wait event of a session may have blockers. The result is by the server's process id; nil: no
// session waits in this way.
func (r *Recorder) waits(m *moment.Moment) (map[int]*locks.Wait, error) {
	if !slices.ContainsFunc(m.Sessions, func(s moment.Session) bool { return s.Wait != nil && mayHaveBlockers(s.Wait.Type) }) {
		return nil, nil //nolint:nilnil // no session waits
	}
	if r.locks == nil {
		return nil, r.noLocks
	}
	all, err := r.locks.Read()
	if err != nil {
		return nil, err
	}
	byPID := make(map[int]*locks.Wait, len(all.Waits))
	for i := range all.Waits {
		byPID[all.Waits[i].PID] = &all.Waits[i]
	}
	return byPID, nil
}

func mayHaveBlockers(class string) bool {
	return slices.Contains([]string{"Lock", "LWLock", "BufferPin", "Buffer", "IPC"}, class)
}

// pause delays the next attempt after a failed one: by a second first, then twice as long each time, up to maxPause.
type pause struct {
	until  time.Time
	length time.Duration
	why    error
}

// err returns the error that began the pause while the pause lasts, and nil afterwards. A pause that would still last longer than
// maxPause counts as over, because the clock was set back.
func (p *pause) err(now time.Time) error {
	if p.why != nil && now.Before(p.until) && p.until.Sub(now) <= maxPause {
		return p.why
	}
	return nil
}

// after begins a pause because of an error, and returns the error.
func (p *pause) after(now time.Time, err error) error {
	p.length = min(maxPause, max(time.Second, 2*p.length))
	p.until, p.why = now.Add(p.length), err
	return err
}

// meter measures the processor time of sweeps, and makes the period between them longer while this time exceeds costLimit.
type meter struct {
	period, normal time.Duration
	begin          time.Time
	used           time.Duration
	sweeps         int
}

// spend adds the processor time of a look between two sweeps.
func (m *meter) spend(used time.Duration) { m.used += used }

// add adds the processor time of a sweep. After each costSpan, it chooses the period by the measured cost.
func (m *meter) add(at time.Time, used time.Duration) {
	if m.normal == 0 {
		m.normal = m.period
	}
	if m.begin.IsZero() || at.Before(m.begin) {
		m.begin = at
	}
	m.used += used
	m.sweeps++
	span := at.Sub(m.begin)
	if span < costSpan {
		return
	}
	each := m.used.Seconds() / float64(m.sweeps)
	switch share := each / m.normal.Seconds(); {
	case m.used.Seconds()/span.Seconds() > costLimit:
		m.period = max(m.normal, slowPeriod)
	case share < costLimit/2: // half of the limit, so that the period does not change to and fro
		m.period = m.normal
	}
	m.begin, m.used, m.sweeps = at, 0, 0
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
