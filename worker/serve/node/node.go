// Package node serves every PostgreSQL cluster of a host. It looks for postmasters, also in containers, and starts one worker
// process for each. Each worker has its own spool, key, limits, user id and memory. If one worker hangs or dies, the others are not
// affected.
//
// The package must not know what a worker does. It opens no connection to a server.
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
	"golang.org/x/sys/unix"
)

// Config configures Run. Command is required. The zero value of each other field is a default.
type Config struct {
	// Command returns a command that runs a worker for the cluster in dataDir, whose server runs as the user uid. The
	// worker must end when its standard input ends. slot is a number from 0 to Max-1. Workers that run at the same time
	// have different slots, and a data directory keeps its slot (see slots.go). listener is the socket on which the
	// worker accepts connections; nil: it accepts none. If Address is set, the worker gets lines on its standard input: the word
	// ports, and the TCP ports of all workers with a listener. It gets a new line when the ports change.
	Command func(dataDir string, uid, slot int, listener *os.File) *exec.Cmd
	// Reload is a channel. After each value, Run writes an empty line to the standard input of each worker, so that the worker reads
	// its files again. (A signal would need CAP_KILL.) nil: Run never does so.
	Reload <-chan struct{}
	// Address returns the TCP address on which the worker of a slot accepts connections. If Address is nil, workers
	// accept none.
	Address func(slot int) string
	// Log receives the starts and ends of workers, and the reasons why a cluster has none.
	Log zerolog.Logger
	// Max is the largest number of workers; 0 means DefaultMax.
	Max int
	// Interval is the time between two searches for new processes of the host; 0: one second. While no process starts
	// and no server changes, the time grows up to idleFactor intervals.
	Interval time.Duration
	// Grace is the time within which a worker must end after its cluster has ended. Then it is killed. 0: ten seconds.
	Grace time.Duration
	// Proc is the mount point of procfs; empty: /proc.
	Proc string
	// Below are directories, by the paths that the servers see: only clusters in or below them are served; empty: all
	// clusters.
	Below []string
	// UIDs are the user ids of the servers to serve; empty: all. A user can imitate a directory in a mount namespace,
	// but not a user id.
	UIDs []int
}

// DefaultMax is the default of Config.Max. Each worker needs some 20 to 60 MB of memory.
const DefaultMax = 64

// The pause between two attempts to start the worker of a cluster grows from minPause to maxPause. After a worker that
// ran longer than maxPause, the pause is minPause again.
const (
	minPause = time.Second
	maxPause = time.Minute
)

// Process is a process that may be a postmaster.
type Process struct {
	PID   int
	Start uint64 // proc(5) starttime
	// DataDir is the working directory: first by the path that the process sees, and after its proof (see prove) by a
	// path that this process can use.
	DataDir string
	UID     int // effective user id
	Account int // see accountOf
	// Unnamed means that the process runs a program whose name is not postgres or similar (see isServerName).
	Unnamed bool
}

// key identifies a process: a process id can be used again, but not with the same start time.
type key struct {
	pid   int
	start uint64
}

// Run serves until ctx ends, and then waits for its workers. It returns an error only if it cannot list the host's processes at the
// start.
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

// write writes a line to the standard input of a worker that runs. It does not wait: if the worker does not read its input, the
// error is EAGAIN. The kernel writes a line of up to 4096 bytes as a whole or not at all.
func (c *cluster) write(line string) error {
	raw, err := c.line.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Write(func(fd uintptr) bool {
		_, failure = unix.Write(int(fd), []byte(line))
		return true
	})
	return errors.Join(err, failure)
}

// reload asks each worker that runs to read its files again.
func (s *supervisor) reload() {
	asked := 0
	for _, c := range s.clusters {
		if c.phase != running {
			continue
		}
		if err := c.write("\n"); err != nil { // a worker that has just ended will read its files when it starts again
			s.Log.Warn().Err(err).Str("cluster", c.DataDir).Msg("the worker was not asked to read its files again")
			continue
		}
		asked++
	}
	s.Log.Info().Int("workers", asked).Msg("asked the workers to read their files again")
}

// close closes the ports and the watches of the supervisor.
func (s *supervisor) close() {
	s.ports.close()
	for _, c := range s.clusters {
		c.endWatch()
	}
}

// The time between two looks at the processes grows while no process starts and no server changes: by one interval after each
// idleLooks looks, up to idleFactor intervals.
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
	events   chan event // from goroutines; each waits for one cluster
	scan     *scanner
	ports    *ports
	budgets  map[int]*budget // by account
	idle     int             // number of looks since a process has started or a server has changed
	denied   int             // last logged number of processes that this user may not examine
	none     bool            // whether the log says that no server passes Below and UIDs
	left     int             // last logged number of processes that are left out because their account has too many
	slots    []slot
	settleBy time.Time // until this time, workers start only if the proofs of the first look have ended; see settle
	settled  bool

	beyond       int // last logged number of clusters without a worker because of Max
	beyondLogged time.Time
	leftLogged   time.Time

	// proof is prove, except in tests.
	proof func(proc string, p Process) (dataDir string, err error)

	lines   bucket // limit of the lines that explain writes
	leftOut int    // number of lines that explain has left out since its last line
}

