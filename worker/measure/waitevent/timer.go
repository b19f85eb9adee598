package waitevent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/cluster"
)

// Level is the amount of data that a Timer records.
type Level string

// The levels.
const (
	Off Level = "off"
	// Stats records the sums of waits by process, event and query.
	Stats Level = "stats"
	// Trace also keeps the newest waits.Record of every process.
	Trace Level = "trace"
)

// Config is the configuration of a Timer.
type Config struct {
	// Level is the level at the start; empty: Off.
	Level Level
	// Method is the best method that the Timer may use; empty: waits.Auto.
	Method waits.Method
	// Budget bounds the cost of timing, as a share of the time for which the host's processors are busy, from 0 to 1; 0: no bound.
	Budget float64
	// Current returns the running server.
	Current func() (cluster.Cluster, error)
	// Log receives messages.
	Log zerolog.Logger
}

// Timer times the wait events of one server, except while its level is Off. After a restart of the server it starts again. If
// timing costs more than Config.Budget, the Timer changes to a cheaper method.
type Timer struct {
	cfg Config
	// changed wakes Run when it may have other work to do.
	changed chan struct{}
	turns   atomic.Int64 // number of times that Run woke up, for tests

	gate     gate // locks the fields below
	level    Level
	method   waits.Method // the best method that the cost still allows
	server   *Server
	provider waits.Provider // nil: nothing is timed
	failure  error          // the reason why provider is nil although the level is not Off
	// restarted is the reason why the figures began again from zero without a request; empty: they did not. since is the time at
	// which the figures began.
	restarted string
	since     time.Time
	traces    map[int]*traced // by process id
	cost      meter
}

// Intervals of a Timer's work.
const (
	traceInterval  = 20 * time.Millisecond
	checkInterval  = time.Second
	budgetInterval = 5 * time.Second
)

// NewTimer returns a Timer. The caller must call Run, which does the work.
func NewTimer(cfg Config) *Timer {
	t := &Timer{
		cfg: cfg, level: cfg.Level, method: cfg.Method, traces: make(map[int]*traced), changed: make(chan struct{}, 1),
		gate: newGate(),
	}
	if t.level == "" {
		t.level = Off
	}
	if t.method == "" {
		t.method = waits.Auto
	}
	return t
}

// Run does the work of the Timer until ctx ends, and then ends the timing.
func (t *Timer) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var checked, measured time.Time
	for {
		t.turns.Add(1)
		timer.Stop()
		if done, err := t.gate.turn(); err != nil { // a request takes long: try again later
			timer.Reset(traceInterval)
		} else {
			pause := checkInterval
			err := host.Catch("the timing of wait events", func() error {
				if time.Since(checked) >= checkInterval {
					checked = time.Now()
					t.check()
				}
				if time.Since(measured) >= budgetInterval {
					measured = time.Now()
					t.measure()
				}
				t.collect()
				pause = t.pause()
				return nil
			})
			if err != nil {
				t.cfg.Log.Error().Err(err).Msg("wait events")
			}
			if pause > 0 {
				timer.Reset(pause)
			}
			done()
		}
		select {
		case <-timer.C:
		case <-t.changed:
		case <-ctx.Done():
			if done, err := t.gate.change(); err == nil { // after an error, the timing ends with this process
				t.close()
				done()
			}
			return
		}
	}
}

// pause returns the time until Run has work again; 0: no work until wake is called. Records of traces must be read often,
// because the kernel has little room for them.
func (t *Timer) pause() time.Duration {
	_, traces := t.provider.(waits.Tracer)
	switch {
	case t.level == Off && t.provider == nil:
		return 0
	case traces && (t.level == Trace || len(t.traces) > 0):
		return traceInterval
	}
	return checkInterval
}

// wake ends the pause of Run.
func (t *Timer) wake() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// SetLevel starts or ends the timing. If the timing cannot start now, SetLevel returns the reason, and the timing starts as
// soon as it is possible. The error can also be ErrBusy: the level is then the same as before.
func (t *Timer) SetLevel(level Level) error {
	defer t.wake()
	done, err := t.gate.change()
	if err != nil {
		return err
	}
	defer done()
	t.level = level
	if level == Off {
		t.close()
		t.restarted = ""
		t.method = t.cfg.Method
		if t.method == "" {
			t.method = waits.Auto
		}
		return nil
	}
	t.check()
	if t.failure != nil {
		return t.failure
	}
	return t.traceAll()
}

