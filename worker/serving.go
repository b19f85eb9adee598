package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/profile"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/screen/page"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/serve/export"
	"pg_stat_backtrace/worker/serve/metrics"
	"pg_stat_backtrace/worker/serve/spool"
	"pg_stat_backtrace/worker/serve/web"
)

// ServeConfig says on which address the worker serves metrics, profiles and the incident screen. With the zero value, there is no
// listener.
type ServeConfig struct {
	// Listen is an address in the form of web.ParseAddress; empty: the worker does not listen.
	Listen string
	// TokenFile, CertFile and KeyFile are paths; see the fields of web.Config with these names.
	TokenFile, CertFile, KeyFile string
	// Inherited is a listening socket from the parent process; nil: the worker opens the address; see web.Config.Inherited.
	Inherited *os.File
	// Hosts are names, besides the address, by which clients reach the listener; see web.Config.Hosts.
	Hosts []string
	// Ports returns the ports of the workers of this host; see web.Config.Ports. nil: the worker has no supervisor.
	Ports func() []int
}

// Check returns an error if an option has a wrong value, or does not fit the other options. It reads no file, because the worker
// may become another user before it reads them.
func (c ServeConfig) Check() error {
	if c.Listen == "" {
		if c.TokenFile != "" || c.CertFile != "" || c.KeyFile != "" || len(c.Hosts) > 0 {
			return errors.New("--listen-host, --listen-token-file, --listen-tls-cert and --listen-tls-key need --listen")
		}
		return nil
	}
	address, err := web.ParseAddress(c.Listen)
	switch {
	case err != nil:
		return fmt.Errorf("--listen: %w", err)
	case !address.Loopback() && c.TokenFile == "":
		return fmt.Errorf("--listen %s: %w; give --listen-token-file", c.Listen, web.ErrNeedsToken)
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("--listen-tls-cert and --listen-tls-key need each other")
	}
	if err := web.CheckHosts(c.Hosts); err != nil {
		return fmt.Errorf("--listen-host: %w", err)
	}
	return nil
}

// web returns the configuration of the listener; false: there is no listener.
func (c ServeConfig) web() (web.Config, bool) {
	address, err := web.ParseAddress(c.Listen)
	return web.Config{
		Address: address, TokenFile: c.TokenFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Inherited: c.Inherited,
		Hosts: c.Hosts, Ports: c.Ports,
	}, err == nil
}

// rootFiles has the contents of files that the options name and that the worker read as root, before it became the server's user.
// So the workers of several servers with different users can share files that only root can read.
type rootFiles struct {
	web     *web.Files
	headers http.Header
}

// readAsRoot reads the files that the options name, if the worker is root. Otherwise it returns none.
func (c *Config) readAsRoot() (f rootFiles) {
	if os.Geteuid() != 0 {
		return f
	}
	if cfg, ok := c.Serve.web(); ok {
		f.web = cfg.ReadAsRoot()
	}
	if path, err := rootfs.RootOnlyPath(c.Export.HeaderFile); c.Export.HeaderFile != "" && err == nil {
		f.headers, _ = export.ReadHeaders(path) // checkFiles returns the error
	}
	return f
}

// rootOnly returns the files of the options that the worker's user cannot read.
func (c *Config) rootOnly() (names []string) {
	for _, name := range []string{c.Serve.TokenFile, c.Serve.CertFile, c.Serve.KeyFile, c.Export.HeaderFile} {
		if name != "" && errors.Is(unix.Access(name, unix.R_OK), fs.ErrPermission) {
			names = append(names, name)
		}
	}
	return names
}

