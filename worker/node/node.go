// Package node serves every PostgreSQL cluster of a host: it looks for postmasters in all containers and starts one
// worker process for each. A worker has its own spool, key, limits, user id and memory. A worker that hangs or
// dies affects no other.
//
// The package must not know what a worker does, and opens no connection to a server.
package node

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"time"

	"github.com/rs/zerolog"
)

// Config configures Run; the zero value of each field but Command is a default.
type Config struct {
	// Command returns the command that serves the cluster in a data directory. It ends when its standard input ends.
	// Slots are numbers from 0 to Max-1. Workers that run at the same time have different slots, and a data directory
	// keeps its slot (see slots.go).
	Command func(dataDir string, slot int) *exec.Cmd
	// Log receives what happens to the workers.
	Log zerolog.Logger
	// Max is the largest number of workers; 0 means DefaultMax.
	Max int
	// Interval is the time between two looks at the processes of the host; 0 means one second.
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
}

// key is one incarnation of a process.
type key struct {
	pid   int
	start uint64
}

// Run serves until ctx ends, and then waits for its workers. It returns an error only if it cannot look at processes.
func Run(ctx context.Context, cfg Config) error {
	s := newSupervisor(cfg)
	ticker := time.NewTicker(s.Interval)
	defer ticker.Stop()
	if err := s.look(ctx); err != nil {
		return err
	}
	s.Log.Info().Int("clusters", len(s.clusters)).Msg("serving every cluster of this host")
	for {
		select {
		case <-ctx.Done():
			s.stopAll()
			return nil
		case e := <-s.events:
			s.handle(ctx, e)
		case <-ticker.C:
			if err := s.look(ctx); err != nil {
				s.Log.Error().Err(err).Msg("the processes of this host cannot be listed")
			}
		}
	}
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
	return &supervisor{
		Config: cfg.withDefaults(), clusters: map[key]*cluster{}, events: make(chan event), proof: prove, owner: ownerOf,
	}
}

// supervisor has the state of all clusters. Only the goroutine of Run changes it.
type supervisor struct {
	Config

	clusters map[key]*cluster
	events   chan event // from goroutines that wait for one cluster
	denied   int        // processes that this user may not look at, as logged
	beyond   int        // clusters that have no worker because of Max, as logged
	slots    []slot
	settleBy time.Time // no worker starts before, unless the proofs of the first look have ended
	settled  bool

	// Tests replace these.
	proof func(proc string, p Process) (dataDir string, err error)
	owner func(pid int) int

	// Lines of explain, less the lines that the time since has made up for, and how many were not written.
	lines    float64
	lastLine time.Time
	leftOut  int
}

// phase is what happens with a cluster.
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
	owner   int       // effective user id, -1 if it is unknown
	since   time.Time // in the phases proving and stopping: the time at which it began
	next    time.Time
	pause   time.Duration
	began   time.Time
	reason  string // why it has no worker, as logged
	command *exec.Cmd
	slot    int
	line    *os.File // the write end of the worker's standard input
	gone    bool
}

// event is something that happened to one cluster.
type event struct {
	key     key
	ended   bool // the worker ended; else the files were looked at
	dataDir string
	err     error
}

// look compares the processes of the host with the known clusters.
func (s *supervisor) look(ctx context.Context) error {
	found, denied, err := postmasters(s.Config)
	if err != nil {
		return err
	}
	if denied != s.denied {
		s.denied = denied
		if denied > 0 {
			s.Log.Warn().Int("processes", denied).Msg("this program may not examine these processes called postgres, " +
				"and does not serve them; give it CAP_SYS_PTRACE")
		}
	}
	s.update(ctx, found, time.Now())
	return nil
}