// traceAll makes the provider trace all processes if the level is Trace, else none. It returns waits.ErrUnsupported if the method
// cannot trace.
func (t *Timer) traceAll() error {
	tracer, ok := t.provider.(waits.Tracer)
	if !ok && t.level == Trace {
		return fmt.Errorf("%w: the method %s sees no single waits", waits.ErrUnsupported, t.provider.Info().Method)
	}
	if !ok {
		return nil
	}
	return tracer.TraceAll(t.level == Trace)
}

// check starts the timing if the level is not Off and nothing is timed. If the server has restarted, it starts the timing again.
func (t *Timer) check() {
	if t.provider != nil {
		err := t.provider.Check()
		if err == nil {
			return
		}
		t.cfg.Log.Warn().Err(err).Msg("wait events are counted from zero again")
		t.close()
		t.restarted = "the server restarted"
	}
	if t.level == Off {
		return
	}
	before := t.failure
	t.failure = t.open()
	if t.failure != nil && (before == nil || before.Error() != t.failure.Error()) {
		t.cfg.Log.Warn().Err(t.failure).Msg("cannot time wait events")
	}
}

// open starts the timing.
func (t *Timer) open() error {
	c, err := t.cfg.Current()
	if err != nil {
		return fmt.Errorf("%w: %w", waits.ErrServerGone, err)
	}
	server, err := Locate(c)
	if err != nil {
		return err
	}
	provider, err := waits.Open(server.Target, waits.Options{Method: t.method, Queries: true})
	if err != nil {
		return err
	}
	t.server, t.provider, t.cost, t.since = server, provider, meter{}, time.Now()
	if err := t.traceAll(); err != nil {
		t.cfg.Log.Warn().Err(err).Msg("cannot trace wait events")
	}
	info := provider.Info()
	t.cfg.Log.Info().Str("method", string(info.Method)).Str("mechanism", info.Mechanism).
		Strs("not_used", info.Reasons).Msg("timing wait events")
	if len(info.Unreachable) > 0 {
		t.cfg.Log.Warn().Ints("pids", info.Unreachable).Err(process.ErrUnreachable).
			Msg("the waits in progress of some processes are missing")
	}
	return nil
}

// close ends the timing.
func (t *Timer) close() {
	if t.provider != nil {
		t.provider.Close()
	}
	t.provider, t.server, t.failure = nil, nil, nil
	clear(t.traces)
}

// ErrOff means that wait events are not being timed.
var ErrOff = errors.New("wait events are not being timed")

// Limits are the limits of the method by which a Timer works.
type Limits struct {
	// Sampled is set if the times are estimates and waits are not counted, although the configuration allows a better method.
	Sampled bool
	// Restricted is set if Config.Level is empty: the worker has then given up the right to load programs into the kernel.
	Restricted bool
}

// Limits returns the limits of the method that is in use. Sampled is also false if nothing is timed, or if the Timer is busy for long.
func (t *Timer) Limits() Limits {
	l := Limits{Restricted: t.cfg.Level == ""}
	_ = t.use(t.gate.read, func(_ *Server, p waits.Provider) error {
		l.Sampled = p.Info().Method == waits.Sampled && t.cfg.Method != waits.Sampled
		return nil
	})
	return l
}

// use calls f with the provider while the gate is locked. The parameter take is gate.change if f changes traces or the provider's
// figures, and gate.read if f only reads. The error is ErrBusy, ErrOff, the reason why the timing could not start, or the error of
// f.
func (t *Timer) use(take func() (func(), error), f func(*Server, waits.Provider) error) error {
	done, err := take()
	if err != nil {
		return err
	}
	defer done()
	if t.provider == nil {
		if t.failure != nil {
			return t.failure
		}
		return ErrOff
	}
	return f(t.server, t.provider)
}

// Report returns the figures of all processes. The errors are those of use: ErrBusy, ErrOff and others.
func (t *Timer) Report() (report Report, err error) {
	err = t.use(t.gate.read, func(s *Server, p waits.Provider) error {
		snapshot, err := p.Snapshot()
		if err != nil {
			return err
		}
		report = s.NewReport(p.Info(), snapshot, func(int) string { return "" }, nil)
		report.Ended = s.rows(snapshot.Ended)
		for i := range report.Processes {
			report.Processes[i].PID = s.serverPID(report.Processes[i].PID)
		}
		return nil
	})
	return report, err
}