// checkFiles reads the files of the options as the worker's user, and returns an error if one cannot be used. Files whose contents
// are in f need not be readable.
func (c *Config) checkFiles(f rootFiles) error {
	if cfg, ok := c.Serve.web(); ok {
		cfg.Files = f.web
		if err := cfg.Check(); err != nil {
			return err
		}
	}
	if err := c.checkRules(); err != nil {
		return err
	}
	if c.Export.HeaderFile == "" {
		return nil
	}
	_, err := export.ReadHeaders(c.Export.HeaderFile)
	if f.headers != nil && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// profiles reports whether the worker makes profiles of the server.
func (c *Config) profiles() bool { return c.Serve.Listen != "" || c.Export.On() }

// capabilities returns the capabilities that the worker keeps to load BPF programs into the kernel; nil: none.
func (c *Config) capabilities() []int {
	if c.Waits.Level == "" && !c.Functions.Allowed && !c.profiles() {
		return nil
	}
	return []int{unix.CAP_BPF, unix.CAP_PERFMON}
}

// calls returns the system calls that this worker needs because of its options, in addition to the calls of every worker.
func (c *Config) calls() (calls []uint32) {
	if len(c.capabilities()) > 0 {
		calls = append(calls, unix.SYS_BPF)
	}
	if c.Serve.Listen != "" && c.Serve.Inherited == nil {
		calls = append(calls, unix.SYS_LISTEN)
	}
	return calls
}

// listen starts the listener, if there is one. The worker runs as the server's user, so a Unix socket belongs to that user, and
// ports below 1024 are available only as sockets of the supervisor. If the address is in use, the worker still answers requests
// from SQL.
func (w *Worker) listen(ctx context.Context, wg *sync.WaitGroup) {
	cfg, ok := w.cfg.Serve.web()
	if !ok {
		return
	}
	cfg.Version, cfg.Metrics, cfg.Collect = w.cfg.Version, w.metrics.Handler(), w.collect
	cfg.Render = func(to io.Writer, p *profile.Profile, format string) error {
		return profilefmt.Write(to, p, profilefmt.Options{
			Format: format, Title: "Profile of " + w.server().DataDir, Notes: p.Comments,
		})
	}
	screen := page.New(w.openScreen)
	cfg.Screen = &web.Screen{Files: screen.Files(), View: screen.Data(false), Operator: screen.Data(true),
		ViewEvents: screen.Events(false), OperatorEvents: screen.Events(true),
		Actions: w.actions(ctx, screen)}
	cfg.OnAnswer = w.metrics.Answered
	cfg.OnRefused = w.metrics.Refused
	cfg.Health = w.health
	cfg.Files = w.files.web
	cfg.Log = w.log
	if cfg.InClearText() {
		w.log.Warn().Str("address", w.cfg.Serve.Listen).
			Msg("tokens and profiles cross the network in clear text; use --listen-tls-cert and --listen-tls-key")
	}
	server := web.New(cfg)
	wg.Go(func() { server.Run(ctx) })
}

// openScreen returns the data of the server for the incident screen, with the recorded history if the worker records.
func (w *Worker) openScreen() (source.Source, error) {
	o := source.Options{
		DataDir: w.server().DataDir, Capturer: w.capturer, Proof: w.verbs.PlanProof,
	}
	if dir := w.cfg.Record.Dir; dir != "" {
		recorded, err := source.OpenRecorded(dir, o.DataDir)
		switch {
		case err == nil:
			o.Recorded = recorded
		case !errors.Is(err, store.ErrNoHistory):
			w.log.Warn().Err(err).Msg("the screen shows no recorded history")
		case w.cfg.Record.Period != 0: // the recorder has not written its first sweep yet
			o.FindRecorded = func() *source.Recorded {
				found, _ := source.OpenRecorded(dir, o.DataDir)
				return found
			}
		}
	}
	live, err := source.NewLive(o)
	if err != nil {
		return nil, err
	}
	return live, nil
}

// newMetrics returns the metrics; nil: the worker has no listener that shows them.
func (w *Worker) newMetrics() *metrics.Metrics {
	if w.cfg.Serve.Listen == "" {
		return nil
	}
	reader := &processReader{worker: w}
	return metrics.New(metrics.Config{
		Version: w.cfg.Version, Server: reader.read,
		Waits: func() (metrics.Waits, bool) {
			report, err := w.waits.Report()
			return metrics.Waits{Report: report, Since: report.Since}, err == nil
		},
		Queue: func() (q metrics.Queue, ok bool) {
			q.Waiting, q.Claimed, q.Oldest, ok = w.depths.Sum()
			return q, ok
		},
		Lost: w.lostSessions, History: w.history,
		Export: w.exportFigures,
	})
}

// processReader reads the states of the processes of the server's present run.
type processReader struct {
	worker *Worker

	mu       sync.Mutex
	reader   *state.ActivityReader
	reported string // the last logged error of a running server; empty: the last call of read succeeded
}

// read returns the server and its processes. After an error, the result has no processes. If the server runs, read logs the error,
// unless the last logged error was the same.
func (p *processReader) read() (metrics.Server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, err := p.worker.current()
	server := metrics.Server{Version: c.Version, DataDir: c.DataDir}
	if err == nil {
		err = host.Catch("the states of sessions", func() (err error) {
			server.Processes, err = p.processes(c)
			return err
		})
	}
	if err == nil {
		server.MaxConnections, server.OrdinarySlots = p.reader.MaxConnections(), p.reader.OrdinarySlots()
		if positions, unknown := p.reader.Positions(); unknown == nil {
			server.WAL = &positions
		}
	}
	server.Running = err == nil || c.Alive() ||
		errors.Is(err, cluster.ErrNoAccess) || errors.Is(err, cluster.ErrNamespace)
	switch {
	case err == nil:
		p.reported = ""
	case server.Running && err.Error() != p.reported:
		p.reported = err.Error()
		p.worker.log.Warn().Err(err).Msg("the sessions of the server cannot be read, so metrics lack them")
	}
	return server, err
}

// processes reads the processes of one run of the server.
func (p *processReader) processes(c cluster.Cluster) ([]state.Process, error) {
	if p.reader == nil || !p.reader.Cluster().Same(c) {
		reader, err := state.OpenActivity(c)
		if err != nil {
			return nil, err
		}
		p.reader = reader
	}
	return p.reader.Read()
}

// answerCounted answers a request and counts it.
func (w *Worker) answerCounted(ctx context.Context, req spool.Request) spool.Answer {
	w.metrics.Requested(metrics.Waiting)
	a := w.verbs.Answer(ctx, req)
	if a.SQLState != "" {
		w.metrics.Failed(a.SQLState)
	}
	return a
}

// collect makes a profile for a client of the listener.
func (w *Worker) collect(ctx context.Context, r web.ProfileRequest) (*profile.Profile, error) {
	if err := w.haveOneOf(r.PIDs); err != nil {
		return nil, err
	}
	filter := clusterprofile.Filter{PIDs: r.PIDs}
	if r.QueryID != nil {
		filter.QueryIDs = []int64{*r.QueryID}
	}
	p, _, err := w.profile(ctx, clusterprofile.Options{
		Mode: clusterprofile.Mode(r.Mode), Duration: r.Duration, Filter: filter,
	})
	if err == nil && ctx.Err() != nil {
		return nil, ctx.Err() // the client has gone, so no message is needed
	}
	return p, err
}

// haveOneOf returns web.ErrNoProcess if the server has none of the processes with these ids, by the server's numbers. It returns nil
// if there are no ids.
func (w *Worker) haveOneOf(serverPIDs []int) error {
	if len(serverPIDs) == 0 {
		return nil
	}
	c, err := w.current()
	if err != nil {
		return fmt.Errorf("%w: the server is not running", web.ErrUnavailable)
	}
	members, err := c.Members()
	if err != nil {
		return fmt.Errorf("%w: the processes of the server cannot be listed", web.ErrUnavailable)
	}
	for _, pid := range serverPIDs {
		local := c.Local(pid)
		if slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Local == local }) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", web.ErrNoProcess, strings.Trim(fmt.Sprint(serverPIDs), "[]"))
}

