// Package worker is the service beside a PostgreSQL server. It takes requests
// from the spool, checks the caller's permission, captures the process, and
// answers. The packages below it do most of the work: this package connects
// them, and logs what they report. It also follows the server through restarts.
package worker

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/command"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/export"
	"pg_stat_backtrace/worker/serve/metrics"
	"pg_stat_backtrace/worker/serve/queue"
	"pg_stat_backtrace/worker/serve/spool"
	"pg_stat_backtrace/worker/verb"
)

// Config configures a worker. With the zero value, the worker serves the
// server to which libpq's defaults lead.
type Config struct {
	// ConnString is a libpq connection string. Parameters that it does not have
	// come from a service file, the PG* environment variables and the defaults.
	ConnString string
	// Fallback is the connection string of the fallback connection, see cluster.Fallback; empty: none.
	Fallback string
	// DataDir is the server's data directory. With it, the worker also starts
	// while the server takes no connections. Empty: ConnString chooses the server.
	DataDir string
	// Foreign: see cluster.ConnOptions.Foreign.
	Foreign bool
	// SpoolDir is the directory, best on tmpfs, in which the worker makes the
	// private directory of its spool; empty: /dev/shm or, if that is not suitable,
	// the temporary directory.
	SpoolDir string
	// Version is this program's version.
	Version string
	// Log receives the worker's messages.
	Log zerolog.Logger
	// Limits is the rate of requests that one role may make.
	Limits limits.Rate
	// Sessions is the largest number of the worker's sessions in the server; 0:
	// the default of queue.Config.Sessions.
	Sessions int
	// Concurrency is the largest number of captures that run at the same time; 0: limits.Captures.
	Concurrency int
	// Debuginfod names the servers from which missing debug files are
	// downloaded; without a server, none are. See debuginfodClient for its cache.
	Debuginfod debuginfod.Config
	// Keep and KeepRows limit the rows of backtrace.request in each database;
	// 0: the defaults of the fields of queue.Config with these names.
	Keep     time.Duration
	KeepRows int
	// Context says which callers get stacks with the text of statements that functions run; empty: verb.ContextSuperuser.
	Context string
	// NoCalibration is set if plans are never compared with EXPLAIN.
	NoCalibration bool
	// Waits says whether and how wait events are timed.
	Waits WaitConfig
	// Functions says whether SQL callers may trace functions.
	Functions FunctionConfig
	// Serve says where the worker serves metrics and profiles.
	Serve ServeConfig
	// Export says where the worker pushes profiles.
	Export ExportConfig
	// Record says whether the worker records the history of the server.
	Record RecordConfig
	// DebugDirs are the folders below which the worker searches for separate
	// debug files; nil: /usr/lib/debug.
	DebugDirs []string
}

// FunctionConfig says whether SQL callers may trace functions.
type FunctionConfig struct {
	// Allowed is set if SQL callers may trace functions. The worker then keeps the rights to load BPF programs into the kernel.
	Allowed bool
}

// memoryTarget is the memory, in bytes, from which on Go's garbage collector works harder. MemoryMax of the systemd unit is 512 MB.
const memoryTarget = 320 << 20

// The pause between two attempts to find a server that does not run grows from minRetry to maxRetry.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 5 * time.Second
)

// compareTimeout is the time limit of compare.
const compareTimeout = 2 * time.Second

// aliveInterval is the interval at which an idle worker checks two things: whether the postmaster is still the same process, and
// whether the server shuts down and waits until its sessions end. The worker also checks when it loses its session, and at each
// request.
const aliveInterval = host.AlignedInterval

// maxAbsent is the longest pause between two searches of follow and awaitServer for a server that does not run.
const maxAbsent = time.Second

// Worker serves one cluster.
type Worker struct {
	cfg      Config
	log      zerolog.Logger
	capturer *capture.Capturer
	looker   *authz.Lookup
	ledger   queue.Journal
	depths   queue.Depths
	waits    *waitevent.Timer
	lines    *limits.Lines // limits the lines of the log that one role causes
	verbs    *verb.Service
	metrics  *metrics.Metrics
	exporter *export.Exporter
	files    rootFiles
	// plans is the directory of comparisons of plans with EXPLAIN; empty: they are not kept.
	plans string
	// commands is the helper that runs commands of rules; nil: there is no such command.
	commands *command.Runner
	// serving is set while the spool is open, and while serve waits for the server.
	serving atomic.Bool
	// noSession measures for how long the worker has had no main session in the server.
	noSession absence
	// recorded counts the sweeps of the recorder.
	recorded recorder.Progress
	// redacted has the roles that had a name in RecordConfig.Redact since the worker started.
	redacted recorder.RedactedRoles
	// downloads is the state of downloads of debug files, for the log.
	downloads downloads

	mu      sync.Mutex
	cluster cluster.Cluster
	// restarted receives a value when a request finds that the server was restarted. The value ends a pause of follow or connect.
	restarted chan struct{}
	// link has the worker's session in the server, which connect keeps open. It is never nil.
	link atomic.Pointer[serverConn]
}

