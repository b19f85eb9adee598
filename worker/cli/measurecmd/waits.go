package measurecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/levels"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// waitsFlags are the flags of the command waits.
type waitsFlags struct {
	dataDir  string
	duration time.Duration
	method   string
	format   string
	trace    int
	stacks   string
	top      int
	idle     bool
	wide     bool
	types    []string
	events   []string
	waitsFilter
}

const waitsLong = `Time the wait events of a running server for a while, from outside: how often its
processes waited, for which events, how long in total and at most, and a histogram.
The server needs no change, no extension and no worker.

Give the server's data directory with -D, or processes of one server. With -D all
processes of the server count, also those that start or end meanwhile.

Methods (--method):
  exact    times system calls. It sees every wait that enters the kernel.
  blocked  times sleeps. It sees no reads from the page cache, and costs less.
  sampled  reads the events 100 times a second. It estimates total times only.
  auto     exact where the kernel has trampolines, otherwise blocked, otherwise
           sampled. The output names the method.

SHARE leaves out idle waits: waits of type Activity, and for the client's next
command (ClientRead). --idle includes them. If --type or --event is given, the
shares are those of the selected waits.

--user and --database select processes, by name or object id. Processes that ended
before the command saw their user are left out, and a line reports that.
--query-id selects the waits of queries, and prints a text of each. It has no maxima
and histograms, and needs compute_query_id and the method exact or blocked.

With --stacks the stacks of waits are copied, named, and printed by wait event: of
one in N waits (1/N), each of which then stands for N, or of the long ones
(>10ms). This needs the method exact, on x86_64.

exact and blocked load programs into the kernel. They need root, or CAP_BPF and
CAP_PERFMON, and the host's PID namespace. sampled needs the right to read the
server's memory. Waits in progress count up to now.`

