package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
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
	connect, tokenFile         string
	view, by, side             string
	filters                    []string
	interval                   time.Duration
	batch                      bool
	count, pid, width, height  int
}

const topLong = `Show what a server does now: the incident screen.

Load shows the active sessions by wait class over time, a line for the processors,
and findings: sentences about blocked sessions, waits, connections and processors,
the worst first. The second view shows the queries, users, events and applications
that take the database time. Blocking shows the processes that wait for locks,
below the processes that block them. Session shows one process: its waits, its live
stack, plan and memory. Flame shows the stacks of active sessions as a tree.
The keys are shown on the screen; ? explains them.

The command reads the server's memory once a second. It needs no connection and no
extension, stops no process, and works while the server accepts no connections and
on a standby. Run it as root or as the server's user. It shows the texts of
queries of all users.

With --connect, the data comes from a worker that runs with --listen, maybe on
another host. A token of its --listen-token-file gives the right to see load and
blocked sessions; an operator token also shows names, texts, stacks, plans and
memory. The token file must not be readable by other users. If the worker stops,
the last data stays, and the command tries again.

If a worker records the server (--record-dir), its files fill the picture of the
time before the start.

--batch prints the screen as plain text, -n times, and --format json the data of
each refresh. Without -D, the command takes the server of this host, or asks which
one if there are several. The environment variable NO_COLOR switches colours off.`

