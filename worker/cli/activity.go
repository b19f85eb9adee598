package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

// activityFlags are the flags of the command activity.
type activityFlags struct {
	dataDir, sort, format string
	watch                 time.Duration
	width                 int
	wide, widthGiven      bool
	tree, noPhrases       bool
	plans                 bool
	pids                  []int             // processes to print; empty: all
	capturer              *capture.Capturer // for phrases; nil: not created yet
	ran                   map[runKey]ran    // processor time at the last look, by process
	clients, slots        int               // numbers of client backends, and of connection slots for ordinary roles; 0: not known
	standbys              string            // synchronous_standby_names, if a commit waits for standbys; empty: not known
	lockPhrases           map[int]string    // keys of the phrases of sessions that wait for a lock, by process id of the server
}

const activityLong = `Print what each process of a server does now: its type, database, user, client,
state, wait event and query, and since when. The figures are those of
pg_stat_activity. They are read from the server's memory, so the command works
while the server accepts no connections, as with "too many clients".

The server needs no change, no extension and no worker. The command needs the
right to read the server's memory: run it as root or as the server's user. It
shows the texts of queries of all users.

Ages in CSV are in seconds. cpu is the share of one processor that the process used
in the last 200 ms, or with --watch since the last look. blocked_by has the processes that hold a lock
for which the process waits, or wait for it in front of the process.

phrase says in words what a process does, and function is the PL/pgSQL function
and line, from a stack that is taken without a stop. They are missing if the
process is idle, or if it began something else meanwhile. --plans adds the node of the plan that
runs and its progress to phrase, for builds that "plan --calibrate" has compared.

On a terminal the table fits the width: columns without values and texts without
room are left out, and the column state has the type of other processes than
client backends. In a pipe, or with --wide, it has all columns.

--tree prints only processes that block others or wait for a lock: first those
that do not wait, and below each one the processes that wait for it. A relation
whose name is not certain is a number. A prepared transaction has process id 0
and its name. JSON always has this tree in "blocking".

With process ids, only these processes of one server are printed, and with --tree
the trees that contain them. Without -D and process ids, the command takes the
server of $PGDATA, else the server of this host, if there is only one.`

