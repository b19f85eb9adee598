package cli

import (
	"errors"
	"fmt"
	"math"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/worker"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/verb"
)

const workerLong = `Serve the SQL functions of the extension, and on a primary the queue of
pg_request_backtrace(), for all databases of one server, primary or standby.
Each server has one worker. It runs as the server's operating system user. A
worker that is started as root becomes that user and keeps CAP_SYS_PTRACE. It
also keeps CAP_PERFMON where kernel.perf_event_paranoid is above 2, and CAP_BPF and
CAP_PERFMON with options that load programs into the kernel.

CONNSTRING is a libpq connection string or URI. Parameters that it does not have
come from a service file, from the PG* environment variables, or from libpq's
defaults. The worker connects to check the permissions of ordinary roles. Its own
role needs only LOGIN. The connection must lead to the server
itself, not to a connection pooler.

With -D the worker also starts, and answers superusers, while the server takes
no connections. It ignores PGHOST and PGPORT then. As root without -D, the
directory of the server's socket must not be writable by everybody.

With --all one command serves every server of the host, also in containers
whose processes it sees. It starts a worker for each server, and ends it with
the server. It needs root to serve servers of several users. The other flags
apply to each worker, so CONNSTRING must not name a server: it has no host,
hostaddr, port or service. --listen gives the first worker this port, the second
worker the next port, and so on; the page of each worker (/screen/) lists all
servers. --export-cluster is not allowed. The servers get
no password in clear text or as MD5, unless require_auth names that method.

With a debuginfod server, missing debug files are downloaded in the background.
The first answer lacks their names, later answers have them. The debuginfod
server learns which builds run here, and nothing else.

With --listen the worker serves metrics for Prometheus (/metrics) and profiles of
the whole server (/debug/pprof/profile) by HTTP, and the incident screen for
browsers (/screen/). An address that other hosts reach needs --listen-token-file. With --export-pyroscope or --export-otlp it
pushes a profile every minute. Profiles need CAP_BPF and CAP_PERFMON.

With --record-dir, or under systemd with StateDirectory=, the worker records once
a second what each session does, with its stack. The command history prints it. The worker
also writes a file about each stall that a rule finds; the commands incident and
rules explain this. --rules changes the rules, and SIGHUP makes the worker read
them again. With --all, the workers record to a folder for each user id below
the directory. Then one file of rules is for all servers: it must belong to root,
each server's user must be able to read it, and SIGHUP goes to the first process.

For the queue the worker keeps an idle session in each database that has the
extension, at most --sessions. Further databases take turns. The worker never
takes a reserved slot or the last one of a database or role. A role that is not a
superuser needs EXECUTE on backtrace.claim, finish, journal and prune there.
Without it the queue waits, and everything else works.

With --fallback-connection the worker opens a replication connection when the
server refuses an ordinary one because all slots are in use (SQLSTATE 53300). WAL
senders have slots of their own (max_wal_senders). SETTINGS replace those of
CONNSTRING, and the role needs LOGIN and REPLICATION. Such a role can copy the
whole cluster. The worker uses the connection for permissions, and closes it as soon as
an ordinary one succeeds. For each incident it also runs IDENTIFY_SYSTEM. Requests
that do not wait stay in the queue meanwhile.`

