package recorder

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/units"
)

// Limits of a disk that does not answer.
const (
	maxWaiting = 30 // sweeps that wait for the disk; further ones are lost
	maxGlance  = 100 * time.Millisecond
	slowDisk   = 5 * time.Second // after which the error is reported
	closeLimit = 5 * time.Second
)

// errPending means that the disk has not answered yet.
var errPending = errors.New("the disk has not answered yet")

// Progress counts the sweeps of a recorder. The zero value is ready. It is safe for concurrent use.
type Progress struct {
	lock          sync.Mutex
	written, lost uint64
	failing       time.Time // when the first of the failed sweeps in a row failed; zero: the last sweep was written
	loss          Loss
}

// Loss describes sweeps that were lost.
type Loss struct {
	// Sweeps were lost between Since and Until; 0: none since the start of the worker.
	Sweeps       uint64
	Since, Until time.Time
	// Failing is set if no sweep was written since.
	Failing bool
	// Reason is the last error, and Remedy is what an administrator can do; empty: not known.
	Reason, Remedy string
}

// lossGap is the time between two lost sweeps after which they are two losses. On a disk that is nearly full, sweeps fail and succeed
// by turns.
const lossGap = time.Minute

// Figures returns the numbers of written and lost sweeps since the start of the worker, and for how long every sweep has failed; 0:
// the last sweep was written.
func (p *Progress) Figures() (written, lost uint64, failing time.Duration) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if !p.failing.IsZero() {
		failing = max(1, time.Since(p.failing))
	}
	return p.written, p.lost, failing
}

// Loss returns the last loss.
func (p *Progress) Loss() Loss {
	p.lock.Lock()
	defer p.lock.Unlock()
	l := p.loss
	l.Failing = !p.failing.IsZero()
	return l
}

// succeed counts a written sweep.
func (p *Progress) succeed() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.written++
	p.failing = time.Time{}
}

// fail counts lost sweeps, or notes with lost 0 that the disk does not answer.
func (p *Progress) fail(lost uint64, why error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	now := time.Now()
	if p.loss.Since.IsZero() || p.failing.IsZero() && now.Sub(p.loss.Until) >= lossGap {
		p.loss = Loss{Since: now}
	}
	if p.failing.IsZero() {
		p.failing = now
	}
	p.lost += lost
	p.loss.Sweeps += lost
	p.loss.Until, p.loss.Reason, p.loss.Remedy = now, why.Error(), ""
	var r *store.Remedied
	if errors.As(why, &r) {
		p.loss.Reason, p.loss.Remedy = r.Err.Error(), r.Remedy
	}
}

// disk opens the store and writes sweeps in a separate goroutine. So a disk that does not answer does not delay the recorder's
// looks at the server and the rules. The recorder's goroutine calls the methods above run. The separate goroutine runs the method
// run and the methods below it.
type disk struct {
	o       *Options
	sweeps  chan *store.Sweep // to run; nil: run is not running
	results chan written
	ended   chan struct{}
	waiting []time.Time // times of the sweeps that were handed to run and have no result yet
	lost    int         // lost sweeps that no later sweep has in its field Lost
	retry   pause       // pause after a failed attempt to open the store

	writer  *store.Writer
	meta    store.Meta
	checked time.Time       // time at which the control file was read last
	server  cluster.Cluster // the last server that ran when the control file was read
	wait    pause
	unsaid  int         // lost sweeps that the writer has not counted
	notes   store.Notes // that no sweep has yet
	failed  error       // error with which run has ended
	// unsynced is set after store.ErrSync, until a sweep was written to a later journal.
	unsynced bool
	freed    time.Time // time of the last failed attempt to open the store that may have removed an hour
}

// written is the result of a sweep.
type written struct {
	sweep *store.Sweep
	err   error
	retry pause
	used  time.Duration // processor time of writing it
}

// closed returns the error of the last attempt to open the store until the next attempt is due; otherwise nil.
func (d *disk) closed(now time.Time) error { return d.retry.err(now) }

// lose counts a sweep that is lost because of an error.
func (d *disk) lose(why error) {
	d.lost++
	d.o.Progress.fail(1, why)
}

// append hands a sweep to run, and returns the results that have arrived. It waits for them for at most maxGlance or a quarter of
// the period. If maxWaiting sweeps wait already, the sweep is lost.
func (d *disk) append(now time.Time, period time.Duration, s *store.Sweep) []written {
	if d.sweeps == nil {
		d.sweeps, d.results, d.ended = make(chan *store.Sweep, maxWaiting), make(chan written, maxWaiting), make(chan struct{})
		go d.run()
	}
	if len(d.waiting) == maxWaiting {
		d.lose(d.noAnswer(now))
		return d.slow(now, d.collect(0))
	}
	s.Lost, d.lost = d.lost, 0
	d.waiting = append(d.waiting, now)
	d.sweeps <- s
	limit := min(maxGlance, period/4) //nolint:mnd // the rest is for the next look
	if now.Sub(d.waiting[0]) >= slowDisk {
		limit = 0
	}
	return d.slow(now, d.collect(limit))
}

// slow adds a result with an error if the oldest sweep without a result has waited for slowDisk.
func (d *disk) slow(now time.Time, results []written) []written {
	if len(d.waiting) == 0 || now.Sub(d.waiting[0]) < slowDisk {
		return results
	}
	err := d.noAnswer(now)
	d.o.Progress.fail(0, err)
	return append(results, written{err: err})
}