// profile makes a profile of the server. A profile without samples is not an error, because scrapers repeat their requests.
func (w *Worker) profile(
	ctx context.Context, o clusterprofile.Options,
) (p *profile.Profile, summary *clusterprofile.Summary, err error) {
	done := w.metrics.Profiling(string(o.Mode))
	defer func() { done(err) }()
	c, err := w.current()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the server is not running", web.ErrUnavailable)
	}
	o.Cluster, o.Capturer, o.Names = &c, w.capturer, w.names
	p, summary, err = clusterprofile.Collect(ctx, o)
	switch {
	case errors.Is(err, clusterprofile.ErrNoSamples):
		return emptyProfile(o.Mode, summary), summary, nil
	case err != nil:
		return nil, nil, unavailable(err)
	}
	return p, summary, err
}

// unavailable wraps an error that is due to this host or the server's state in web.ErrUnavailable, and adds a remedy. It returns
// other errors as they are.
func unavailable(err error) error {
	const instead = "\nThe metrics work without programs in the kernel. For stacks run, as the server's user, " +
		"pg_stat_backtrace capture -D DIRECTORY --nonstop --format folded --repeat 100 --interval 100ms"
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the worker has no right to load programs into the kernel; give it CAP_BPF and "+
			"CAP_PERFMON (see doc/worker.md)%s", web.ErrUnavailable, instead)
	case errors.Is(err, clusterbpf.ErrUnsupported) && bpf.MissingTypes() != nil:
		return fmt.Errorf("%w: %w; run the worker on the server's host, on a kernel with type information%s",
			web.ErrUnavailable, err, instead)
	case errors.Is(err, clusterbpf.ErrUnsupported):
		return fmt.Errorf("%w: %w; run the worker on the server's host, on Linux 6.10 or later on x86_64%s",
			web.ErrUnavailable, err, instead)
	case errors.Is(err, waits.ErrUnsupported), errors.Is(err, clusterprofile.ErrServerGone):
		return fmt.Errorf("%w: %w", web.ErrUnavailable, err)
	}
	return err
}

