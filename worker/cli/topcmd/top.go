package topcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/screen/remote"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
)

// topFlags are the flags of the command top.
type topFlags struct {
	dataDir, recordDir, format string
	connect, tokenFile         []string
	view, by, side             string
	filters                    []string
	interval                   time.Duration
	batch, all                 bool
	sort                       string
	since, until, at, compare  string
	count, pid, width, height  int
}

const topLong = `Show what a server does now: the incident screen. It has five views: Load, Who,
Blocking, Session and Flame.

Load shows the active sessions by wait class over time, a line for the processors,
and findings: sentences about blocked sessions, waits, connections and processors,
the worst first. The view Who lists queries, users, events and applications by
their share of the database time. Blocking shows the processes that wait for locks,
below the processes that block them. Session shows one process: its waits, its live
stack, plan and memory. Flame shows the stacks of active sessions as a tree.
The keys are shown on the screen; ? explains them. m switches the mouse on: a click
selects a row, a double click opens it. It is off at first, because it takes the
terminal's own selection away.

The command reads the server's memory once a second. It needs no connection and no
extension, stops no process, and works while the server accepts no connections and
on a standby. Run it as root or as the server's user. It shows the texts of
queries of all users.

--all lists the servers of this host by findings, load and age. Enter opens a server,
and q returns to the list. --connect, given several times, lists the servers of
workers; --token-file is given once for all, or once for each.

With --connect, the data comes from a worker that runs with --listen, maybe on
another host. A token of its --listen-token-file gives the right to see load and
blocked sessions; an operator token also shows names, texts, stacks, plans and
memory. The token file must not be readable by other users. If the worker stops,
the last data stays, and the command tries again.

If a worker records the server (--record-dir), its files have the time before the
start. --since and --until, or --at, or the key t, show an earlier time. Each part
without data has its reason.

--batch prints the screen as plain text, -n times, and --format json the data of
each refresh. Without -D, the command takes the server of this host, or lists them
if there are several. Servers that this user may not read are listed with the
command that reads them, and their sessions are counted by process titles. The environment variable NO_COLOR switches colours off.`