// Run serves until ctx ends, then finishes the running requests and returns
// nil. It returns an error if a later attempt would fail too, for example if
// the server belongs to another user, another worker serves it, or the
// connection string is wrong.
func Run(ctx context.Context, cfg Config) error {
	if err := cluster.NoNewPrivileges(); err != nil && !errors.Is(err, cluster.ErrNotStatic) {
		return err
	}
	w := &Worker{cfg: cfg, log: cfg.Log, lines: limits.NewLines(),
		restarted: make(chan struct{}, 1)}
	w.looker = &authz.Lookup{Server: w}
	w.waits = w.newWaits()
	w.metrics = w.newMetrics()
	w.attach(&serverConn{})
	w.noSession.begin()
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(min(debug.SetMemoryLimit(-1), memoryTarget)) // a limit that follows from RLIMIT_DATA may be lower
	}
	uid := os.Geteuid()
	defer w.endCommands()
	if err := w.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // the worker was asked to end while it waited for the server
		}
		return err
	}
	// After start, because start makes the worker the user whose cache newCapturer uses.
	closeRemote, err := w.newCapturer(os.Geteuid() == uid)
	if err != nil {
		return err
	}
	defer closeRemote()
	w.plans = w.planCache(os.Geteuid() == uid)
	w.verbs = w.newVerbs()
	// The session lasts until the last request is answered and its row in the journal is written.
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { w.follow(following) })
	wg.Go(func() { w.waits.Run(following) })
	wg.Go(func() { w.record(following) })
	if err = w.push(ctx, &wg, os.Geteuid() == uid); err == nil {
		w.listen(ctx, &wg)
		err = w.serve(ctx)
	}
	w.verbs.Stop()
	cancel()
	wg.Wait()
	notify("STOPPING=1")
	w.log.Info().Msg("stopped")
	return err
}

// newVerbs makes the service that answers requests.
func (w *Worker) newVerbs() *verb.Service {
	sessions := w.sessionOptions
	if w.cfg.NoCalibration {
		sessions = nil
	}
	return verb.New(verb.Config{
		Log: w.log, Lines: w.lines, Server: w.current, Capturer: w.capturer, Looker: w.looker, Waits: w.waits,
		Metrics: w.metrics, Journal: &w.ledger, Limits: w.cfg.Limits, Concurrency: w.cfg.Concurrency,
		Context: w.cfg.Context, TraceFunctions: w.cfg.Functions.Allowed,
		Sessions: sessions, CacheDir: w.plans, HistoryDir: w.cfg.Record.To(),
	})
}

// start finds the server, and waits for it if it does not run yet. Then it
// becomes the server's user, and gives up the rights that the worker does not
// need.
func (w *Worker) start(ctx context.Context) error {
	c, err := w.find(ctx)
	if err != nil {
		return err
	}
	w.cluster = c
	if err := w.compare(ctx, c); err != nil {
		return err
	}
	w.files = w.cfg.readAsRoot()
	_ = host.AllowLock() // succeeds for root; otherwise the limit of the unit or the user's shell stays
	rights, err := cluster.BecomeServerUser(c, w.cfg.capabilities()...)
	if err != nil {
		return err
	}
	if err := w.checkSettings(&c); err != nil {
		return err
	}
	if err := w.cfg.checkFiles(w.files); err != nil {
		return err
	}
	if names := w.cfg.rootOnly(); len(names) > 0 {
		w.log.Info().Strs("files", names).Msg("read files as root; restart the worker after a change of these files")
	}
	locked, err := host.LockMemory()
	if err != nil {
		w.log.Debug().Err(err).Int("locked_bytes", locked).Msg("pages of this program may have to be read from disk again")
	}
	if err := w.startCommands(); err != nil {
		return err
	}
	fenced := w.fence()
	w.log.Info().Str("data_directory", c.DataDir).Int("postmaster", c.PostmasterPID).Int("server_version", c.Version).
		Int("uid", rights.UID).Bool("cap_sys_ptrace", rights.Trace).Bool("cap_perfmon", rights.Sample).
		Bool("realtime", ptrace.MayHurry()).Bool("seccomp", fenced).Int("locked_bytes", locked).Msg("found the server")
	return nil
}