func newActivity() *cobra.Command {
	var f activityFlags
	cmd := &cobra.Command{
		Use:   "activity [-D DIRECTORY | PID...]",
		Short: "Print what each process of a server does now, also while it accepts no connections",
		Long:  activityLong,
		Example: `  pg_stat_backtrace activity -D /var/lib/postgresql/15/main
  pg_stat_backtrace activity 4711 4712
  pg_stat_backtrace activity -D /srv/pgdata --sort cpu
  pg_stat_backtrace activity -D /srv/pgdata --tree
  pg_stat_backtrace activity -D /srv/pgdata --sort transaction --watch 2s
  pg_stat_backtrace activity -D /srv/pgdata --format json | jq '.sessions[].query'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return console.Usage(err)
			}
			f.widthGiven = cmd.Flags().Changed("query-width")
			if err := console.TakeOnlyServer(&f.dataDir, len(args) > 0, cmd.ErrOrStderr()); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "the server's data `DIRECTORY`; default: $PGDATA, else the only server of this host")
	_ = cmd.MarkFlagDirname("pgdata")
	fs.StringVar(&f.sort, "sort", "pid",
		"`ORDER` of the processes: pid, or the oldest transaction, query or state first, or cpu: the busiest first")
	fs.StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: text, json or csv")
	fs.BoolVar(&f.tree, "tree", false, "with text: print processes that block others, with their waiters below them, instead of all")
	fs.DurationVar(&f.watch, "watch", 0, "print again every `TIME`, such as 2s, until an interrupt")
	fs.BoolVar(&f.noPhrases, "no-phrases", false, "take no stacks, and leave the columns phrase and function empty")
	fs.BoolVar(&f.plans, "plans", false, "add the running node of each plan and its progress to phrase; costs milliseconds a statement")
	fs.BoolVar(&f.wide, "wide", false, "with text: print all columns on a terminal too")
	fs.IntVar(&f.width, "query-width", 80, "with text: at most `N` characters of each query")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(activityOrders(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{console.FormatText, console.FormatJSON, console.FormatCSV}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func activityOrders() []string { return []string{"pid", "transaction", "query", "state", "cpu"} }

// check validates the flags.
func (f *activityFlags) check(args []string) (err error) {
	const shortest = 100 * time.Millisecond
	switch {
	case f.dataDir != "" && len(args) > 0:
		return console.ErrBoth
	case f.tree && f.format == console.FormatCSV:
		return errors.New("--tree prints text or json, not csv")
	case f.plans && f.noPhrases:
		return errors.New("--plans and --no-phrases exclude each other")
	case !slices.Contains(activityOrders(), f.sort):
		return fmt.Errorf("--sort must be one of %s, not %q", strings.Join(activityOrders(), ", "), f.sort)
	case f.format != console.FormatText && f.format != console.FormatJSON && f.format != console.FormatCSV:
		return fmt.Errorf("--format must be text, json or csv, not %q", f.format)
	case f.watch != 0 && f.watch < shortest:
		return fmt.Errorf("--watch must be at least %s, not %s", shortest, f.watch)
	case f.width < 1:
		return fmt.Errorf("--query-width must be at least 1, not %d", f.width)
	}
	f.pids, err = console.ProcessIDs(args)
	return err
}

// server returns the server whose processes are printed.
func (f *activityFlags) server() (cluster.Cluster, error) {
	if len(f.pids) > 0 {
		return console.ServerOf(f.pids)
	}
	return cluster.ByDataDir(f.dataDir)
}

// run prints what the processes do now: once or, with --watch, again and again until an interrupt.
func (f *activityFlags) run(ctx context.Context, out, stderr io.Writer) error {
	c, err := f.server()
	if err != nil {
		return err
	}
	reader, err := state.Open(c)
	if err != nil {
		return err
	}
	for {
		m, err := reader.Read(state.Options{Texts: true})
		if err != nil {
			return err
		}
		look := f.look(m)
		reader.Blocking(m)
		f.countSlots(reader, m)
		f.standbys = ""
		if slices.ContainsFunc(m.Sessions, func(s moment.Session) bool { return s.Wait != nil && s.Wait.Event == "SyncRep" }) {
			f.standbys = reader.Text("SyncRepStandbyNames")
		}
		if !f.noPhrases {
			f.addPhrases(ctx, reader, m)
		}
		f.measure(ctx, m, look)
		missing := f.selectProcesses(m)
		f.order(m)
		if err := f.print(out, stderr, m); err != nil {
			return err
		}
		for _, pid := range missing {
			console.Tellf(stderr, "process %d has no session now, or has ended", pid)
		}
		switch {
		case len(missing) > 0 && (f.watch == 0 || len(missing) == len(f.pids)):
			return console.ErrReported
		case f.watch == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.watch):
		}
	}
}

// countSlots sets the number of connection slots and of the client backends that use them.
func (f *activityFlags) countSlots(reader *state.Reader, m *moment.Moment) {
	f.clients, f.slots = 0, reader.OrdinarySlots()
	for i := range m.Sessions {
		if m.Sessions[i].Type == state.ClientBackend {
			f.clients++
		}
	}
}

// order sorts the processes by the time that --sort names, or by their processor time. Processes without this time come last.
func (f *activityFlags) order(m *moment.Moment) {
	if f.sort == "cpu" {
		sort.SliceStable(m.Sessions, func(i, j int) bool {
			a, b := m.Sessions[i], m.Sessions[j]
			return cmp.Compare(cpuOf(&b), cpuOf(&a)) < 0
		})
		return
	}
	key := map[string]func(*moment.Session) *time.Time{
		"transaction": func(s *moment.Session) *time.Time { return s.XactStart },
		"query":       func(s *moment.Session) *time.Time { return s.QueryStart },
		"state":       func(s *moment.Session) *time.Time { return s.StateStart },
	}[f.sort]
	if key == nil {
		return
	}
	slices.SortStableFunc(m.Sessions, func(a, b moment.Session) int {
		x, y := key(&a), key(&b)
		if x == nil || y == nil {
			return cmp.Compare(oneIfNil(x), oneIfNil(y))
		}
		return x.Compare(*y)
	})
}

func oneIfNil(t *time.Time) int {
	if t == nil {
		return 1
	}
	return 0
}

// print prints the processes to out. CSV has no place for what could not be read, so this goes to stderr.
func (f *activityFlags) print(out, stderr io.Writer, m *moment.Moment) error {
	switch f.format {
	case console.FormatJSON:
		return render.JSONEncoder(out).Encode(activityDocument{m, m.Cluster})
	case console.FormatCSV:
		for _, missing := range m.Missing {
			console.Tellf(stderr, "missing: %s", missing)
		}
		return f.csv(out, m)
	}
	if f.tree {
		return f.forest(out, m)
	}
	return f.text(out, m)
}

// activityDocument says what the processes of a server do.
type activityDocument struct {
	*moment.Moment

	// Deprecated: read data_directory.
	Former string `json:"cluster"`
}

// header returns the columns for a moment: those of activityHeader, and in text also the process ids of this host if the server
// has its own.
func (f *activityFlags) header(m *moment.Moment) []string {
	if f.format == console.FormatText && m.OwnPIDs() {
		return slices.Insert(activityHeader(), 1, "host_pid")
	}
	return activityHeader()
}

func activityHeader() []string {
	return []string{
		"pid", "backend_type", "database", "user", "application_name", "client", "state", "xact_age", "query_age",
		"state_age", "cpu", "phrase", "function", "wait_event", "wait_age", "blocked_by", "query",
	}
}

// row returns the columns of a process, in the order of header.
func (f *activityFlags) row(m *moment.Moment, s *moment.Session) []string {
	age, cpu := func(t *time.Time) string { return secondsSince(m, t) }, ""
	if s.CPUPercent != nil {
		cpu = strconv.FormatFloat(*s.CPUPercent, 'f', 1, 64)
	}
	if f.format == console.FormatText {
		if s.CPUPercent != nil {
			cpu = fmt.Sprintf("%.0f %%", *s.CPUPercent)
		}
		age = func(t *time.Time) string { return ageOf(m, t) }
	}
	wait, waitAge := "", ""
	if s.Wait != nil {
		wait, waitAge = s.Wait.Type+":"+s.Wait.Event, age(s.Wait.Since)
	}
	row := []string{
		strconv.Itoa(s.ServerPID), s.Type, console.NameOrOID(s.Database, s.DatabaseOID), console.NameOrOID(s.User, s.UserOID), s.Application,
		s.Client, s.State, age(s.XactStart), age(s.QueryStart), age(s.StateStart), cpu, s.Phrase, s.Function,
		wait, waitAge, blockedBy(s), s.Query,
	}
	if f.format == console.FormatText && m.OwnPIDs() {
		row = slices.Insert(row, 1, strconv.Itoa(s.PID))
	}
	return row
}

// ageOf returns the time from t to the moment in words; empty: t is nil, or in the future because the server's clock differs.
func ageOf(m *moment.Moment, t *time.Time) string {
	if t == nil || units.Ahead(m.Time, *t) {
		return ""
	}
	return units.Age(m.Time.Sub(*t))
}

// secondsSince returns the seconds from t to the moment, at least 0; empty as ageOf.
func secondsSince(m *moment.Moment, t *time.Time) string {
	if t == nil || units.Ahead(m.Time, *t) {
		return ""
	}
	return strconv.FormatFloat(max(0, m.Time.Sub(*t).Seconds()), 'f', 1, 64)
}

// blockedBy lists the blockers of a session.
func blockedBy(s *moment.Session) string {
	const most = 8
	var names []string
	for i := range s.Blockers {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(s.Blockers)-most))
			break
		}
		b := &s.Blockers[i]
		names = append(names, nodeName(b.PID, b.XID, b.GID))
	}
	if names == nil && s.BlockersUnknown != "" {
		return "unknown"
	}
	return strings.Join(names, ", ")
}

func (f *activityFlags) csv(out io.Writer, m *moment.Moment) error {
	w := table.CSV(out)
	w.Row(activityHeader()...)
	for i := range m.Sessions {
		w.Row(f.row(m, &m.Sessions[i])...)
	}
	return w.Flush()
}

// title is the line above the processes. It has the connection slots, unless the user has chosen processes.
func (f *activityFlags) title(m *moment.Moment) string {
	slots := ""
	if f.slots > 0 && len(f.pids) == 0 {
		slots = fmt.Sprintf(", %d of %d connection slots in use", f.clients, f.slots)
	}
	title := fmt.Sprintf("%s: %s at %s%s\n",
		render.VisibleLine(m.Cluster), units.Count(len(m.Sessions), "process"), m.Time.Format(time.RFC3339), slots)
	if m.OwnPIDs() {
		title += "The server has other process ids than this host, as in a container: pid is for SQL, host_pid for commands here.\n"
	}
	return title
}

func (f *activityFlags) text(out io.Writer, m *moment.Moment) error {
	_, _ = io.WriteString(out, f.title(m))
	if width := console.TerminalWidth(out); width > 0 && !f.wide {
		if err := f.fitted(out, m, width); err != nil {
			return err
		}
		return printMissing(out, m)
	}
	w := table.Text(out, table.Options{Empty: "-"})
	w.Row(f.header(m)...)
	for i := range m.Sessions {
		row := f.row(m, &m.Sessions[i])
		last := len(row) - 1
		row[last] = table.Cut(row[last], f.width)
		w.Row(row...)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printMissing(out, m)
}

func printMissing(out io.Writer, m *moment.Moment) (err error) {
	for _, missing := range m.Missing {
		_, err = fmt.Fprintf(out, "missing: %s\n", render.VisibleLine(missing))
	}
	return err
}
