// Package node serves every PostgreSQL cluster of a host: it looks for postmasters in all containers and starts one
// worker process for each. A worker has its own spool, key, limits, user id and memory. A worker that hangs or
// dies affects no other.
//
// The package must not know what a worker does, and opens no connection to a server.
package node

import (
	"context"
	"errors"
	"hash/maphash"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// Config configures Run; the zero value of each field but Command is a default.
type Config struct {
	// Command returns the command that serves the cluster in a data directory, whose server runs as uid. It ends when its
	// standard input ends.
	// Slots are numbers from 0 to Max-1. Workers that run at the same time have different slots, and a data directory
	// keeps its slot (see slots.go). listener is the socket on which the worker accepts connections; nil: it has none.
	Command func(dataDir string, uid, slot int, listener *os.File) *exec.Cmd
	// Reload makes Run ask each worker to read its files again: it writes a byte to the worker's standard input. A signal would
	// need CAP_KILL. nil: workers are never asked.
	Reload <-chan struct{}
	// Address returns the TCP address on which the worker with a slot accepts connections. nil: the workers have none.
	Address func(slot int) string
	// Log receives what happens to the workers.
	Log zerolog.Logger
	// Max is the largest number of workers; 0 means DefaultMax.
	Max int
	// Interval is the time between two looks at new processes of the host; 0 means one second. While no process starts
	// and no server changes, it becomes up to idleFactor times longer.
	Interval time.Duration
	// Grace is the time that a worker has to end after its cluster; 0 means ten seconds.
	Grace time.Duration
	// Proc is the directory with the processes; empty means /proc.
	Proc string
	// Below are directories, as the servers name them: only clusters in or below them are served. None means all.
	Below []string
	// UIDs are the user ids of the servers to serve; none means all. Directories can be imitated in a mount namespace,
	// user ids cannot.
	UIDs []int
}

// DefaultMax is the largest number of workers of one host by default. Each needs some 20 to 60 MB.
const DefaultMax = 64

// The pauses between attempts to start the worker of a cluster. A worker that ran longer than maxPause starts anew at
// once.
const (
	minPause = time.Second
	maxPause = time.Minute
)

// Process is a process that may be a postmaster.
type Process struct {
	PID   int
	Start uint64 // proc(5) starttime
	// DataDir is its working directory: as the process names it, and once it is proved to be a postmaster, as this process
	// reaches it.
	DataDir string
	UID     int // effective user id
	Account int // see accountOf
	// Unnamed means that its program is not called postgres.
	Unnamed bool
}

// key is one incarnation of a process.
type key struct {
	pid   int
	start uint64
}

// Run serves until ctx ends, and then waits for its workers. It returns an error only if it cannot look at processes.
func Run(ctx context.Context, cfg Config) error {
	s := newSupervisor(cfg)
	defer s.close()
	if err := s.look(ctx); err != nil {
		return err
	}
	timer := time.NewTimer(s.pause())
	defer timer.Stop()
	s.Log.Info().Int("clusters", s.named()).Msg("serving every cluster of this host")
	for {
		select {
		case <-ctx.Done():
			s.stopAll()
			return nil
		case e := <-s.events:
			s.handle(ctx, e)
		case <-s.Reload:
			s.reload()
		case <-timer.C:
			if err := s.look(ctx); err != nil {
				s.Log.Error().Err(err).Msg("the processes of this host cannot be listed")
			}
			timer.Reset(s.pause())
		}
	}
}

// reloadTime bounds the write to a worker that does not read its standard input.
const reloadTime = 100 * time.Millisecond

// reload asks each worker that runs to read its files again.
func (s *supervisor) reload() {
	asked := 0
	for _, c := range s.clusters {
		if c.phase != running {
			continue
		}
		err := c.line.SetWriteDeadline(time.Now().Add(reloadTime))
		if err == nil {
			_, err = c.line.Write([]byte{'\n'})
		}
		if err != nil { // a worker that has just ended reads the files when it starts again
			s.Log.Warn().Err(err).Str("cluster", c.DataDir).Msg("the worker was not asked to read its files again")
			continue
		}
		asked++
	}
	s.Log.Info().Int("workers", asked).Msg("asked the workers to read their files again")
}

// close frees what the supervisor holds.
func (s *supervisor) close() {
	s.ports.close()
	for _, c := range s.clusters {
		c.endWatch()
	}
}

// The time between two looks grows while nothing happens: by one interval after each idleLooks looks, up to idleFactor
// intervals.
const (
	idleLooks  = 10
	idleFactor = 4
)

// pause returns the time until the next look.
func (s *supervisor) pause() time.Duration {
	for _, c := range s.clusters {
		if c.phase != running && c.phase != refused || c.phase == refused && !c.Unnamed && c.pause < maxPause {
			s.idle = 0
		}
	}
	return s.Interval * time.Duration(min(1+s.idle/idleLooks, idleFactor))
}

// named returns the number of processes that are called postgres.
func (s *supervisor) named() (n int) {
	for _, c := range s.clusters {
		if !c.Unnamed {
			n++
		}
	}
	return n
}

func (c Config) withDefaults() Config {
	if c.Max == 0 {
		c.Max = DefaultMax
	}
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	return c
}

func newSupervisor(cfg Config) *supervisor {
	cfg = cfg.withDefaults()
	return &supervisor{
		Config: cfg, clusters: map[key]*cluster{}, events: make(chan event), budgets: map[int]*budget{},
		scan: newScanner(cfg), ports: newPorts(cfg), proof: prove,
	}
}

// supervisor has the state of all clusters. Only the goroutine of Run changes it.
type supervisor struct {
	Config

	clusters map[key]*cluster
	events   chan event // from goroutines that wait for one cluster
	scan     *scanner
	ports    *ports
	budgets  map[int]*budget // by account
	idle     int             // looks without a change
	denied   int             // processes that this user may not look at, as logged
	left     int             // processes left out because a user has too many, as logged
	slots    []slot
	settleBy time.Time // no worker starts before, unless the proofs of the first look have ended
	settled  bool

	beyond       int // clusters that have no worker because of Max, as logged
	beyondLogged time.Time
	leftLogged   time.Time

	// Tests replace this.
	proof func(proc string, p Process) (dataDir string, err error)

	lines   bucket // of explain
	leftOut int    // lines that were not written
}

// phase is the state of a cluster's worker.
type phase int

const (
	unproved phase = iota // to be looked at when there is a slot
	proving               // a goroutine looks at its files, which may take long
	refused               // not a postmaster, or not accessible: looked at again after the pause
	waiting               // to be started at the time next
	running               // its worker runs
	stopping              // its worker is ending
)

// cluster is one postmaster and its worker.
type cluster struct {
	Process

	phase   phase
	name    string    // the data directory as the process names it
	since   time.Time // in the phases proving and stopping: the time at which it began
	next    time.Time
	pause   time.Duration
	began   time.Time
	reason  uint64 // hash of the reason why it has no worker, as logged
	command *exec.Cmd
	slot    int
	line    *os.File // the write end of the worker's standard input
	gone    bool
	yields  bool   // its worker ends for another cluster, or to get its port
	unwatch func() // ends the watch for the end of the postmaster; nil: there is none
}

// event is something that happened to one cluster.
type event struct {
	key     key
	left    bool // the postmaster ended
	ended   bool // the worker ended; if neither, the files were looked at
	dataDir string
	err     error
}

// look compares the processes of the host with the known clusters.
func (s *supervisor) look(ctx context.Context) error {
	now := time.Now()
	examined, err := s.scan.look(now)
	if err != nil {
		return err
	}
	s.idle++
	s.openPorts(now)
	if examined {
		s.report(now)
		found := make(map[key]Process, len(s.scan.found))
		for pid, p := range s.scan.found {
			found[key{pid, p.Start}] = p
		}
		s.update(ctx, found, now)
		return nil
	}
	s.leaveEnded()
	s.proveDue(ctx, now)
	s.startDue(ctx, now)
	return nil
}

// report logs which processes get no worker and no further line.
func (s *supervisor) report(now time.Time) {
	if denied := len(s.scan.denied); denied != s.denied {
		s.denied = denied
		if denied > 0 {
			s.Log.Warn().Int("processes", denied).Msg("this program may not examine these processes called postgres, " +
				"and does not serve them; give it CAP_SYS_PTRACE")
		}
	}
	if s.scan.left != s.left && now.Sub(s.leftLogged) >= beyondPause {
		s.left, s.leftLogged = s.scan.left, now
		s.Log.Warn().Int("processes", s.left).Msg("some users have too many processes that look like servers; " +
			"these are ignored")
	}
}

// update adds new processes, and forgets processes that ended.
func (s *supervisor) update(ctx context.Context, found map[key]Process, now time.Time) {
	for k, c := range s.clusters {
		if _, there := found[k]; !there {
			s.leave(k, c)
		}
	}
	for k, p := range found {
		switch c := s.clusters[k]; {
		case c == nil:
			s.clusters[k] = &cluster{Process: p, name: p.DataDir, next: now, pause: minPause}
			s.idle = 0
		case c.name != p.DataDir && (c.phase == unproved || c.phase == refused): // it was just starting
			c.Process, c.name, c.phase, c.next, c.pause = p, p.DataDir, unproved, now, minPause
		}
	}
	if s.settleBy.IsZero() {
		s.settleBy = now.Add(proofTime)
	}
	s.proveDue(ctx, now)
	s.startDue(ctx, now)
}

// leave forgets a cluster whose postmaster has ended, after its worker.
func (s *supervisor) leave(k key, c *cluster) {
	s.idle = 0
	c.endWatch()
	switch c.phase {
	case running:
		s.Log.Info().Str("cluster", c.DataDir).Int("postmaster", c.PID).Msg("the server ended, ending its worker")
		s.stop(c)
	case stopping, proving:
	case unproved, refused, waiting:
		delete(s.clusters, k)
	}
	c.gone = true
}

// stop makes a worker end.
func (s *supervisor) stop(c *cluster) {
	c.phase, c.since = stopping, time.Now()
	_ = c.line.Close()
	process, log, dir := c.command.Process, s.Log, c.DataDir
	time.AfterFunc(s.Grace, func() {
		if err := process.Kill(); err == nil {
			log.Warn().Str("cluster", dir).Int("worker", process.Pid).Msg("the worker did not end, killing it")
		} else if !errors.Is(err, os.ErrProcessDone) {
			log.Warn().Err(err).Str("cluster", dir).Int("worker", process.Pid).Msg("the worker does not end")
		}
	})
}

func (s *supervisor) handle(ctx context.Context, e event) {
	c := s.clusters[e.key]
	switch {
	case c == nil:
	case e.left:
		s.scan.forget(e.key.pid)
		s.leave(e.key, c)
	case e.ended:
		s.workerEnded(e.key, c, e.err)
	case c.gone:
		delete(s.clusters, e.key)
	case e.err != nil:
		c.phase, c.next = refused, time.Now().Add(c.pause)
		c.pause = min(2*c.pause, maxPause)
		if !c.Unnamed || !isNoPostmaster(e.err) {
			s.explain(c, e.err.Error())
		}
	default:
		c.phase, c.next, c.DataDir = waiting, time.Time{}, e.dataDir
	}
	s.startDue(ctx, time.Now()) // a worker or a proof may have freed a slot
	s.proveDue(ctx, time.Now())
}

// Any user can start processes that are called postgres, any number of them: the log has few lines about them.
const (
	linesPerSecond = 10
	linesAtOnce    = 100
)

// maxReason bounds the reason in a line of the log, in bytes. Hostile processes have long paths.
const maxReason = 1024

// explain logs why a cluster has no worker, once for each reason. An account has at most half of the lines.
func (s *supervisor) explain(c *cluster, reason string) {
	hash := maphash.String(seed, reason)
	if c.reason == hash {
		return
	}
	c.reason = hash
	now := time.Now()
	if !s.lines.free(now, rate{linesAtOnce, linesPerSecond}) || !s.budget(c.Account).lines.take(now, lineRate) {
		s.leftOut++
		return
	}
	s.lines.used++
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "..."
	}
	event := s.Log.Warn().Str("cluster", c.DataDir).Int("postmaster", c.PID).Str("reason", reason)
	if s.leftOut > 0 {
		event.Int("left_out", s.leftOut)
		s.leftOut = 0
	}
	event.Msg("no worker for this process")
}