// QueryRow has the waits of a query for an event.
type QueryRow struct {
	Query      uint64
	Type, Name string
	Calls      uint64
	Total      time.Duration
	// Share is the part of the query's total time, from 0 to 1; negative: the query's time is not known.
	Share float64
}

// Queries returns the waits by query. info.Queries is false if the method cannot attribute waits to queries.
func (t *Timer) Queries() (rows []QueryRow, info waits.Info, err error) {
	err = t.use(t.gate.read, func(s *Server, p waits.Provider) error {
		info = p.Info()
		figures, err := p.Queries()
		rows = s.queryRows(figures)
		return err
	})
	return rows, info, err
}

func (s *Server) queryRows(figures []waits.QueryFigures) (rows []QueryRow) {
	ran := make(map[uint64]time.Duration)
	for _, f := range figures {
		if f.Event == 0 {
			ran[f.Query] = f.Total
		}
	}
	for _, f := range figures {
		if f.Event == 0 {
			continue
		}
		row := QueryRow{Query: f.Query, Calls: f.Calls, Total: f.Total, Share: -1}
		row.Type, row.Name, _ = s.Names.Name(f.Event)
		if total := ran[f.Query]; total > 0 {
			row.Share = min(1, float64(f.Total)/float64(total))
		}
		rows = append(rows, row)
	}
	return rows
}

// Reset forgets the figures of a process. pid is the process id that the server sees. known is false if the process has no figures.
func (t *Timer) Reset(pid int) (known bool, err error) {
	err = t.use(t.gate.read, func(s *Server, p waits.Provider) error {
		known = p.Reset(s.Cluster.Local(pid))
		return nil
	})
	return known, err
}

// ResetAll forgets all figures.
func (t *Timer) ResetAll() error {
	return t.use(t.gate.change, func(_ *Server, p waits.Provider) error {
		t.restarted = ""
		return p.ResetAll()
	})
}

// Restarted returns the reason why the figures began again from zero without a request, and the time at which they began. The
// reason is empty if they did not begin again since the last ResetAll, and also if the Timer is busy for long.
func (t *Timer) Restarted() (reason string, since time.Time) {
	done, err := t.gate.read()
	if err != nil {
		return "", time.Time{}
	}
	defer done()
	return t.restarted, t.since
}

// serverPID returns the process id that the server sees for a process id of this program.
func (s *Server) serverPID(pid int) int {
	if s.Target.ServerPID == nil {
		return pid
	}
	return s.Target.ServerPID(pid)
}

// meter measures the share of the processors' busy time that the BPF programs take.
type meter struct {
	spent, busy time.Duration // total times at the last measurement
	over        int           // number of consecutive measurements above the budget
}

// leastBusy is the least busy time of the processors for a measurement. With less, the share would not be exact enough.
const leastBusy = 500 * time.Millisecond

// measure compares the cost of timing with the budget. After two consecutive measurements above the budget, it calls stepDown.
func (t *Timer) measure() {
	if t.provider == nil || t.cfg.Budget <= 0 {
		return
	}
	cost, err := t.provider.Cost()
	busy, ok := busyTime()
	if err != nil || !ok {
		return
	}
	m := &t.cost
	spent, passed := cost.Time-m.spent, busy-m.busy
	first := m.busy == 0
	m.spent, m.busy = cost.Time, busy
	if first || passed < leastBusy {
		return
	}
	share := float64(spent) / float64(passed)
	if share <= t.cfg.Budget {
		m.over = 0
		return
	}
	m.over++
	if m.over < 2 {
		return
	}
	t.stepDown(share)
}

// stepDown starts the timing again with a cheaper method.
func (t *Timer) stepDown(share float64) {
	event := t.cfg.Log.Warn().Float64("percent", 100*share).Float64("budget_percent", 100*t.cfg.Budget)
	next := waits.Sampled
	if t.provider.Info().Method == waits.Exact {
		next = waits.Blocked
	}
	event.Str("method", string(next)).Msg("timing wait events costs too much, taking a cheaper method from zero")
	t.close()
	t.method, t.restarted = next, "timing cost too much and the worker took a cheaper method"
	t.check()
}

// busyTime returns the total busy time of the host's processors since the host was started; false: not known.
func busyTime() (time.Duration, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var user, nice, system, idle, iowait, irq, softirq int64
	_, err = fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq)
	return time.Duration(user+nice+system+irq+softirq) * (time.Second / 100), err == nil
}