func newTop() *cobra.Command {
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
  pg_stat_backtrace top -D /srv/pgdata --format json -n 1 | jq '.findings.findings[].text'`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := f.check(cmd.Flags().Changed("pid"))
			if err != nil {
				return usage(err)
			}
			return f.run(cmd, state)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "the server's data `DIRECTORY`; default: the server of this host, or a choice")
	fs.StringVar(&f.connect, "connect", "", "show the server of the worker that listens at `URL`, such as https://db1.example:9188")
	fs.StringVar(&f.tokenFile, "token-file", "", "with --connect: the `FILE` with a token of the worker")
	fs.DurationVar(&f.interval, "interval", time.Second, "take a sample every `TIME`, such as 500ms")
	fs.StringVar(&f.recordDir, flagRecordDir, "", "the `DIRECTORY` to which the worker records (default $STATE_DIRECTORY)")
	fs.BoolVar(&f.batch, "batch", false, "print the screen as plain text instead of taking the terminal")
	fs.IntVarP(&f.count, "refreshes", "n", 0, "with --batch or --format json: print `N` refreshes; 0: until an interrupt")
	fs.StringVarP(&f.format, "format", "f", formatText, "`FORMAT` of the result: text, or json (one line for each refresh)")
	fs.StringVar(&f.view, "view", "load", "begin with this `VIEW`: the name of one of the five, in lower case")
	fs.StringVar(&f.by, "by", string(source.ByQuery), "in the second view, count by `PROPERTY`: "+strings.Join(properties(), ", "))
	fs.StringVar(&f.side, "side", string(source.Both), "in the view flame, show the stacks of `SIDE`: both, on-cpu or off-cpu")
	fs.StringArrayVar(&f.filters, "filter", nil, "count only sessions with `PROPERTY=VALUE`; may be given several times")
	fs.IntVar(&f.pid, "pid", 0, "begin with the session of this `PID`, as the server has it")
	fs.IntVar(&f.width, "width", 0, "with --batch: `N` columns (default $COLUMNS, or 120)")
	fs.IntVar(&f.height, "height", 0, "with --batch: `N` lines (default $LINES, or 40)")
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.MarkFlagFilename("token-file")
	_ = cmd.MarkFlagDirname(flagRecordDir)
	_ = cmd.RegisterFlagCompletionFunc("view", cobra.FixedCompletions(view.Names(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(properties(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{formatText, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func properties() (names []string) {
	for _, by := range source.Properties() {
		names = append(names, string(by))
	}
	return names
}

// check validates the flags, and returns the state at the start.
func (f *topFlags) check(pidGiven bool) (*view.State, error) {
	const shortest, longest, most = 100 * time.Millisecond, time.Minute, 1000
	page := slices.Index(view.Names(), f.view)
	by := append(properties(), string(source.ByClass))
	switch {
	case f.interval < shortest || f.interval > longest:
		return nil, fmt.Errorf("--interval must be from %s to %s, not %s", shortest, longest, f.interval)
	case f.connect != "" && (f.dataDir != "" || f.recordDir != ""):
		return nil, errors.New("--connect does not go with -D and --" + flagRecordDir)
	case f.tokenFile != "" && f.connect == "":
		return nil, errors.New("--token-file goes with --connect")
	case f.format != formatText && f.format != formatJSON:
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
	return s, nil
}

// isBatch reports whether the result goes to standard output.
func (f *topFlags) isBatch() bool { return f.batch || f.format == formatJSON }

// run shows the screen or prints it.
func (f *topFlags) run(cmd *cobra.Command, s *view.State) error {
	if !f.isBatch() && (!isTerminal(os.Stdin) || !isTerminal(os.Stdout)) {
		return usage(view.ErrNoTerminal)
	}
	if f.connect != "" {
		return f.runRemote(cmd, s)
	}
	dataDir := f.dataDir
	if dataDir == "" {
		var err error
		if dataDir, err = f.choose(cmd.InOrStdin(), cmd.ErrOrStderr()); err != nil {
			return err
		}
	}
	src, err := f.open(dataDir, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	info, err := src.Info(cmd.Context())
	if err != nil {
		return err
	}
	s.DataDir = info.DataDir
	return f.show(cmd, localSource{src}, s)
}

// runRemote shows or prints the data of a worker.
func (f *topFlags) runRemote(cmd *cobra.Command, s *view.State) error {
	client, err := remote.New(f.connect, f.tokenFile, f.interval)
	if err != nil {
		return err
	}
	if client.InClearText() {
		tellf(cmd.ErrOrStderr(), "warning: the token crosses the network in clear text; use https://")
	}
	if err := client.Check(cmd.Context()); err != nil {
		return err
	}
	s.Connect, s.TokenFile = client.Address(), f.tokenFile
	return f.show(cmd, client, s)
}

// show shows the data on the terminal, or prints it.
func (f *topFlags) show(cmd *cobra.Command, src topSource, s *view.State) error {
	if f.isBatch() {
		return f.print(cmd.Context(), src, s, cmd.OutOrStdout())
	}
	return showTop(cmd.Context(), src, s)
}

func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// choose returns the data directory of the server. With several servers, it asks.
func (f *topFlags) choose(in io.Reader, out io.Writer) (string, error) {
	found, denied, err := allServers()
	if err != nil {
		return "", err
	}
	if f.isBatch() || len(found) < 2 {
		return chooseServer(found, denied)
	}
	_, _ = fmt.Fprintf(out, "%d servers run on this host:\n", len(found)+denied)
	for i, dir := range found {
		_, _ = fmt.Fprintf(out, "%3d  %s\n", i+1, render.VisibleLine(dir))
	}
	if denied > 0 {
		_, _ = fmt.Fprintf(out, "     and %d servers that this user may not examine\n", denied)
	}
	for lines := bufio.NewScanner(in); ; {
		_, _ = fmt.Fprintf(out, "Which one (1 to %d)? ", len(found))
		if !lines.Scan() {
			_, _ = fmt.Fprintln(out)
			return chooseServer(found, denied)
		}
		if n, err := strconv.Atoi(strings.TrimSpace(lines.Text())); err == nil && n >= 1 && n <= len(found) {
			return found[n-1], nil
		}
	}
}

// open returns the source for a server.
func (f *topFlags) open(dataDir string, stderr io.Writer) (*source.Live, error) {
	host.Frugal()
	capturer, err := capture.New(capture.Config{Kept: buildcache.Own})
	if err != nil {
		return nil, err
	}
	o := source.Options{DataDir: dataDir, Interval: f.interval, Capturer: capturer}
	dir := cmp.Or(f.recordDir, strings.Split(os.Getenv("STATE_DIRECTORY"), ":")[0])
	if dir != "" {
		o.Recorded, err = source.OpenRecorded(dir, dataDir)
		switch {
		case err == nil:
		case f.recordDir != "":
			return nil, err
		case !errors.Is(err, store.ErrNoHistory):
			tellf(stderr, "no recorded history: %v", err)
		}
	}
	src, err := source.NewLive(o)
	if errors.Is(err, process.ErrNotPermitted) || errors.Is(err, cluster.ErrNoAccess) || errors.Is(err, cluster.ErrWrongUser) {
		err = fmt.Errorf("%w: run the command as root or as the server's user", err)
	}
	return src, err
}

// Sizes of a printed screen.
const (
	batchWidth, batchHeight = 120, 40
)

// print prints the screen or its data after each sample.
func (f *topFlags) print(ctx context.Context, src topSource, s *view.State, out io.Writer) error {
	changed, end := src.Watch()
	defer end()
	width := cmp.Or(f.width, positive(os.Getenv("COLUMNS")), batchWidth)
	height := cmp.Or(f.height, positive(os.Getenv("LINES")), batchHeight)
	var d *view.Data
	for n := 0; f.count == 0 || n < f.count; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		now := src.Now()
		whole := f.format == formatJSON
		d = src.Fetch(ctx, s, d, now, view.Wide(width) || whole, whole)
		now = src.Now()
		if whole {
			enc := json.NewEncoder(render.VisibleWriter{To: out})
			enc.SetEscapeHTML(false)
			if err := enc.Encode(d); err != nil {
				return err
			}
			continue
		}
		g := view.NewGrid(width, height)
		g.Mono, g.ASCII = true, view.IsASCII()
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

func positive(text string) int {
	const most = 1000
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0
	}
	return min(n, most)
}