// update adds new processes, and forgets processes that ended.
func (s *supervisor) update(ctx context.Context, found map[key]Process, now time.Time) {
	for k, c := range s.clusters {
		if _, there := found[k]; !there {
			s.leave(k, c)
		}
	}
	for k, p := range found {
		if s.clusters[k] == nil {
			s.clusters[k] = &cluster{Process: p, name: p.DataDir, owner: s.owner(p.PID), next: now, pause: minPause}
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
	case e.ended:
		s.workerEnded(e.key, c, e.err)
	case c.gone:
		delete(s.clusters, e.key)
	case e.err != nil:
		c.phase, c.next = refused, time.Now().Add(c.pause)
		c.pause = min(2*c.pause, maxPause)
		s.explain(c, e.err.Error())
	default:
		c.phase, c.next, c.DataDir = waiting, time.Time{}, e.dataDir
	}
	if !e.ended {
		s.startDue(ctx, time.Now())
		s.proveDue(ctx, time.Now()) // the proof freed a slot
	}
}

// Any user can start processes that are called postgres, any number of them: the log has few lines about them.
const (
	linesPerSecond = 10
	linesAtOnce    = 100
)

// explain logs why a cluster has no worker, once for each reason.
func (s *supervisor) explain(c *cluster, reason string) {
	if c.reason == reason {
		return
	}
	c.reason = reason
	now := time.Now()
	s.lines = max(0, s.lines-now.Sub(s.lastLine).Seconds()*linesPerSecond)
	s.lastLine = now
	if s.lines+1 > linesAtOnce {
		s.leftOut++
		return
	}
	s.lines++
	event := s.Log.Warn().Str("cluster", c.DataDir).Int("postmaster", c.PID).Str("reason", reason)
	if s.leftOut > 0 {
		event.Int("left_out", s.leftOut)
		s.leftOut = 0
	}
	event.Msg("no worker for this process")
}

func (s *supervisor) workerEnded(k key, c *cluster, err error) {
	_ = c.line.Close()
	c.command = nil
	s.slots[c.slot].last = time.Now()
	if c.gone {
		delete(s.clusters, k)
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

// startDue starts the workers whose time has come, as far as Max goes. The order is the one of the data directories.
func (s *supervisor) startDue(ctx context.Context, now time.Time) {
	if !s.settle(now) {
		return
	}
	active, beyond := 0, 0
	for _, c := range s.clusters {
		if c.phase == running || c.phase == stopping {
			active++
		}
	}
	for _, k := range s.waitingByName() {
		c := s.clusters[k]
		if now.Before(c.next) || s.awaitsSlot(c) {
			continue
		}
		if active >= s.Max {
			beyond++
			continue
		}
		if s.start(ctx, k, c) {
			active++
		}
	}
	if beyond != s.beyond {
		s.beyond = beyond
		s.Log.Warn().Int("max_workers", s.Max).Int("clusters_without_worker", beyond).
			Msg("there are more clusters than workers are allowed; raise --max-workers")
	}
}

// awaitsSlot reports whether the worker of an earlier process of the same directory and user is still ending. It has
// the slot, and so the port, and the folders that the next worker is to have.
func (s *supervisor) awaitsSlot(c *cluster) bool {
	for _, other := range s.clusters {
		ending := other.phase == stopping && time.Since(other.since) < 2*s.Grace
		if other != c && ending && other.name == c.name && other.owner == c.owner {
			return true
		}
	}
	return false
}

// start starts a worker and waits for its end in a goroutine.
func (s *supervisor) start(ctx context.Context, k key, c *cluster) bool {
	fail := func(err error) bool {
		c.phase, c.next = refused, time.Now().Add(c.pause)
		c.pause = min(2*c.pause, maxPause)
		s.explain(c, "the worker cannot be started: "+err.Error())
		return false
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	c.slot = s.takeSlot(k, c, time.Now())
	command := s.Command(c.DataDir, c.slot)
	command.Stdin = read
	err = command.Start()
	_ = read.Close()
	if err != nil {
		_ = write.Close()
		return fail(err)
	}
	c.phase, c.command, c.line, c.began, c.reason = running, command, write, time.Now(), ""
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
	return true
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