// NewWaits returns the command waits.
func NewWaits() *cobra.Command {
	var f waitsFlags
	cmd := &cobra.Command{
		Use:   "waits [-D DIRECTORY | PID...]",
		Short: "Time the wait events of a running server, and print totals and histograms",
		Long:  waitsLong,
		Example: `  pg_stat_backtrace waits -D /var/lib/postgresql/15/main
  pg_stat_backtrace waits --duration 1m --method exact 4711 4712
  pg_stat_backtrace waits -D /srv/pgdata --format json | jq '.events[0]'
  pg_stat_backtrace waits -D /srv/pgdata --stacks '>10ms'
  pg_stat_backtrace waits -D /srv/pgdata --stacks 1/100 --format html > waits.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			pids, err := f.check(args)
			if err == nil && f.trace == 0 && cmd.Flags().Changed("trace") {
				err = errors.New("--trace needs a process id, not 0")
			}
			if err != nil {
				return console.Usage(err)
			}
			if err := console.RefuseBinary(f.format, cmd.OutOrStdout()); err != nil {
				return err
			}
			if err := console.TakeOnlyServer(&f.dataDir, len(pids) > 0, cmd.ErrOrStderr()); err != nil {
				return err
			}
			return f.run(cmd.Context(), pids, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "the server's data `DIRECTORY`; default: $PGDATA, else the only server of this host")
	fs.DurationVarP(&f.duration, "duration", "d", 10*time.Second, "measure for this `TIME`; an interrupt ends it earlier")
	fs.StringVarP(&f.method, "method", "m", string(waits.Auto),
		"`METHOD`: auto, exact, blocked or sampled")
	fs.IntVar(&f.trace, "trace", 0, "record every wait of process `PID`, and print them by query")
	fs.StringVar(&f.stacks, "stacks", "", "print the stacks of `WAITS`: 1/N for one in N, or >10ms for the long ones")
	fs.IntVarP(&f.top, "top", "n", 20, "with --stacks and text: the `N` stacks and functions with the most time")
	fs.BoolVar(&f.wide, "wide", false, "with text: print all columns on a terminal too")
	fs.BoolVar(&f.idle, "idle", false, "count idle waits (Activity, ClientRead) in the shares of the text")
	fs.StringSliceVar(&f.types, "type", nil, "print only waits of this `TYPE`, such as IO")
	fs.StringSliceVar(&f.events, "event", nil, "print only waits for this `EVENT`, such as WALSync")
	f.add(cmd)
	fs.StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: text, json or csv; with --stacks "+
		strings.Join(profilefmt.Formats(), ", "))
	_ = cmd.MarkFlagDirname("pgdata")
	methods := []string{"auto", "exact", "blocked", "sampled"}
	_ = cmd.RegisterFlagCompletionFunc("method",
		cobra.FixedCompletions(methods, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(append(profilefmt.Formats(), console.FormatCSV), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check validates the flags and returns the process ids; empty: all processes of the server.
func (f *waitsFlags) check(args []string) ([]int, error) {
	switch waits.Method(f.method) {
	case waits.Auto, waits.Exact, waits.Blocked, waits.Sampled:
	default:
		return nil, fmt.Errorf("--method must be auto, exact, blocked or sampled, not %q", f.method)
	}
	if err := f.checkStacks(); err != nil {
		return nil, err
	}
	if err := f.waitsFilter.check(f.method, args); err != nil {
		return nil, err
	}
	if err := f.checkTypes(); err != nil {
		return nil, err
	}
	switch {
	case f.stacks == "" && !slices.Contains([]string{console.FormatText, console.FormatJSON, console.FormatCSV}, f.format):
		return nil, fmt.Errorf("--format must be text, json or csv, not %q", f.format)
	case (f.idle || f.types != nil || f.events != nil) && (f.stacks != "" || f.trace > 0):
		return nil, errors.New("--idle, --type and --event go together neither with --stacks nor with --trace")
	case f.set() && (f.stacks != "" || f.trace > 0):
		return nil, errors.New("--user, --database and --query-id go together neither with --stacks nor with --trace")
	case f.duration <= 0:
		return nil, fmt.Errorf("--duration must be more than 0, not %s", f.duration)
	case f.trace < 0:
		return nil, fmt.Errorf("--trace needs a process id, not %d", f.trace)
	case f.trace > 0 && (f.dataDir != "" || len(args) > 0):
		return nil, errors.New("--trace names its process: leave out -D and other process ids")
	case f.trace > 0 && (f.method == string(waits.Sampled) || f.format != console.FormatText):
		return nil, errors.New("--trace needs a method that sees single waits, and prints text only")
	case f.trace > 0:
		return []int{f.trace}, nil
	case f.dataDir != "" && len(args) > 0:
		return nil, console.ErrBoth
	}
	return console.ProcessIDs(args)
}

// checkTypes replaces the types in the flags by the words that the server uses for them, which may differ in upper and lower case.
// It does not check events, because extensions have events of their own.
func (f *waitsFlags) checkTypes() error {
	all := levels.WaitTypes()
	for i, name := range f.types {
		at := slices.IndexFunc(all, func(one string) bool { return strings.EqualFold(one, name) })
		if at < 0 {
			return fmt.Errorf("--type: there is no type %q; the types are %s", name, strings.Join(all, ", "))
		}
		f.types[i] = all[at]
	}
	return nil
}

// unknownEvents reports the events that the server's version does not have. They may be events of extensions.
func (f *waitsFlags) unknownEvents(server *waitevent.Server, stderr io.Writer) {
	all := server.Names.Events()
	for _, name := range f.events {
		if !slices.ContainsFunc(all, func(one string) bool { return strings.EqualFold(one, name) }) && !strings.HasPrefix(name, "#") {
			console.Tellf(stderr, "PostgreSQL %d has no wait event %q%s", server.Cluster.Version, name, console.DidYouMean(name, "", all))
		}
	}
}

// cluster finds the server by -D or by the process ids.
func (f *waitsFlags) cluster(pids []int) (cluster.Cluster, error) {
	if f.dataDir != "" {
		return cluster.ByDataDir(f.dataDir)
	}
	return console.ServerOf(pids)
}

// run measures and prints the result. After an interrupt, it prints the result until then.
func (f *waitsFlags) run(ctx context.Context, pids []int, stdout, stderr io.Writer) error {
	c, err := f.cluster(pids)
	if err != nil {
		return err
	}
	server, err := console.Await(ctx, func() (*waitevent.Server, error) { return waitevent.Locate(c) })
	if err != nil {
		return err
	}
	f.unknownEvents(server, stderr)
	options := waits.Options{
		Method: waits.Method(f.method), Keep: pids, Queries: f.trace > 0 || f.stacks != "" || len(f.queryIDs) > 0,
	}
	if f.bySession() {
		options.KeepEnded = maxEndedSessions
	}
	if f.stacks != "" {
		options.Stacks, _ = waitevent.ParseStacks(f.stacks) // cannot fail, because checkStacks has parsed the text already
	}
	if (f.trace > 0 || f.stacks != "") && options.Method == waits.Auto {
		options.Method = waits.Exact // the only method that sees each wait
	}
	provider, err := console.Await(ctx, func() (waits.Provider, error) { return waits.Open(server.Target, options) })
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w\nRun it as root, with CAP_BPF and CAP_PERFMON, or as the server's user with --method sampled",
			err)
	}
	if err != nil {
		return err
	}
	defer provider.Close()
	info := provider.Info()
	console.Tellf(stderr, "timing the wait events of %s for %s, method %s (%s)", c, f.duration, info.Method, info.Mechanism)
	if f.trace > 0 {
		return f.traceSession(ctx, server, provider, stdout, stderr)
	}
	if f.stacks != "" {
		return f.printStacks(ctx, server, provider, options, stdout, stderr)
	}
	if len(f.queryIDs) > 0 && !info.Queries {
		return fmt.Errorf("the method %s attributes no waits to queries: --query-id needs exact or blocked", info.Method)
	}
	if f.set() {
		f.log = openLog(server)
	}
	if f.log == nil && f.bySession() {
		return errors.New("users and databases cannot be read from the server's memory")
	}
	result, err := f.measure(ctx, server, provider, options, pids, stderr)
	if err != nil {
		return err
	}
	if err := f.unseen(stderr); err != nil {
		return err
	}
	report := f.report(info, result, pids)
	report.Idle = f.idle
	report.Select(f.types, f.events)
	switch f.format {
	case console.FormatJSON:
		return report.JSON(stdout)
	case console.FormatCSV:
		report.Idle = true // so that Missing does not explain the shares of idle waits: CSV has no shares
		for _, line := range report.Missing() {
			console.Tellf(stderr, "%s", line)
		}
		return report.CSV(stdout)
	}
	width := 0
	if !f.wide {
		width = console.TerminalWidth(stdout)
	}
	return report.Text(stdout, !unicodeTerminal(), width)
}

// measure times wait events until the end of the duration or of ctx. If the server restarts meanwhile, for example after a crash,
// measure reports that on stderr and counts from zero again.
func (f *waitsFlags) measure(
	ctx context.Context, server *waitevent.Server, provider waits.Provider, o waits.Options, pids []int, stderr io.Writer,
) (*waitsResult, error) {
	var again waits.Provider
	defer func() {
		if again != nil {
			again.Close()
		}
	}()
	var err error
	restarted, checked := false, time.Now()
	f.wait(ctx, stderr, func() {
		look(f.log)
		if time.Since(checked) < time.Second {
			return
		}
		checked = time.Now()
		if !restarted {
			restarted = errors.Is(provider.Check(), waits.ErrServerGone)
			if restarted {
				console.Tellf(stderr, "the server has restarted: wait events are counted from zero again")
			}
		} else if again != nil && errors.Is(again.Check(), waits.ErrServerGone) {
			console.Tellf(stderr, "the server has restarted: wait events are counted from zero again")
			again.Close()
			again = nil
		}
		if restarted && again == nil && f.dataDir != "" {
			again, server = f.reopen(server, o)
		}
	})
	switch {
	case again != nil:
		provider = again
	case restarted && len(pids) > 0:
		return nil, fmt.Errorf("%w: the processes are gone", waits.ErrServerGone)
	}
	if f.log != nil {
		f.log.Look()
	}
	result := &waitsResult{server: server}
	if result.snapshot, err = provider.Snapshot(); err == nil && len(f.queryIDs) > 0 {
		result.figures, err = provider.Queries()
	}
	return result, err
}

// reopen begins to time the server that runs in the data directory now. If that fails, for example because the server does not run
// yet, reopen returns a nil provider, and the parameter server unchanged.
func (f *waitsFlags) reopen(server *waitevent.Server, o waits.Options) (waits.Provider, *waitevent.Server) {
	c, err := f.cluster(nil)
	if err != nil {
		return nil, server
	}
	located, err := waitevent.Locate(c)
	if err != nil {
		return nil, server
	}
	former := f.log
	if !f.renewLog(located) { // before waits.Open, which attaches programs to the server
		return nil, server
	}
	provider, err := waits.Open(located.Target, o)
	if err != nil {
		f.log = former
		return nil, server
	}
	return provider, located
}

// traceSession records every wait of a session, and prints the waits by query.
func (f *waitsFlags) traceSession(
	ctx context.Context, server *waitevent.Server, provider waits.Provider, stdout, stderr io.Writer,
) error {
	var texts waitevent.StatementTexts
	if log := openLog(server); log != nil {
		texts = log
	}
	recording, err := server.NewRecording(provider, f.trace, texts)
	if err != nil {
		return err
	}
	f.wait(ctx, stderr, recording.Look)
	return recording.Text(stdout)
}

// logInterval is the shortest time after which the sessions are read from the server's memory again.
const logInterval = 100 * time.Millisecond

// openLog returns a log of the server's sessions; nil: they cannot be read. The log has the texts of statements. Users of the
// command may see these texts, because they have the right to read the server's memory.
func openLog(server *waitevent.Server) *state.SessionLog {
	reader, err := state.Open(server.Cluster)
	if err != nil {
		return nil
	}
	return state.NewSessionLog(reader, logInterval)
}

func look(log *state.SessionLog) {
	if log != nil {
		log.Look()
	}
}

// wait waits for the end of the duration or of ctx. On a terminal, it shows how far the measurement is. It calls the
// callback each every 20 ms.
func (f *waitsFlags) wait(ctx context.Context, stderr io.Writer, each func()) {
	const interval = 20 * time.Millisecond
	end := time.NewTimer(f.duration)
	defer end.Stop()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	start, shown := time.Now(), console.Terminal(stderr)
	last := start
	for {
		if each != nil {
			each()
		}
		select {
		case <-tick.C:
			if shown && time.Since(last) >= time.Second {
				last = time.Now()
				_, _ = fmt.Fprintf(stderr, "\r\x1b[K%.0f of %s", time.Since(start).Seconds(), f.duration)
			}
			continue
		case <-ctx.Done():
		case <-end.C:
		}
		if shown {
			_, _ = io.WriteString(stderr, "\r\x1b[K")
		}
		return
	}
}

// unicodeTerminal reports whether the locale's encoding is UTF-8.
func unicodeTerminal() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := os.Getenv(name); value != "" {
			value = strings.ToLower(value)
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}
