package historycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
)

// historyFlags are the flags of the command history.
type historyFlags struct {
	recordDir, dataDir, cluster string
	since, until                string
	compare                     string
	by                          []string
	format, output              string
	limit, width                int
	pids                        []int
	own, eachSweep              bool
	wide, widthGiven            bool
}

const historyLong = `Print what the sessions of a server did at a former time, as the worker has
recorded it. Text has a line for each time in which a session did the same. With
--by the command prints totals of sampled seconds. CSV, JSON and --each-sweep have
each session in each sweep, once a second.

The command reads the directory that the worker records to (--record-dir). It
works while worker and server are down. If the directory has
the history of several servers, -D names the data directory of one, or --cluster
its system identifier.

On a terminal the table fits the width. In a pipe, or with --wide, it has all
columns.

Sessions that were idle are not recorded, except if they blocked another session.
In sweeps, a session that ended or became idle has one row more, marked as ended.
The command reports times without a record, sweeps that were lost, and damaged
files.

--by blocker counts the roots: the processes at the begin of a chain of waits,
which themselves wait for no other. Text and totals leave out the sessions of
pg_stat_backtrace itself and say how many; --own adds them.

The format folded has a line for each stack, with milliseconds. pprof, speedscope and
html have each stack with labels, as the command profile writes them. html has a time
axis, with the times that are not recorded, and the recorded texts of queries.

With --compare, the command prints how the average number of sessions has changed
since another span of the same length: by wait event, or by the keys of --by.

Times without a zone are in the zone of this command (TZ), which it prints.`