// phase is the state of a cluster. A proof (see the function prove) verifies that the cluster's process is a postmaster.
type phase int

const (
	unproved phase = iota // the proof has not begun
	proving               // a goroutine runs the proof, which may take long
	refused               // not a postmaster, or not accessible, or its worker ended; the next proof is at the time next
	waiting               // the proof succeeded; the worker may start at the time next
	running               // the worker runs
	stopping              // the worker is ending
)

// cluster is one postmaster and its worker.
type cluster struct {
	Process

	phase   phase
	name    string        // DataDir as first seen, before the proof has changed it
	since   time.Time     // in the phases proving and stopping: begin of this phase
	next    time.Time     // time of the next proof, or of the start of the worker; see phase
	pause   time.Duration // pause that follows the next failure
	began   time.Time     // start of the worker
	reason  uint64        // hash of the last logged reason why it has no worker
	command *exec.Cmd
	slot    int
	line    *os.File // the write end of the worker's standard input
	ports   string   // the last line about ports that its worker got
	gone    bool     // the postmaster has ended; the cluster is removed when its worker or proof has ended
	yields  bool     // the worker ends to make room for another cluster, or to start again with a listener
	unwatch func()   // ends the watch for the end of the postmaster; nil: no watch
}

// event is an event of one cluster. Without left and ended, the event is the result of a proof.
type event struct {
	key     key
	left    bool // the postmaster ended
	ended   bool // the worker ended, with the error err
	dataDir string
	err     error
}

// look searches for new and ended server processes. It starts the workers and the proofs (see prove) that are due.
func (s *supervisor) look(ctx context.Context) error {
	now := time.Now()
	examined, err := s.scan.look(now)
	if err != nil {
		return err
	}
	s.idle++
	s.openPorts(now)
	defer s.sendPorts()
	if examined {
		s.report(now)
		found := make(map[key]Process, len(s.scan.found))
		for pid, p := range s.scan.found {
			found[key{pid, p.Start}] = p
		}
		if none := len(found) == 0 && len(s.Below)+len(s.UIDs) > 0; none != s.none {
			s.none = none
			if none {
				s.Log.Warn().Strs("below", s.Below).Ints("uids", s.UIDs).Msg("no server of this host passes the options --below and --uid")
			}
		}
		s.update(ctx, found, now)
		return nil
	}
	s.leaveEnded()
	s.proveDue(ctx, now)
	s.startDue(ctx, now)
	return nil
}

// report logs the numbers of those processes without a worker about which explain writes no line of their own.
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

// update adds clusters for new processes, removes the clusters whose process has ended, and starts proofs and workers that are
// due.
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
		case c.name != p.DataDir && (c.phase == unproved || c.phase == refused): // the process has changed its directory since
			c.Process, c.name, c.phase, c.next, c.pause = p, p.DataDir, unproved, now, minPause
		}
	}
	if s.settleBy.IsZero() {
		s.settleBy = now.Add(proofTime)
	}
	s.proveDue(ctx, now)
	s.startDue(ctx, now)
}

// leave removes a cluster whose postmaster has ended. If it has a worker or a proof, it is removed when these have
// ended.
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

// stop closes the worker's standard input, so that it ends. After Grace, it kills the worker.
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
	defer s.sendPorts()
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
	s.startDue(ctx, time.Now()) // a worker or a proof that has just ended may have freed a slot
	s.proveDue(ctx, time.Now())
}

// linesPerSecond and linesAtOnce limit the log, because any user can start any number of processes that are called
// postgres.
const (
	linesPerSecond = 10
	linesAtOnce    = 100
)

// maxReason is the largest length of the reason in a line of the log, in bytes. A hostile user can make long paths.
const maxReason = 1024

// explain logs why a cluster has no worker, unless it has logged the same reason for this cluster last. If a limit of the lines is
// reached, it only counts the line as left out. One account can use at most half of the lines.
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
	if c.yields { // not a failure: the cluster may get a worker again without a pause
		c.yields, c.phase, c.next = false, refused, time.Now()
		return
	}
	if time.Since(c.began) > maxPause {
		c.pause = minPause
	}
	// The next attempt starts with a new proof, because another supervisor may have started a worker for the cluster since.
	c.phase, c.next = refused, time.Now().Add(c.pause)
	reason := "it ended"
	if err != nil {
		reason = err.Error()
	}
	s.Log.Warn().Str("cluster", c.DataDir).Str("reason", reason).Dur("retry", c.pause).Msg("a worker ended")
	c.pause = min(2*c.pause, maxPause)
}

// start starts the worker of a cluster, and a goroutine that waits for its end.
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
	c.phase, c.command, c.line, c.began, c.reason, c.ports = running, command, write, time.Now(), 0, ""
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

// ended reports the end of a worker to stopAll, which receives these events after ctx has ended.
func (s *supervisor) ended(k key, err error) {
	select {
	case s.events <- event{key: k, ended: true, err: err}:
	case <-time.After(2 * s.Grace):
	}
}

// stopAll stops every worker and waits until all have ended, but at most for twice Config.Grace.
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