// NewTop returns the command top.
func NewTop() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [-D DIRECTORY]",
		Short: "Show load, findings, blocked sessions and live stacks of a server",
		Long:  topLong,
		Example: `  pg_stat_backtrace top
  pg_stat_backtrace top -D /var/lib/postgresql/15/main --interval 500ms
  pg_stat_backtrace top -D /srv/pgdata --batch -n 3
  pg_stat_backtrace top -D /srv/pgdata --batch --view who --by user
  pg_stat_backtrace top -D /srv/pgdata --batch --pid 4711
  pg_stat_backtrace top --connect https://db1.example:9188 --token-file ~/.pgsb-token
  pg_stat_backtrace top -D /srv/pgdata --record-dir /var/lib/pg_stat_backtrace --at "yesterday 03:00"
  pg_stat_backtrace top --all
  pg_stat_backtrace top -D /srv/pgdata --format json -n 1 | jq '.findings.findings[].text'`,
		Args: console.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := f.check(cmd.Flags().Changed("pid"))
			if err != nil {
				return console.Usage(err)
			}
			return f.run(cmd, state)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "the server's data `DIRECTORY`; default: $PGDATA, else the server of this host, or a choice")
	fs.BoolVar(&f.all, "all", false, "list all servers of this host, and the workers of --connect")
	fs.StringVar(&f.sort, "sort", view.Orders()[0], "in the list of servers: `ORDER`, one of "+strings.Join(view.Orders(), ", "))
	fs.StringArrayVar(&f.connect, "connect", nil,
		"show the server of the worker that listens at `URL`, such as https://db1.example:9188; several make a list")
	fs.StringArrayVar(&f.tokenFile, "token-file", nil, "with --connect: the `FILE` with a token of the worker")
	fs.DurationVar(&f.interval, "interval", time.Second, "take a sample every `TIME`, such as 500ms")
	fs.StringVar(&f.recordDir, console.FlagRecordDir, "",
		"the `DIRECTORY` to which the worker records (default $STATE_DIRECTORY, or where the worker of the server records)")
	fs.BoolVar(&f.batch, "batch", false, "print the screen as plain text instead of taking the terminal")
	fs.IntVarP(&f.count, "refreshes", "n", 0, "with --batch or --format json: print `N` refreshes; 0: until an interrupt")
	fs.StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: text, or json (one line for each refresh)")
	fs.StringVar(&f.view, "view", "load", "begin with this `VIEW`: "+strings.Join(view.Names(), ", "))
	fs.StringVar(&f.by, "by", string(source.ByQuery), "in the view who, count by `PROPERTY`: "+strings.Join(properties(), ", "))
	fs.StringVar(&f.side, "side", string(source.Both), "in the view flame, show the stacks of `SIDE`: both, on-cpu or off-cpu")
	fs.StringArrayVar(&f.filters, "filter", nil, "count only sessions with `PROPERTY=VALUE`; may be given several times")
	fs.IntVar(&f.pid, "pid", 0, "begin with the session of this `PID`; with -D or --connect as the server has it, else as this host has it")
	fs.StringVar(&f.since, "since", "", "show the recorded time from `TIME`: "+console.WhenUsage)
	fs.StringVar(&f.until, "until", "", "with --since: show the time until `TIME`; default: now")
	fs.StringVar(&f.at, "at", "", "show sessions, blocked processes and findings at `TIME`, and the time around it")
	fs.StringVar(&f.compare, "compare", "", "in the view who, compare with the time of the same length from `TIME`")
	fs.IntVar(&f.width, "width", 0, "with --batch: `N` columns (default $COLUMNS, or 120)")
	fs.IntVar(&f.height, "height", 0, "with --batch: `N` lines (default $LINES, or 40)")
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.MarkFlagFilename("token-file")
	_ = cmd.MarkFlagDirname(console.FlagRecordDir)
	_ = cmd.RegisterFlagCompletionFunc("view", cobra.FixedCompletions(view.Names(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(properties(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{console.FormatText, console.FormatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func properties() (names []string) {
	for _, by := range source.Properties() {
		names = append(names, string(by))
	}
	return names
}

// check validates the flags, and returns the state of the screen at the start.
func (f *topFlags) check(pidGiven bool) (*view.State, error) {
	if err := f.checkServers(); err != nil {
		return nil, err
	}
	const shortest, longest, most = 100 * time.Millisecond, time.Minute, 1000
	page := slices.Index(view.Names(), f.view)
	by := append(properties(), string(source.ByClass))
	switch {
	case f.interval < shortest || f.interval > longest:
		return nil, fmt.Errorf("--interval must be from %s to %s, not %s", shortest, longest, f.interval)
	case f.format != console.FormatText && f.format != console.FormatJSON:
		return nil, fmt.Errorf("--format must be text or json, not %q", f.format)
	case page < 0:
		return nil, fmt.Errorf("--view must be one of %s, not %q", strings.Join(view.Names(), ", "), f.view)
	case !slices.Contains(properties(), f.by):
		return nil, fmt.Errorf("--by must be one of %s, not %q", strings.Join(properties(), ", "), f.by)
	case !slices.Contains(source.Sides(), source.Side(f.side)):
		return nil, fmt.Errorf("--side must be both, on-cpu or off-cpu, not %q", f.side)
	case pidGiven && f.pid < 1:
		return nil, fmt.Errorf("--pid must be positive, not %d", f.pid)
	case f.count < 0:
		return nil, fmt.Errorf("-n must not be negative, but is %d", f.count)
	case f.count > 0 && !f.isBatch():
		return nil, errors.New("-n goes with --batch or --format json")
	case f.width < 0 || f.height < 0 || f.width > most || f.height > most:
		return nil, fmt.Errorf("--width and --height must be from 1 to %d", most)
	}
	s := view.NewState("")
	s.Page, s.By, s.PID, s.Side = view.Page(page), source.By(f.by), f.pid, source.Side(f.side)
	if f.pid > 0 {
		s.Page = view.PageSession
	}
	if s.Page == view.PageSession && s.PID == 0 {
		return nil, errors.New("--view session needs --pid")
	}
	for _, text := range f.filters {
		property, value, ok := strings.Cut(text, "=")
		if !ok || !slices.Contains(by, property) {
			return nil, fmt.Errorf("--filter must be PROPERTY=VALUE with one of %s, not %q", strings.Join(by, ", "), text)
		}
		s.Filter = append(s.Filter, source.Condition{By: source.By(property), Key: value})
	}
	s.When = console.ParseWhen
	return s, f.checkTime(s, time.Now())
}

// checkTime sets the time that the screen shows first, from the flags.
func (f *topFlags) checkTime(s *view.State, now time.Time) error {
	var since, at, compare time.Time
	until := now
	for _, x := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", f.since, &since}, {"until", f.until, &until}, {"at", f.at, &at}, {"compare", f.compare, &compare}} {
		if x.text == "" {
			continue
		}
		t, err := console.ParseWhen(x.text, now)
		if err != nil {
			return fmt.Errorf("--%s: %w", x.flag, err)
		}
		*x.to = t
	}
	switch {
	case f.since == "" && f.until != "":
		return errors.New("--until needs --since")
	case f.since != "":
		if err := s.SetSpan(source.Span{From: since, To: until}, at, now); err != nil {
			return fmt.Errorf("--since and --until: %w", err)
		}
	case f.at != "":
		if err := s.SetMoment(at, now); err != nil {
			return fmt.Errorf("--at: %w", err)
		}
	}
	if f.compare == "" {
		return nil
	}
	if s.Page != view.PageWho {
		return errors.New("--compare goes with --view who")
	}
	if err := s.SetCompare(compare, now); err != nil {
		return fmt.Errorf("--compare: %w", err)
	}
	return nil
}

// checkServers validates the flags that choose servers.
func (f *topFlags) checkServers() error {
	switch {
	case len(f.connect) > 0 && (f.dataDir != "" || f.recordDir != ""):
		return errors.New("--connect does not go with -D and --" + console.FlagRecordDir)
	case f.all && (f.dataDir != "" || f.pid != 0 || len(f.filters) > 0 || f.since != "" || f.at != "" || f.compare != ""):
		return errors.New("--all does not go with -D, --pid, --filter, --since, --at and --compare")
	case len(f.connect) > 1 && (f.pid != 0 || len(f.filters) > 0 || f.since != "" || f.at != "" || f.compare != ""):
		return errors.New("several workers do not go with --pid, --filter, --since, --at and --compare")
	case len(f.connect) > mostServers:
		return fmt.Errorf("--connect can be given %d times, not %d", mostServers, len(f.connect))
	case len(f.tokenFile) > 0 && len(f.connect) == 0:
		return errors.New("--token-file goes with --connect")
	case len(f.tokenFile) > 1 && len(f.tokenFile) != len(f.connect):
		return fmt.Errorf("--token-file must be given once, or %d times: once for each --connect", len(f.connect))
	case !slices.Contains(view.Orders(), f.sort):
		return fmt.Errorf("--sort must be one of %s, not %q", strings.Join(view.Orders(), ", "), f.sort)
	}
	return nil
}

// isBatch reports whether the command prints text or JSON instead of showing the screen.
func (f *topFlags) isBatch() bool { return f.batch || f.format == console.FormatJSON }

// run shows the screen or prints it.
func (f *topFlags) run(cmd *cobra.Command, s *view.State) error {
	if !f.isBatch() && (!console.IsTerminal(os.Stdin) || !console.IsTerminal(os.Stdout)) {
		return console.Usage(view.ErrNoTerminal)
	}
	err := f.runSource(cmd, s)
	if errors.Is(err, errQuit) {
		return nil
	}
	return err
}

// runSource shows or prints the list of servers, the server of this host, or the data of a worker. After errQuit, the user has ended
// the program.
func (f *topFlags) runSource(cmd *cobra.Command, s *view.State) error {
	ctx, stderr := cmd.Context(), cmd.ErrOrStderr()
	switch {
	case f.all || len(f.connect) > 1:
		return f.runServers(cmd, f.all)
	case len(f.connect) == 1:
		return f.runRemote(cmd, s)
	}
	var dataDir string
	var list bool
	err := f.waitFor(ctx, stderr, "looking for servers", func(io.Writer) error {
		var err error
		dataDir, list, err = f.choose()
		return err
	})
	switch {
	case err != nil:
		return err
	case list:
		return f.runServers(cmd, true)
	}
	s.PID = f.pid // choose may have changed it

	const patience = time.Second // after this time, a message says why opening the server takes long
	slow := time.AfterFunc(patience, func() {
		if f.isBatch() {
			console.Tellf(stderr, "reading the server of %s ...", dataDir)
		}
	})
	defer slow.Stop()
	var src *source.Live
	err = f.waitFor(ctx, stderr, "reading the server of "+dataDir, func(stderr io.Writer) error {
		var err error
		if src, err = f.open(dataDir, nil, f.interval, stderr); err != nil {
			return err
		}
		info, err := src.Info(ctx)
		if err == nil {
			s.DataDir = info.DataDir
		}
		return err
	})
	slow.Stop()
	if err != nil {
		return err
	}
	return f.show(cmd, localSource{src}, s)
}

// choose returns the data directory of the server to show. list is set if the command must list the servers of this host instead.
func (f *topFlags) choose() (dataDir string, list bool, err error) {
	switch {
	case f.dataDir != "":
		return f.dataDir, false, nil
	case f.pid != 0:
		c, err := console.ServerOf([]int{f.pid})
		if err != nil {
			return "", false, err
		}
		if c.DataDir != "" {
			f.pid = serverPID(c, f.pid)
			return c.DataDir, false, nil
		}
	}
	found, denied, err := console.AllServers()
	if err != nil {
		return "", false, err
	}
	if denied > 0 && len(found) == 0 || len(found) > 1 && !f.isBatch() {
		return "", true, nil
	}
	dataDir, err = console.ChooseServer(found, denied)
	if err != nil && len(found) > 0 {
		err = console.Usage(err)
	}
	return dataDir, false, err
}

// serverPID returns the id by which the server knows a process of this host.
func serverPID(c cluster.Cluster, pid int) int {
	if members, err := c.Members(); err == nil {
		for i := range members {
			if members[i].Local == pid {
				return members[i].PID
			}
		}
	}
	return pid
}

// runServers shows or prints the list of servers.
func (f *topFlags) runServers(cmd *cobra.Command, local bool) error {
	var list *servers
	err := f.waitFor(cmd.Context(), cmd.ErrOrStderr(), "looking for servers", func(stderr io.Writer) error {
		var err error
		if list, err = f.newServers(stderr, local); err == nil {
			list.capturer, err = newTopCapturer()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case f.isBatch():
		return list.print(cmd.Context(), cmd.OutOrStdout())
	}
	return list.show(cmd.Context())
}

// newTopCapturer returns a capturer for the stacks of the screen.
func newTopCapturer() (*capture.Capturer, error) {
	return capture.New(capture.Config{Kept: buildcache.Own})
}

// runRemote shows or prints the data of a worker.
func (f *topFlags) runRemote(cmd *cobra.Command, s *view.State) error {
	client, err := remote.New(f.connect[0], f.tokenOf(0), f.interval)
	if err != nil {
		return err
	}
	if client.InClearText() {
		console.Tellf(cmd.ErrOrStderr(), "warning: the token crosses the network in clear text; use https://")
	}
	err = f.waitFor(cmd.Context(), cmd.ErrOrStderr(), "connecting to "+client.Address(), func(io.Writer) error {
		return client.Check(cmd.Context())
	})
	if err != nil {
		return err
	}
	s.Connect, s.TokenFile = client.Address(), f.tokenOf(0)
	return f.show(cmd, client, s)
}

// show shows the data on the terminal, or prints it.
func (f *topFlags) show(cmd *cobra.Command, src topSource, s *view.State) error {
	if f.isBatch() {
		return f.print(cmd.Context(), src, s, cmd.OutOrStdout())
	}
	s.Program = programWord()
	return showTop(cmd.Context(), src, s)
}

// programWord returns the first word of the commands that the screen shows: the name of this program if the shell finds it by its
// name, else its path.
func programWord() string {
	if _, err := exec.LookPath(programName); err == nil {
		return programName
	}
	if path, err := os.Executable(); err == nil {
		return path
	}
	return programName
}

const programName = "pg_stat_backtrace"

// open returns the source for a server, with the recorded history if there is one. If capturer is nil, open makes a new one.
func (f *topFlags) open(dataDir string, capturer *capture.Capturer, interval time.Duration, stderr io.Writer) (*source.Live, error) {
	host.Frugal()
	var err error
	if capturer == nil {
		if capturer, err = newTopCapturer(); err != nil {
			return nil, err
		}
	}
	o := source.Options{DataDir: dataDir, Interval: interval, Capturer: capturer, Proof: console.ProvenPlans(dataDir)}
	named := cmp.Or(f.recordDir, strings.Split(os.Getenv("STATE_DIRECTORY"), ":")[0])
	dir := named
	if dir == "" {
		dir = console.RecorderDir(dataDir)
	}
	o.FindRecorded = func() *source.Recorded {
		dir := cmp.Or(named, console.RecorderDir(dataDir))
		if dir == "" {
			return nil
		}
		r, err := source.OpenRecorded(dir, dataDir)
		if err != nil {
			return nil
		}
		return r
	}
	if dir != "" {
		o.Recorded, err = source.OpenRecorded(dir, dataDir)
		switch {
		case err == nil:
		case f.recordDir != "":
			return nil, err
		case named != "" && !errors.Is(err, store.ErrNoHistory):
			console.Tellf(stderr, "no recorded history: %v", err)
		}
	}
	src, err := source.NewLive(o)
	return src, err
}

// isDenied reports whether err means that this user may not read a server.
func isDenied(err error) bool {
	return errors.Is(err, process.ErrNotPermitted) || errors.Is(err, cluster.ErrNoAccess) || errors.Is(err, cluster.ErrWrongUser) ||
		errors.Is(err, fs.ErrPermission)
}

// grid returns an empty grid for a printed screen.
func (f *topFlags) grid() *view.Grid {
	width := cmp.Or(f.width, positive(os.Getenv("COLUMNS")), batchWidth)
	height := cmp.Or(f.height, positive(os.Getenv("LINES")), batchHeight)
	g := view.NewGrid(width, height)
	g.Mono, g.ASCII = true, view.IsASCII()
	return g
}

// Sizes of a printed screen.
const (
	batchWidth, batchHeight = 120, 40
)

// print prints the screen, or its data as JSON, after each sample. If the last attempt to sample failed, it returns that error.
func (f *topFlags) print(ctx context.Context, src topSource, s *view.State, out io.Writer) error {
	changed, end := src.Watch()
	defer end()
	var d *view.Data
	for n := 0; f.count == 0 || n < f.count; n++ {
		select {
		case <-ctx.Done():
			return unlessPrinted(ctx, n)
		case <-changed:
		}
		whole := f.format == console.FormatJSON
		g := f.grid()
		before := d
		var err error
		d, err = console.Await(ctx, func() (*view.Data, error) {
			return src.Fetch(ctx, s, before, src.Now(), view.Wide(g.Width) || whole, whole), nil
		})
		if err != nil || ctx.Err() != nil { // an interrupted fetch has errors in place of data
			return unlessPrinted(ctx, n)
		}
		now := src.Now()
		if whole {
			if err := render.JSONEncoder(out).Encode(d); err != nil {
				return err
			}
			continue
		}
		drawView(g, s, d, now)
		if n > 0 {
			_, _ = io.WriteString(out, "\n")
		}
		if _, err := io.WriteString(out, g.Plain()); err != nil {
			return err
		}
	}
	if d != nil && d.Info != nil && d.Info.Error != "" {
		return errors.New(d.Info.Error)
	}
	return nil
}

// unlessPrinted returns the error of ctx if an interrupt has come before the first of n screens.
func unlessPrinted(ctx context.Context, n int) error {
	if n > 0 {
		return nil
	}
	return ctx.Err()
}

func positive(text string) int {
	const most = 1000
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0
	}
	return min(n, most)
}