// checkSettings reads the connection settings, with the service and password files of the server's user, and logs notes about them.
func (w *Worker) checkSettings(c *cluster.Cluster) error {
	conn, err := cluster.NewConn(w.sessionOptions(c))
	if err != nil {
		return err
	}
	for _, note := range conn.Notes() {
		w.log.Warn().Msg(note)
	}
	return nil
}

// fence gives up the system calls that a worker never makes, by a seccomp filter. It returns false, and logs the reason, if the
// kernel does not permit that. The worker then continues without this protection, which is only an additional one.
func (w *Worker) fence() bool {
	err := host.RaiseFence(w.cfg.calls()...)
	if err != nil {
		w.log.Warn().Err(err).Msg("system calls that are not needed stay allowed")
	}
	return err == nil
}

// compare returns an error if data directory and connection string are given
// and lead to different servers. If the server takes no connections now,
// connect compares them later.
func (w *Worker) compare(ctx context.Context, c cluster.Cluster) error {
	if w.cfg.DataDir == "" || w.cfg.ConnString == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	other, err := cluster.Find(ctx, cluster.Options{
		ConnString: w.cfg.ConnString, Cluster: &c, Foreign: w.cfg.Foreign,
	})
	switch {
	case errors.Is(err, cluster.ErrPooler):
		return err
	case err == nil && !c.Same(other):
		return &cluster.WrongClusterError{Want: c, Got: other.String()}
	}
	return nil
}