func newWorker(version string) *cobra.Command {
	var cfg worker.Config
	var level, format string
	var remote console.DebuginfodFlags
	var every nodeFlags
	var record recordFlags
	cmd := &cobra.Command{
		Use:   "worker [CONNSTRING]",
		Short: "Serve the extension's functions, beside a server",
		Long:  workerLong,
		Example: `  pg_stat_backtrace worker -D /var/lib/postgresql/15/main
  pg_stat_backtrace worker "host=/run/postgresql port=5433 dbname=postgres"
  pg_stat_backtrace worker service=main
  pg_stat_backtrace worker --all
  pg_stat_backtrace worker -D /srv/pgdata --debuginfod https://debuginfod.debian.net
  pg_stat_backtrace worker -D /srv/pgdata --listen 127.0.0.1:9188
  pg_stat_backtrace worker -D /srv/pgdata --record-dir /var/lib/pg_stat_backtrace
  pg_stat_backtrace worker -D /srv/pgdata --record-dir /var/lib/pg_stat_backtrace --rules /etc/pg_stat_backtrace/rules.yaml
  pg_stat_backtrace worker -D /srv/pgdata --export-pyroscope http://127.0.0.1:4040`,
		Args: console.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				cfg.ConnString = args[0]
			}
			if err := errors.Join(every.check(cmd, args), checkWorker(&cfg), record.config(cmd, &every, &cfg.Record)); err != nil {
				return console.Usage(err)
			}
			host.AbortOnCrash()
			// A worker must continue when its terminal is closed (SIGHUP), and when the reader of its log ends (SIGPIPE).
			signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
			cfg.Version = version
			sink, err := console.LogSink(cmd.ErrOrStderr(), format)
			if err != nil {
				return console.Usage(err)
			}
			out := newBacklog(sink)
			defer func() { _ = out.Close() }()
			log, err := console.Logger(out, level)
			if err != nil {
				return console.Usage(err)
			}
			cfg.Log = log
			if cfg.Debuginfod, err = remote.Config(); err != nil {
				return console.Usage(err)
			}
			host.Frugal()
			if every.all {
				return every.run(cmd, args, log, &cfg.Record)
			}
			ctx, stop := every.lifeline(cmd, &cfg)
			defer stop()
			err = worker.Run(ctx, cfg)
			if errors.Is(err, cluster.ErrConnString) || worker.WrongOption(err) {
				return console.Usage(err)
			}
			return err
		},
	}
	workerFlags(cmd, &cfg, &level, &format)
	remote.Add(cmd)
	every.add(cmd)
	record.add(cmd, &cfg.Record)
	return cmd
}

// checkWorker returns an error if an option of a worker has a wrong value.
func checkWorker(cfg *worker.Config) error {
	switch {
	case cfg.Keep <= 0 || cfg.KeepRows <= 0:
		return errors.New("--keep and --keep-rows must be positive")
	case !slices.Contains(contexts, cfg.Context):
		return fmt.Errorf("--context must be superuser, all or off, not %q", cfg.Context)
	case cfg.Sessions != 0 && (cfg.Sessions < limits.MinSessions || cfg.Sessions > limits.MaxGivenSessions):
		return fmt.Errorf("--sessions must be from %d to %d, not %d", limits.MinSessions, limits.MaxGivenSessions, cfg.Sessions)
	case cfg.Concurrency < 0 || cfg.Concurrency > limits.MaxConcurrency:
		return fmt.Errorf("--concurrency must be from 1 to %d, not %d", limits.MaxConcurrency, cfg.Concurrency)
	case !(cfg.Limits.PerSecond > 0) || math.IsInf(cfg.Limits.PerSecond, 0): // !(x > 0) is true for NaN too
		return fmt.Errorf("--rate must be a positive number, not %v; to lock a role out, revoke EXECUTE",
			cfg.Limits.PerSecond)
	case cfg.Limits.Burst < 1:
		return fmt.Errorf("--burst must be at least 1, not %d", cfg.Limits.Burst)
	}
	if err := cfg.Waits.Check(); err != nil {
		return err
	}
	if err := cfg.Serve.Check(); err != nil {
		return err
	}
	if err := cfg.Export.Check(); err != nil {
		return err
	}
	if err := cluster.CheckConnString(cfg.ConnString); err != nil || cfg.Fallback == "" {
		return err
	}
	if err := cluster.CheckFallback(cfg.Fallback, cfg.ConnString); err != nil {
		return fmt.Errorf("--%s: %w", flagFallback, err)
	}
	return nil
}

// flagFallback is the name of the flag for the connection that is used if all connection slots are in use.
const flagFallback = "fallback-connection"