// noAnswer returns the error of a disk that does not answer.
func (d *disk) noAnswer(now time.Time) error {
	return &store.Remedied{
		Err:    fmt.Errorf("the disk has not answered for %.0f s; up to %d sweeps wait for it", now.Sub(d.waiting[0]).Seconds(), maxWaiting),
		Remedy: "look for errors of the disk of " + d.o.Store.Dir + " in the kernel's log (dmesg)",
	}
}

// collect returns the results that have arrived, and waits for the missing results for at most the time limit.
func (d *disk) collect(limit time.Duration) (list []written) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for len(d.waiting) > 0 {
		var w written
		select {
		case w = <-d.results:
		default:
			select {
			case w = <-d.results:
			case <-timer.C:
				return list
			}
		}
		d.waiting, d.retry = d.waiting[1:], w.retry
		if w.err == nil {
			d.o.Progress.succeed()
		} else {
			d.o.Progress.fail(1, w.err)
		}
		list = append(list, w)
	}
	return list
}

// close makes run write the sweeps that wait and then end, and returns their results. It returns an error if run does not end
// within closeLimit.
func (d *disk) close() (results []written, err error) {
	if d.sweeps == nil {
		return nil, nil
	}
	close(d.sweeps)
	d.sweeps = nil
	select {
	case <-d.ended:
		return d.collect(0), d.failed
	case <-time.After(closeLimit):
		return nil, fmt.Errorf("%w: %s", errSlowEnd, units.Plural(len(d.waiting), "%d {sweep is|sweeps are} not written"))
	}
}

var errSlowEnd = errors.New("the disk does not answer while the recorder ends")

// run writes the sweeps.
func (d *disk) run() {
	runtime.LockOSThread() // because the processor time of this thread is measured
	defer runtime.UnlockOSThread()
	defer close(d.ended)
	for s := range d.sweeps {
		used := threadTime()
		err := host.Catch("history", func() error { return d.write(s) })
		var failed *host.Panic
		if errors.As(err, &failed) { // after a panic, the state of the writer may be wrong
			d.unsaid++
			_ = d.reopen()
		}
		d.results <- written{sweep: s, err: err, retry: d.wait, used: threadTime() - used}
	}
	d.failed = d.reopen()
}

// reopen closes the writer, so that the next sweep opens the store again.
func (d *disk) reopen() (err error) {
	if d.writer != nil {
		d.unsaid += d.writer.Lost()
		err = d.writer.Close()
		d.writer = nil
	}
	return err
}

// write writes a sweep, and adds the number of sweeps that were lost before it to its field Lost.
func (d *disk) write(s *store.Sweep) error {
	if err := d.open(s.Time); err != nil {
		d.unsaid += s.Lost + 1
		return err
	}
	s.Lost += d.unsaid
	d.unsaid = 0
	err := d.writer.Append(s)
	switch {
	case err == nil:
		d.wait, d.unsynced = pause{}, false
	case errors.Is(err, store.ErrBroken):
		d.unsynced = d.unsynced || errors.Is(err, store.ErrSync)
		err = d.wait.after(s.Time, err)
		_ = d.reopen()
	case errors.Is(err, store.ErrRemoved):
		_ = d.reopen()
	}
	return err
}

// open opens the store. Every minute, and when the server was started again, it makes the description for the store (Meta) again from
// the server's control file, and opens the store again if the description has changed.
func (d *disk) open(now time.Time) error {
	if d.writer != nil && now.Sub(d.checked).Abs() < renew && !d.restarted() {
		return nil
	}
	if err := d.wait.err(now); err != nil {
		return err
	}
	meta, err := d.describe()
	if err != nil {
		if d.writer != nil { // a file that cannot be read for a moment
			d.checked = now
			return nil
		}
		return d.wait.after(now, err)
	}
	d.checked = now
	if d.writer != nil {
		if meta == d.meta {
			return nil
		}
		_ = d.reopen()
	}
	o := d.o.Store
	o.Meta, o.CloseJournal, o.Notes = meta, d.unsynced, &d.notes
	o.KeepHours = now.Sub(d.freed).Abs() < time.Minute
	w, err := store.Open(o)
	if err != nil {
		if !o.KeepHours {
			d.freed = now
		}
		return d.wait.after(now, err)
	}
	d.writer, d.meta = w, meta
	return nil
}

// restarted reports whether the server was started since the control file was read. The data directory can then be another one.
func (d *disk) restarted() bool {
	c, err := d.o.Server()
	return err == nil && !c.Same(d.server)
}

// describe returns the description of the server and the recorder for the files of the store.
func (d *disk) describe() (store.Meta, error) {
	c, down := d.o.Server() // before the control file: if the server is started meanwhile, restarted reports it
	control, err := cluster.ReadControl(d.o.DataDir)
	if err != nil {
		return store.Meta{}, err
	}
	m := store.Meta{SystemID: control.ID(), Timeline: control.Timeline, DataDir: d.o.DataDir}
	m.Host, _ = os.Hostname()
	if down == nil {
		m.ServerVersion, d.server = strconv.Itoa(c.Version), c
	} else {
		m.ServerVersion = d.meta.ServerVersion
	}
	m.Recorder = fmt.Sprintf("%s period=%s texts=%s", d.o.Version, d.o.Period, d.o.Texts)
	return m, nil
}