var seed = maphash.MakeSeed()

func (s *supervisor) workerEnded(k key, c *cluster, err error) {
	_ = c.line.Close()
	c.command = nil
	s.slots[c.slot].last = time.Now()
	s.ports.answer(c.slot)
	c.endWatch()
	if c.gone {
		delete(s.clusters, k)
		return
	}
	if c.yields { // no failure: it gets a worker again when there is one for it
		c.yields, c.phase, c.next = false, refused, time.Now()
		return
	}
	if time.Since(c.began) > maxPause {
		c.pause = minPause
	}
	// The next attempt proves the process again: the cluster may have got another worker.
	c.phase, c.next = refused, time.Now().Add(c.pause)
	reason := "it ended"
	if err != nil {
		reason = err.Error()
	}
	s.Log.Warn().Str("cluster", c.DataDir).Str("reason", reason).Dur("retry", c.pause).Msg("a worker ended")
	c.pause = min(2*c.pause, maxPause)
}

// start starts a worker and waits for its end in a goroutine.
func (s *supervisor) start(ctx context.Context, k key, c *cluster) {
	fail := func(err error) {
		c.phase, c.next = refused, time.Now().Add(c.pause)
		c.pause = min(2*c.pause, maxPause)
		s.explain(c, "the worker cannot be started: "+err.Error())
	}
	read, write, err := os.Pipe()
	if err != nil {
		fail(err)
		return
	}
	c.slot = s.takeSlot(k, c, time.Now())
	listener := s.ports.give(c.slot)
	command := s.Command(c.DataDir, c.UID, c.slot, listener)
	command.Stdin = read
	err = command.Start()
	_ = read.Close()
	if listener != nil {
		_ = listener.Close()
	}
	if err != nil {
		_ = write.Close()
		s.ports.answer(c.slot)
		fail(err)
		return
	}
	c.phase, c.command, c.line, c.began, c.reason = running, command, write, time.Now(), 0
	c.unwatch = s.watch(ctx, k)
	s.Log.Info().Str("cluster", c.DataDir).Int("postmaster", c.PID).Int("worker", command.Process.Pid).
		Int("slot", c.slot).Msg("started a worker")
	go func() {
		err := command.Wait()
		select {
		case s.events <- event{key: k, ended: true, err: err}:
		case <-ctx.Done():
			s.ended(k, err)
		}
	}()
}

// ended reports the end of a worker while Run ends.
func (s *supervisor) ended(k key, err error) {
	select {
	case s.events <- event{key: k, ended: true, err: err}:
	case <-time.After(2 * s.Grace):
	}
}

// stopAll ends every worker and waits, no longer than twice the grace.
func (s *supervisor) stopAll() {
	left := 0
	for _, c := range s.clusters {
		if c.phase == running {
			s.stop(c)
		}
		if c.phase == stopping {
			left++
		}
	}
	timeout := time.After(2 * s.Grace)
	for left > 0 {
		select {
		case e := <-s.events:
			if e.ended {
				left--
			}
		case <-timeout:
			s.Log.Error().Int("workers", left).Msg("workers did not end")
			return
		}
	}
	s.Log.Info().Msg("stopped")
}