// NewHistory returns the command history.
func NewHistory() *cobra.Command {
	var f historyFlags
	cmd := &cobra.Command{
		Use:   "history --record-dir DIRECTORY",
		Short: "Print what sessions did at a former time, as the worker has recorded it",
		Long:  historyLong,
		Example: `  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since 03:00 --until 03:05
  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since -15m --pid 4711
  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since -1h --by wait
  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since "yesterday 22:00" --by blocker,user -f csv
  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since -1h --by phrase,stack --limit 10
  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since 03:00 --until 03:05 --compare "yesterday 03:00" --by wait,query
  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since -1h -f folded | flamegraph.pl > night.svg
  pg_stat_backtrace history --record-dir /var/lib/pg_stat_backtrace --since 03:00 --until 03:05 -f html -o night.html`,
		Args: console.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.recordDir = recordDirOf(f.recordDir, f.dataDir); f.recordDir == "" {
				return noRecordDir(f.dataDir)
			}
			f.widthGiven = cmd.Flags().Changed("query-width")
			now := time.Now()
			since, until, err := f.check(now)
			if err != nil {
				return console.Usage(err)
			}
			before := since
			if f.compare != "" {
				if before, err = f.checkCompare(since, until, now); err != nil {
					return console.Usage(err)
				}
			}
			if f.output == "" {
				if err := console.RefuseBinary(f.format, cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			out, err := console.CreateOutput(f.output, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			defer out.Discard()
			switch {
			case f.compare != "":
				err = f.runCompare(cmd.Context(), out, cmd.ErrOrStderr(), since, until, before)
			case !slices.Contains(historyFormats()[:3], f.format):
				err = f.runProfile(cmd.Context(), out, cmd.ErrOrStderr(), since, until)
			default:
				err = f.run(cmd.Context(), out, cmd.ErrOrStderr(), since, until)
			}
			if err != nil {
				return err
			}
			return out.Commit()
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.recordDir, console.FlagRecordDir, "",
		"the `DIRECTORY` to which the worker records (default $STATE_DIRECTORY, or with -D where its worker records)")
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "the server's data `DIRECTORY`, if the history has several servers; "+
		"default without --record-dir: $PGDATA")
	fs.StringVar(&f.cluster, "cluster", "", "the server's system `IDENTIFIER`, if the history has several servers")
	fs.StringVar(&f.since, "since", "-5m", "begin at `TIME`: "+console.WhenUsage)
	fs.StringVar(&f.until, "until", "now", "end before `TIME`")
	fs.StringVar(&f.compare, "compare", "", "compare with the span of the same length that begins at `TIME`")
	fs.StringSliceVar(&f.by, "by", nil, "print totals by `KEYS`: "+strings.Join(store.GroupKeys(), ", "))
	fs.IntSliceVar(&f.pids, "pid", nil, "only the processes with these `PIDS`")
	fs.BoolVar(&f.own, "own", false, "with text, totals and profiles: also the sessions of pg_stat_backtrace itself")
	fs.BoolVar(&f.eachSweep, "each-sweep", false, "with text: each session in each sweep, not only what changes")
	fs.StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: "+strings.Join(historyFormats(), ", "))
	fs.StringVarP(&f.output, "output", "o", "", "write the result to `FILE`; default: standard output")
	fs.IntVar(&f.limit, "limit", 0, "with --by or --compare: print the largest `N` totals (default all)")
	fs.BoolVar(&f.wide, "wide", false, "with text: print all columns on a terminal too")
	fs.IntVar(&f.width, "query-width", 80, "with text: at most `N` characters of each query")
	_ = cmd.MarkFlagDirname(console.FlagRecordDir)
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(store.GroupKeys(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(historyFormats(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// historyFormats returns the output formats: first those for tables, then those for profiles.
func historyFormats() []string {
	return []string{
		console.FormatText, console.FormatJSON, console.FormatCSV,
		profilefmt.Folded, profilefmt.Pprof, profilefmt.Speedscope, profilefmt.HTML,
	}
}

// noRecordDir returns the error for a history whose directory is not known (see recordDirOf).
func noRecordDir(dataDir string) error {
	if dataDir == "" {
		return console.Usage(errors.New("give the directory of the history with --record-dir, or a data directory whose worker records with -D"))
	}
	if _, err := cluster.ByDataDir(dataDir); err != nil && !errors.Is(err, cluster.ErrNotRunning) {
		return err
	}
	return fmt.Errorf("no worker records the history of %s now\n"+
		"  Give the directory of an earlier record with --record-dir, or start one: pg_stat_backtrace worker -D %s --record-dir DIRECTORY",
		dataDir, render.ShellWord(dataDir))
}

// recordDirOf returns the directory of the history: the parameter given, or $STATE_DIRECTORY, or the directory to which
// the worker of a data directory records now. It is empty if none of them is known.
func recordDirOf(given, dataDir string) string {
	dir := cmp.Or(given, strings.Split(os.Getenv("STATE_DIRECTORY"), ":")[0])
	if dir == "" && dataDir != "" {
		dir = console.RecorderDir(dataDir)
	}
	return dir
}

// check validates the flags, and returns the span.
func (f *historyFlags) check(now time.Time) (since, until time.Time, err error) {
	for _, by := range f.by {
		if !slices.Contains(store.GroupKeys(), by) {
			return since, until, fmt.Errorf("--by must be of %s, not %q", strings.Join(store.GroupKeys(), ", "), by)
		}
	}
	switch {
	case f.dataDir != "" && f.cluster != "":
		return since, until, errors.New("-D and --cluster exclude each other")
	case !slices.Contains(historyFormats(), f.format):
		return since, until, fmt.Errorf("--format must be one of %s, not %q", strings.Join(historyFormats(), ", "), f.format)
	case !slices.Contains(historyFormats()[:3], f.format) && len(f.by) > 0:
		return since, until, fmt.Errorf("--by and the format %s exclude each other", f.format)
	case f.eachSweep && (f.format != console.FormatText || len(f.by) > 0 || f.compare != ""):
		return since, until, errors.New("--each-sweep is for the format text, without --by and --compare")
	case f.limit < 0 || f.width < 1:
		return since, until, errors.New("--limit and --query-width must be positive")
	}
	if since, err = console.ParseWhen(f.since, now); err != nil {
		return since, until, fmt.Errorf("--since: %w", err)
	}
	if until, err = console.ParseWhen(f.until, now); err != nil {
		return since, until, fmt.Errorf("--until: %w", err)
	}
	switch {
	case since.After(now):
		err = fmt.Errorf("--since %s is in the future; for the day before write \"yesterday %s\"", since.Format(time.RFC3339), f.since)
	case !until.After(since):
		err = fmt.Errorf("--until %s is not after --since %s", until.Format(time.RFC3339), since.Format(time.RFC3339))
	case until.After(now):
		until = now
	}
	return since, until, err
}

// systemID returns the system identifier of the server of --cluster or -D, or of the only server in the history.
func (f *historyFlags) systemID() (string, error) {
	id := f.cluster
	if f.dataDir != "" {
		control, err := cluster.ReadControl(f.dataDir)
		if err != nil {
			return "", err
		}
		id = control.ID()
	}
	if id == "" {
		ids, err := store.Clusters(f.recordDir)
		if err != nil {
			return "", err
		}
		if len(ids) > 1 {
			return "", console.Usage(fmt.Errorf("%s has the history of several servers; give -D, or --cluster with one of %s",
				f.recordDir, strings.Join(ids, ", ")))
		}
		id = ids[0]
	}
	return id, nil
}

// reader opens the history of the server.
func (f *historyFlags) reader() (*store.Reader, string, error) {
	id, err := f.systemID()
	if err != nil {
		return nil, "", err
	}
	r, err := store.OpenReader(f.recordDir, id)
	return r, id, err
}

// run prints the sweeps of the span or, with --by, their totals.
func (f *historyFlags) run(ctx context.Context, out, errOut io.Writer, since, until time.Time) error {
	r, id, err := f.reader()
	if err != nil {
		return err
	}
	meta, _ := r.Meta()
	p := f.printer(out, errOut, id, &meta)
	p.begin(since, until)
	summary, err := store.ReadSpan(ctx, r, since, until, p.sweep)
	if err != nil {
		return err
	}
	if err := p.readStacks(ctx, r, since, until); err != nil {
		return err
	}
	if err := p.finish(&summary); err != nil {
		return err
	}
	return noSweeps(r, &summary)
}

// noSweeps returns an error if a span has no sweep. The error says which hours the history has.
func noSweeps(r *store.Reader, s *store.Summary) error {
	if s.Sweeps > 0 {
		return nil
	}
	since, until := s.Since.Format(time.RFC3339), s.Until.Format(time.RFC3339)
	first, last := r.Span()
	if first.IsZero() {
		return fmt.Errorf("%w from %s to %s", store.ErrNoHistory, since, until)
	}
	zone := s.Since.Location()
	return fmt.Errorf("%w from %s to %s; the history has hours from %s to %s", store.ErrNoHistory, since, until,
		first.In(zone).Format(time.RFC3339), last.In(zone).Format(time.RFC3339))
}