// emptyProfile returns a profile without samples, of a server that did nothing.
func emptyProfile(mode clusterprofile.Mode, s *clusterprofile.Summary) *profile.Profile {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}}, Comments: s.Notes(),
	}
	for _, kind := range map[clusterprofile.Mode][]string{
		clusterprofile.CPU: {"cpu"}, clusterprofile.OffCPU: {"offcpu"}, clusterprofile.Wall: {"cpu", "offcpu", "wall"},
	}[mode] {
		p.SampleType = append(p.SampleType, &profile.ValueType{Type: kind, Unit: "nanoseconds"})
	}
	p.DurationNanos, p.TimeNanos = int64(s.Took), time.Now().Add(-s.Took).UnixNano()
	return p
}

// namesTimeout is the time limit of the queries for the names of databases and roles.
const namesTimeout = 2 * time.Second

// names returns the names of databases and roles, from the worker's session.
func (w *Worker) names(ctx context.Context) (n clusterprofile.Names, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), namesTimeout)
	defer cancel()
	n = clusterprofile.Names{Databases: make(map[uint32]string), Users: make(map[uint32]string)}
	err = w.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		for sql, into := range map[string]map[uint32]string{
			"SELECT oid, " + cluster.RawText("datname") + " FROM pg_catalog.pg_database": n.Databases,
			"SELECT oid, " + cluster.RawText("rolname") + " FROM pg_catalog.pg_roles":    n.Users,
		} {
			rows, err := conn.Query(ctx, sql)
			if err != nil {
				return err
			}
			var oid uint32
			var name []byte
			if _, err := pgx.ForEachRow(rows, []any{&oid, &name}, func() error { into[oid] = spool.Text(name); return nil }); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}

// WrongOption reports whether an error of Run is about an option. A restart of the worker with the same options would fail again.
func WrongOption(err error) bool {
	return errors.Is(err, web.ErrTokenFile) || errors.Is(err, web.ErrCertificate) ||
		errors.Is(err, export.ErrHeaderFile) || wrongRules(err)
}
