package measurecmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// planFlags are the flags of the command plan.
type planFlags struct {
	nonStop         bool
	timeout, watch  time.Duration
	width           int
	dataDir, format string
	calibrate       bool
	noCalibration   bool
	connection      string
}

const planLong = `Print the plan of the statement that a backend runs now, as EXPLAIN prints it: the
nodes, their tables and indexes, the estimates, and how far each node is. "=>" marks
the node that runs, "|" the nodes above it. A statement inside another one, as in a
PL/pgSQL function or a trigger, has a separate level. The outermost level comes
first. The plans of parallel workers follow those of their leaders. Utility commands
such as VACUUM have no plan. The command prints what they report.

Without a PID the command prints all statements that run: of one server with -D or
$PGDATA, else of all servers of this host.

The command needs no connection and no extension. It stops the process at least
twice for a moment to copy its stack, and reads its memory from outside. It prints
a plan only if two looks at it are equal. The progress is of the same stop as the
mark. If the memory does not prove a plan, the command prints the reason instead,
and the exit status is 1. Names of functions in FROM are not read. A relation
without a known name is printed with its object id.

--calibrate connects to the server and runs read-only statements for some seconds.
It compares the command's reading of them with EXPLAIN, field by field. Fields that
differ, or that no statement has, are then left out. The result is kept for the
server's build. Without it the command prints a line about the unproven layout.

The command reads the plans of PostgreSQL 14 to 18, and of the release candidate 1
of 19. The running node is marked on x86_64 and aarch64. The command shows the
statements of all users.`