func workerFlags(cmd *cobra.Command, cfg *worker.Config, level, format *string) {
	fs := cmd.Flags()
	fs.StringVarP(&cfg.DataDir, "pgdata", "D", "",
		"the server's data `DIRECTORY`; default without CONNSTRING, PGHOST, PGHOSTADDR, PGPORT and PGSERVICE: $PGDATA")
	fs.StringVar(&cfg.Fallback, flagFallback, "",
		"when all connection slots are in use, open a replication connection with `SETTINGS`, such as user=NAME (default none)")
	fs.StringVar(&cfg.SpoolDir, "spool-dir", "",
		"make the spool, a private directory, in `DIRECTORY` (default /dev/shm, else the temporary directory)")
	fs.StringSliceVar(&cfg.DebugDirs, "debug-dir", nil, console.DebugDirUsage)
	fs.StringVar(level, "log-level", "info", "`LEVEL` of messages to write: debug, info, warn or error")
	fs.StringVar(format, "log-format", console.LogAuto,
		"`FORMAT` of messages: json, console, otel (OpenTelemetry's JSON), journald, or auto")
	fs.IntVar(&cfg.Sessions, "sessions", 0,
		"have at most `N` sessions in the server (default a tenth of max_connections, from 2 to 8)")
	fs.IntVar(&cfg.Concurrency, "concurrency", 0, fmt.Sprintf("at most `N` captures side by side (default %d)", limits.Captures))
	fs.Float64Var(&cfg.Limits.PerSecond, "rate", limits.RequestsPerSecond, "a role that is not a superuser may ask `N` times a second")
	fs.IntVar(&cfg.Limits.Burst, "burst", limits.RequestBurst,
		"a role that is not a superuser may ask `N` times at once (see --rate)")
	addWaitFlags(fs, &cfg.Waits)
	fs.BoolVar(&cfg.Functions.Allowed, "trace-functions", false,
		"allow superusers pg_trace_function(); keeps the rights to load programs into the kernel")
	fs.BoolVar(&cfg.NoCalibration, "no-calibrate", false,
		"never compare plans with EXPLAIN; by default the worker does it once for each build of the server")
	addServeFlags(cmd, &cfg.Serve)
	addExportFlags(cmd, &cfg.Export)
	fs.DurationVar(&cfg.Keep, "keep", limits.QueueKeep, "remove rows of backtrace.request that are `OLDER` than this")
	fs.IntVar(&cfg.KeepRows, "keep-rows", limits.QueueKeepRows,
		"remove the oldest rows of backtrace.request beyond `N` in each database")
	fs.StringVar(&cfg.Context, "context", verb.ContextSuperuser,
		"`ROLES` may see the text of statements that functions run: superuser, all (every caller), or off (none)")
	_ = cmd.RegisterFlagCompletionFunc("context", cobra.FixedCompletions(contexts, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.MarkFlagDirname("spool-dir")
	_ = cmd.RegisterFlagCompletionFunc("log-level",
		cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-format",
		cobra.FixedCompletions(console.LogFormats, cobra.ShellCompDirectiveNoFileComp))
}

// contexts are the values of --context.
var contexts = []string{verb.ContextSuperuser, verb.ContextAll, verb.ContextOff}

// addWaitFlags adds the flags for the timing of wait events.
func addWaitFlags(fs *pflag.FlagSet, c *worker.WaitConfig) {
	fs.StringVar(&c.Level, "wait-event-capture", "",
		"time wait events: `LEVEL` off, stats or trace; keeps the rights to load programs into the kernel")
	fs.StringVar(&c.Method, "wait-event-method", "auto", "`METHOD`: auto, exact, blocked or sampled")
	fs.Float64Var(&c.BudgetPercent, "wait-event-budget", limits.WaitsPercent,
		"timing may take `N` percent of the processors' busy time, else it takes a cheaper method; 0: no limit")
}