// find searches for the server until it runs. It returns an error at once if
// waiting would not help; see fatal.
func (w *Worker) find(ctx context.Context) (cluster.Cluster, error) {
	told := ""
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		c, err := cluster.Find(ctx, cluster.Options{
			DataDir: w.cfg.DataDir, ConnString: w.cfg.ConnString, Foreign: w.cfg.Foreign,
		})
		if err == nil || fatal(err) {
			return c, err
		}
		if told != err.Error() {
			told = err.Error()
			w.log.Warn().Err(err).Msg("waiting for the server")
			// The service is ready, although the server does not run: the worker will serve it after its start. Boot and
			// upgrades of packages must not wait for the server.
			notify("READY=1\nSTATUS=waiting for the server")
		}
		select {
		case <-ctx.Done():
			return cluster.Cluster{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// fatal reports whether err of find cannot be resolved by waiting.
func fatal(err error) bool {
	for _, lasting := range []error{
		cluster.ErrNotDataDir, cluster.ErrWrongUser, cluster.ErrNoAccess, cluster.ErrNamespace,
		cluster.ErrNotPostmaster, cluster.ErrWrongCluster, cluster.ErrUnsafeSocket, cluster.ErrUnsafeName,
		cluster.ErrPooler, cluster.ErrConnString,
	} {
		if errors.Is(err, lasting) {
			return true
		}
	}
	return false
}

// serve keeps a spool open and serves it until ctx ends. If the spool breaks,
// because its directory or its file system was removed, serve makes a new one as soon as the server runs.
// It returns an error if only a new process can.
func (w *Worker) serve(ctx context.Context) error {
	pause := minRetry
	for first := true; ; first = false {
		began := time.Now()
		err := w.serveSpool(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // ctx has ended, so this is no failure
		case errors.Is(err, spool.ErrLocked), first && time.Since(began) < minRetry:
			return err
		case errors.Is(err, spool.ErrReadOnly):
			// The data directory was replaced, and ReadWritePaths= of the unit made only the former directory writable. The
			// service manager starts a new process, which may write there.
			return err
		}
		w.log.Error().Err(err).Msg("the spool is lost, making a new one")
		if time.Since(began) > maxRetry {
			pause = minRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRetry)
		if w.awaitServer(ctx); ctx.Err() != nil {
			return nil
		}
	}
}

// awaitServer returns when the server runs, or when ctx ends. Without a server, no session needs a spool. An administrator may be about
// to empty the data directory and to fill it anew, and initdb and pg_basebackup refuse a directory in which a worker has made a file.
func (w *Worker) awaitServer(ctx context.Context) {
	for told := false; ; told = true {
		_, err := w.current()
		if !errors.Is(err, cluster.ErrNotRunning) && !errors.Is(err, cluster.ErrNotDataDir) {
			w.serving.Store(false)
			return
		}
		if !told {
			w.log.Warn().Err(err).Msg("waiting for the server")
			notify("STATUS=waiting for the server")
			w.serving.Store(true) // a server that is down is no failure of the worker
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(maxAbsent):
		}
	}
}

func (w *Worker) serveSpool(ctx context.Context) error {
	c := w.server()
	cfg := spool.Config{
		DataDir: c.DataDir,
		Base:    w.cfg.SpoolDir, Root: c.Root, Postmaster: func() int { return w.server().PostmasterPID },
		Version: w.cfg.Version, Verbs: verb.Names(), Plans: w.plans, Recorder: w.recorder,
		Log: w.log.Hook(zerolog.HookFunc(w.limitLine)), Running: func() bool { return w.server().Alive() },
	}
	cfg.Witness = func() (int, uint64) {
		c := w.server()
		if c.SeesWorker() {
			return 0, 0
		}
		return c.ServerPID, c.ServerStart()
	}
	view := c.ProcView()
	s, err := spool.Open(cfg)
	if err != nil {
		return err
	}
	w.log.Info().Str("version", w.cfg.Version).Str("spool", s.Dir()).Bool("outside", !c.SeesWorker()).
		Str("server_view", view.Reason).Msg("ready")
	notify("READY=1\nSTATUS=serving " + w.server().DataDir)
	w.serving.Store(true)
	err = s.Serve(ctx, w.answerCounted)
	w.serving.Store(false)
	if closeErr := s.Close(); closeErr != nil {
		w.log.Warn().Err(closeErr).Msg("closing the spool")
	}
	return err
}

// limitLine discards a line of the log if there are more lines about one role than w.lines allows. The next line has the number of
// discarded lines.
func (w *Worker) limitLine(e *zerolog.Event, _ zerolog.Level, _ string) {
	const noRole = 0
	switch leftOut, ok := w.lines.Take(noRole); {
	case !ok:
		e.Discard()
	case leftOut > 0:
		e.Int("left_out", leftOut)
	}
}

// server returns the server as the worker has read it last. It may have ended since that time.
func (w *Worker) server() cluster.Cluster {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cluster
}

// current returns the running server. After a restart of the server, and while the server opens its sockets, it reads the data
// directory again. It returns an error if the server does not run.
func (w *Worker) current() (cluster.Cluster, error) {
	c := w.server()
	if !c.Opening && c.Alive() {
		return c, nil
	}
	found, err := cluster.ByDataDir(c.DataDir)
	if err != nil {
		return c, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	restarted := !w.cluster.Same(found)
	w.cluster = found
	if restarted {
		select {
		case w.restarted <- struct{}{}:
		default:
		}
		w.log.Info().Int("postmaster", found.PostmasterPID).Msg("the server was restarted")
	}
	return found, nil
}

// follow keeps a connection to the server until ctx ends, with a new connection for each run of the server. While the server does
// not run, follow searches for it after growing pauses, up to maxAbsent. A request from a restarted server ends the pause.
func (w *Worker) follow(ctx context.Context) {
	var learning sync.WaitGroup
	defer learning.Wait()
	var learned cluster.Cluster
	pause := minRetry
	for ctx.Err() == nil {
		c, err := w.current()
		if err == nil && !c.Same(learned) {
			learned = c
			learning.Go(func() { w.learn(ctx, c) })
			learning.Go(func() { w.calibrate(ctx, &c) })
		}
		switch {
		case err != nil:
		case c.Opening: // postmaster.pid does not name the sockets yet
			err = errOpening
		case c.Stopping():
			err = errStopping
		default:
			pause = minRetry
			err = w.connect(ctx, c)
		}
		if err != nil && ctx.Err() == nil {
			w.attach(&serverConn{failure: err})
			w.log.Debug().Err(err).Msg("no server")
		}
		select {
		case <-ctx.Done():
		case <-w.restarted:
			pause = minRetry
		case <-time.After(pause):
			pause = min(2*pause, maxAbsent)
		}
	}
}