// NewPlan returns the command plan.
func NewPlan() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan [PID...]",
		Short: "Print the plan of the statement that a backend runs now, and how far it is",
		Long:  planLong,
		Example: `  pg_stat_backtrace plan 4711
  pg_stat_backtrace plan --nonstop 4711
  pg_stat_backtrace plan 4711 --watch 2s
  pg_stat_backtrace plan -D /var/lib/postgresql/15/main
  pg_stat_backtrace plan --calibrate --connection user=postgres 4711
  pg_stat_backtrace plan --format json 4711 | jq '.statements[0].Plan'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			pids, err := f.check(args)
			if err != nil {
				return console.Usage(err)
			}
			return f.run(cmd.Context(), pids, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.nonStop, "nonstop", false, "do not stop the process")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "give up if a process cannot be read within `TIME`")
	fs.IntVar(&f.width, "query-width", 80, "with text: at most `N` characters of each query")
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "all statements of the server with the data `DIRECTORY`; "+
		"default without a PID: $PGDATA, else all servers of this host")
	_ = cmd.MarkFlagDirname("pgdata")
	fs.StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: text, or json (a line for each process)")
	fs.DurationVar(&f.watch, "watch", 0, "print again every `TIME`, such as 2s, until an interrupt")
	fs.BoolVar(&f.calibrate, "calibrate", false,
		"connect to the server and compare the plans that this program reads with EXPLAIN, once for each build")
	fs.BoolVar(&f.noCalibration, "no-calibrate", false, "ignore earlier comparisons: print also fields that they do not prove")
	fs.StringVar(&f.connection, "connection", "", "with --calibrate: connection `STRING` as of libpq, such as user=postgres")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{console.FormatText, console.FormatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check validates the flags and returns the process ids; nil: all processes that execute a statement.
func (f *planFlags) check(args []string) ([]int, error) {
	const shortest = 100 * time.Millisecond
	switch {
	case f.format != console.FormatText && f.format != console.FormatJSON:
		return nil, fmt.Errorf("--format must be text or json, not %q", f.format)
	case f.watch != 0 && f.watch < shortest:
		return nil, fmt.Errorf("--watch must be at least %s, not %s", shortest, f.watch)
	case f.calibrate && f.noCalibration:
		return nil, errors.New("--calibrate and --no-calibrate exclude each other")
	case f.connection != "" && !f.calibrate:
		return nil, errors.New("--connection needs --calibrate")
	case f.dataDir != "" && len(args) > 0:
		return nil, console.ErrBoth
	case f.timeout <= 0:
		return nil, fmt.Errorf("--timeout must be more than 0, not %s", f.timeout)
	case f.width < 1:
		return nil, fmt.Errorf("--query-width must be at least 1, not %d", f.width)
	}
	if len(args) == 0 {
		return nil, nil
	}
	return console.ProcessIDs(args)
}

// run prints the plans of the processes once or, with --watch, again and again.
func (f *planFlags) run(ctx context.Context, pids []int, stdout, stderr io.Writer) error {
	capturer, err := capture.New(capture.Config{LinesWait: console.LinesWait})
	if err != nil {
		return err
	}
	r := &planRun{
		flags: f, reader: &runningplan.Reader{Capturer: capturer, NonStop: f.nonStop, Explain: explainPlan},
		servers: map[string]*state.Reader{}, stderr: stderr,
		proofs: map[string]*plan.Proof{}, tried: map[string]bool{},
	}
	if !f.noCalibration {
		r.reader.Proof = r.proof
		r.store = console.PlanStore()
	}
	targets := console.Identities(pids)
	for round := 0; ; round++ {
		out := bufio.NewWriter(stdout)
		if f.watch != 0 && f.format == console.FormatText {
			_, _ = fmt.Fprintf(out, "%s%s\n", strings.Repeat("\n", min(round, 1)), time.Now().Format(time.RFC3339))
		}
		failed, err := r.once(ctx, targets, out)
		if err == nil {
			err = out.Flush()
		}
		if ctx.Err() != nil && f.watch != 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if f.watch == 0 {
			if failed {
				return console.ErrReported
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.watch):
		}
	}
}

// planRun is one run of the command.
type planRun struct {
	flags   *planFlags
	reader  *runningplan.Reader
	servers map[string]*state.Reader // by data directory
	// functions captures the functions of procedural languages; nil: not created yet.
	functions *capture.Capturer
	store     runningplan.Store
	proofs    map[string]*plan.Proof // by build-id and major version; found or made in this run
	tried     map[string]bool        // data directories of the servers that this run has tried to calibrate
	stderr    io.Writer
}

// once prints the chosen processes or, without any, all statements of the servers. If a process or server cannot be read, it
// reports the error on stderr, continues with the next, and sets the result failed.
func (r *planRun) once(ctx context.Context, targets []process.Target, out io.Writer) (failed bool, err error) {
	if len(targets) > 0 {
		for _, target := range targets {
			if target.StartTime == 0 {
				console.Tellf(r.stderr, "%s", console.NoProcess(target.PID))
				failed = true
				continue
			}
			p, err := r.read(ctx, target, r.sessionsOf(ctx, target.PID))
			if err != nil {
				return failed, err
			}
			if p.Err != nil && r.flags.format == console.FormatText && p.Utility == nil {
				message := explainPlan(target.PID, p.Err)
				if target.StartTime == 0 && errors.Is(p.Err, process.ErrExited) {
					message = fmt.Sprintf("process with PID %d does not exist", target.PID)
				}
				console.Tellf(r.stderr, "%s", message)
				failed = true
				continue
			}
			failed = !p.Whole() || failed
			if err := r.print(out, p); err != nil {
				return failed, err
			}
		}
		return failed, nil
	}
	dirs := []string{r.flags.dataDir}
	if r.flags.dataDir == "" {
		var denied int
		if dirs, denied, err = console.AllServers(); err != nil {
			return false, err
		}
		if denied > 0 && len(dirs) == 0 {
			_, err := console.ChooseServer(nil, denied)
			return false, err
		}
		if denied > 0 {
			console.Tellf(r.stderr, "%s may not be examined by this user", units.Count(denied, "server"))
			failed = true
		}
		if len(dirs) == 0 && denied == 0 {
			return false, errors.New("no server runs on this host")
		}
	}
	for i, dir := range dirs {
		if i > 0 && r.flags.format == console.FormatText {
			_, _ = fmt.Fprintln(out)
		}
		whole, err := r.server(ctx, dir, len(dirs) > 1, out)
		if err != nil && (len(dirs) == 1 || ctx.Err() != nil) {
			return false, err
		}
		if err != nil {
			console.Tellf(r.stderr, "%s: %s", render.VisibleLine(dir), render.VisibleLine(err.Error()))
		}
		failed = failed || !whole || err != nil
	}
	return failed, nil
}

// server prints all processes of a server that execute a plan or a utility command. The result whole is set if all
// plans are complete.
func (r *planRun) server(ctx context.Context, dir string, heading bool, out io.Writer) (whole bool, err error) {
	c, err := cluster.ByDataDir(dir)
	if err != nil {
		return false, err
	}
	sessions, err := r.sessions(ctx, c)
	if err != nil {
		return false, err
	}
	if heading && r.flags.format == console.FormatText {
		_, _ = fmt.Fprintf(out, "server %s\n\n", render.VisibleLine(c.DataDir))
	}
	whole, printed := true, 0
	for i := range sessions.Sessions {
		s := &sessions.Sessions[i]
		if s.Leader != 0 || s.State != "active" && s.Progress == nil {
			continue // not active, or a parallel worker, which is printed below its leader
		}
		target := console.Identities([]int{s.PID})[0]
		p, err := r.read(ctx, target, sessions)
		target.Held.Release()
		if err != nil {
			return false, err
		}
		if errors.Is(p.Err, process.ErrExited) {
			continue
		}
		if p.Err == nil && len(p.Plans.Levels) == 0 && p.Utility == nil {
			continue
		}
		if printed++; printed > 1 && r.flags.format == console.FormatText {
			_, _ = fmt.Fprintln(out)
		}
		// A plan that has changed because a short statement has ended does not count as incomplete.
		whole = whole && (p.Whole() || errors.Is(p.Err, capture.ErrPlanChanges))
		if err := r.print(out, p); err != nil {
			return false, err
		}
	}
	if printed == 0 && r.flags.format == console.FormatText {
		_, _ = fmt.Fprintln(out, "No process executes a plan now.")
	}
	return whole, nil
}

// read reads one process within the time limit. If the process cannot be read, the result contains the reason. The
// error result means that ctx has ended.
func (r *planRun) read(ctx context.Context, target process.Target, sessions *moment.Moment) (*runningplan.Process, error) {
	limited, cancel := context.WithTimeout(ctx, r.flags.timeout)
	defer cancel()
	p := r.reader.Read(limited, target, sessions)
	if u := p.Utility; u != nil && u.TargetOID != 0 && sessions != nil && r.servers[sessions.Cluster] != nil {
		i := slices.IndexFunc(sessions.Sessions, func(s moment.Session) bool { return s.PID == target.PID })
		if i >= 0 {
			u.Target = r.servers[sessions.Cluster].RelationName(sessions.Sessions[i].DatabaseOID, u.TargetOID)
		}
	}
	if p.Err == nil && len(p.Plans.Levels) > 0 {
		p.Function = r.function(limited, target)
	}
	return p, ctx.Err()
}

// function returns the innermost function of a procedural language in which a process is, with its line; empty: none is known.
func (r *planRun) function(ctx context.Context, target process.Target) string {
	const limit = time.Second
	if r.functions == nil {
		c, err := capture.New(capture.Config{}) // which does not wait for the lines of C
		if err != nil {
			return ""
		}
		r.functions = c
	}
	if r.functions.AwaitProgram(ctx, target.PID) != nil {
		return ""
	}
	t, err := r.functions.Capture(ctx, target, capture.Options{Deadline: limit, NonStop: r.flags.nonStop})
	if err != nil {
		return ""
	}
	return render.Function(t)
}

// proof returns the fields of plans that were compared with EXPLAIN, for a build of the server; nil: the build was not compared.
func (r *planRun) proof(build string, major int) *plan.Proof {
	key := build + "-" + strconv.Itoa(major)
	if r.proofs[key] == nil {
		if p := r.store.Load(build, major); p != nil {
			r.proofs[key] = p
		}
	}
	for dir := range r.servers {
		if r.proofs[key] == nil {
			r.proofs[key] = console.ProvenPlans(dir)(build, major)
		}
	}
	return r.proofs[key]
}

// calibrate compares the plans that this program reads from a server with EXPLAIN, unless the server's build was compared before.
// It reports a failure on stderr. After a failure, the plans are printed with a line that says that their layout is unproven.
func (r *planRun) calibrate(ctx context.Context, c cluster.Cluster) {
	if !r.flags.calibrate || r.tried[c.DataDir] {
		return
	}
	r.tried[c.DataDir] = true
	report := func(err error) {
		console.Tellf(r.stderr, "%s: not calibrated: %s", render.VisibleLine(c.DataDir), render.VisibleLine(err.Error()))
	}
	build, err := r.reader.Capturer.ServerBuild(c.PostmasterPID)
	if err == nil && r.proof(build, c.Version) != nil {
		return
	}
	config, err := cluster.ReadingConfig(cluster.ConnOptions{ConnString: r.flags.connection, Cluster: &c, Named: true}, "plan")
	if err != nil {
		report(err)
		return
	}
	calibrator := &runningplan.Calibrator{
		Capturer: r.reader.Capturer, Contains: c.Contains,
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			conn, err := cluster.Connect(ctx, config.Copy())
			if err != nil {
				return nil, err
			}
			if err := c.Verify(ctx, conn); err != nil {
				_ = conn.Close(ctx)
				return nil, err
			}
			return conn, nil
		},
	}
	done, err := calibrator.Run(ctx)
	if err != nil {
		report(err)
		return
	}
	r.proofs[done.Build+"-"+strconv.Itoa(done.Major)] = done.Proof
	for _, difference := range done.Differences {
		console.Tellf(r.stderr, "%s: differs from EXPLAIN and is left out: %s", render.VisibleLine(c.DataDir), render.VisibleLine(difference))
	}
	if err := r.store.Save(done); err != nil {
		console.Tellf(r.stderr, "the calibration is not kept: %s", render.VisibleLine(err.Error()))
	}
}

// sessionsOf returns all sessions of the server to which a process belongs; nil: they cannot be read.
func (r *planRun) sessionsOf(ctx context.Context, pid int) *moment.Moment {
	c, err := cluster.ByProcess(pid)
	if err != nil {
		return nil
	}
	m, err := r.sessions(ctx, c)
	if err != nil {
		return nil
	}
	return m
}

func (r *planRun) sessions(ctx context.Context, c cluster.Cluster) (*moment.Moment, error) {
	r.calibrate(ctx, c)
	reader := r.servers[c.DataDir]
	if reader == nil || !reader.Cluster().Same(c) {
		var err error
		if reader, err = state.Open(c); err != nil {
			return nil, err
		}
		r.servers[c.DataDir] = reader
	}
	return reader.Read(state.Options{})
}

func (r *planRun) print(out io.Writer, p *runningplan.Process) error {
	if r.flags.format == console.FormatJSON {
		return render.JSONEncoder(out).Encode(p)
	}
	_, err := io.WriteString(out, r.reader.Text(p, r.flags.width))
	return err
}

func explainPlan(pid int, err error) string {
	var unknown *plan.UnknownLayoutError
	switch {
	case errors.Is(err, capture.ErrNotPostgres):
		return console.Stranger(pid) + " of version 14 to 19"
	case console.NotOfServer(pid, err) != "":
		return console.NotOfServer(pid, err)
	case errors.Is(err, capture.ErrPlanChanges):
		return fmt.Sprintf("process with PID %d runs short statements: %s", pid, capture.ErrPlanChanges)
	case errors.As(err, &unknown):
		return fmt.Sprintf("process with PID %d: %s", pid, unknown)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the plan of process with PID %d could not be read in time\n"+
			"  Give it more time with --timeout.", pid)
	}
	return console.Explain(pid, err)
}
