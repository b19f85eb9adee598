package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/measure/sampler"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
)

// profileFlags are the flags of the command profile.
type profileFlags struct {
	format    string
	rate      float64
	duration  time.Duration
	maxFrames int
	most      int
	running   bool
	stats     bool
	output    string
	debugDirs []string
	remote    debuginfodFlags
	cluster   clusterFlags
}

const profileLong = `Sample processes for a while, and print totals by function and by PL/pgSQL line,
and a tree of the most frequent stacks, in which common callers stand once. No
process is stopped, and no system call is interrupted. A running process loses
some microseconds to a timer's interrupt for each sample.

With -D, all processes of a server are sampled, whatever their number, also those
that start or end meanwhile. The server needs no free connection. Each sample has
labels, as in pg_stat_activity at that moment: pid, backend_type, database, user,
application_name, query_id, wait_event_type, wait_event, state. The label query has
the text of one execution of the query, with its constants; text prints a table.
--mode says which time counts:
  cpu      time on a processor, sampled --rate times a second on each processor
  offcpu   sleep, and waits for a processor, from the kernel's context switches.
           The label off_cpu separates them: sleeping, runnable. Total times are
           exact. Stacks are those of long waits and of some short ones.
  wall     both
The command prints to standard error how many samples have all labels, and how
many were lost.
Formats are text, folded, pprof (go tool pprof, Parca, Pyroscope), speedscope and
html. A file given with -o appears when it is complete.

With process ids, up to 64 processes are sampled, without labels, running or not.
Only main threads are sampled: PostgreSQL's processes have no others. While the
command is suspended (^Z), no sample is taken, and that time does not count.

The command loads programs into the kernel. That needs root, or CAP_BPF and
CAP_PERFMON, Linux 6.10, x86_64, and the host's PID namespace. With -D it ends
early if the programs take more than 5 % of all processors. Elsewhere use
"capture --nonstop --format folded --repeat N --interval TIME".`

func newProfile() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "profile [-D DIRECTORY | PID...]",
		Short: "Sample processes, or a whole server, without stopping them, and print where they were",
		Long:  profileLong,
		Example: `  pg_stat_backtrace profile -D /var/lib/postgresql/15/main --duration 30s
  pg_stat_backtrace profile -D /srv/pgdata --mode wall --format html -o profile.html
  pg_stat_backtrace profile -D /srv/pgdata --query-id -4711 --format pprof -o query.pb.gz
  pg_stat_backtrace profile 4711
  pg_stat_backtrace profile --duration 1m --running 4711 4712
  pg_stat_backtrace profile --format folded $(pgrep -f 'postgres: .* SELECT') | flamegraph.pl > server.svg`,
		Args: usageArgs(func(cmd *cobra.Command, args []string) error {
			if f.cluster.dataDir != "" {
				return nil // checkCluster words it
			}
			return cobra.MaximumNArgs(sampler.MaxTargets)(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := takeOnlyServer(&f.cluster.dataDir, len(args) > 0, cmd.ErrOrStderr()); err != nil {
				return err
			}
			if f.cluster.dataDir != "" && !cmd.Flags().Changed("rate") {
				f.rate = clusterprofile.DefaultRate
			}
			pids, err := f.check(args)
			if err == nil {
				err = f.checkCluster(cmd, args)
			}
			switch {
			case err != nil:
				return usage(err)
			case f.cluster.dataDir != "":
				return f.runCluster(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return f.runTo(cmd.Context(), pids, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.format, "format", "f", formatText,
		"`FORMAT` of the result: text, or folded (for a flame graph); with -D also pprof, speedscope or html")
	fs.StringVarP(&f.output, "output", "o", "", "write the result to `FILE`; default: standard output")
	fs.Float64VarP(&f.rate, "rate", "r", 100,
		"`N` samples a second of each process, 0.001 to 1000; with -D of each processor, 1 to 1000, default 99")
	fs.DurationVarP(&f.duration, "duration", "d", 10*time.Second,
		"sample for this `TIME`; an interrupt ends it earlier")
	fs.IntVar(&f.maxFrames, "max-frames", 256, "at most `N` frames, inlined calls included")
	fs.IntVarP(&f.most, "top", "n", 20, "with text: the `N` most frequent stacks, functions and lines")
	fs.BoolVar(&f.running, "running", false, "count only processes that ran or waited for a processor")
	fs.BoolVar(&f.stats, "stats", false, "print the number of samples and their times as JSON, instead of stacks")
	fs.StringSliceVar(&f.debugDirs, "debug-dir", nil, debugDirUsage)
	f.remote.add(cmd)
	f.cluster.add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(profilefmt.Formats(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check validates the flags and returns the processes.
func (f *profileFlags) check(args []string) ([]int, error) {
	const slowest, fastest = 0.001, 1000
	switch {
	case !slices.Contains(profilefmt.Formats(), f.format):
		return nil, fmt.Errorf("--format must be one of %s, not %q", strings.Join(profilefmt.Formats(), ", "), f.format)
	case !(f.rate >= slowest && f.rate <= fastest): // not a number is neither
		return nil, fmt.Errorf("--rate must be from %v to %d, not %v", slowest, fastest, f.rate)
	case f.duration <= 0:
		return nil, fmt.Errorf("--duration must be more than 0, not %s", f.duration)
	case f.maxFrames < 1 || f.maxFrames > limits.MaxFrames:
		return nil, fmt.Errorf("--max-frames must be from 1 to %d, not %d", limits.MaxFrames, f.maxFrames)
	case f.most < 1:
		return nil, fmt.Errorf("--top must be at least 1, not %d", f.most)
	}
	return processIDs(args)
}

// processIDs reads the arguments.
func processIDs(args []string) ([]int, error) {
	pids := make([]int, len(args))
	for i, arg := range args {
		pid, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("%q is not a process id", arg)
		}
		pids[i] = int(pid)
	}
	return pids, nil
}

// runTo samples, and prints what came of it to the output.
func (f *profileFlags) runTo(ctx context.Context, pids []int, stdout, stderr io.Writer) error {
	out, err := createOutput(f.output, stdout)
	if err != nil {
		return err
	}
	defer out.discard()
	if err := f.run(ctx, pids, out, stderr); err != nil {
		return err
	}
	return out.commit()
}

// errNoSample means that there is nothing to print.
var errNoSample = errors.New("no sample")

// run samples, and prints what came of it; after an interrupt, what has come until then.
func (f *profileFlags) run(ctx context.Context, pids []int, stdout, stderr io.Writer) error {
	capturer, closeRemote, err := f.remote.capturer(stderr, f.debugDirs)
	if err != nil {
		return err
	}
	defer closeRemote()
	slices.Sort(pids)
	targets := identities(slices.Compact(pids))
	for _, target := range targets {
		if why := ended(target); why != "" && len(targets) > 1 {
			tellf(stderr, "%s", why)
		}
	}
	p := profile{profileFlags: f, folded: render.Folded{ByProcess: len(targets) > 1}}
	p.figures, err = capturer.Profile(ctx, targets, capture.ProfileOptions{
		MaxFrames: f.maxFrames, Interval: time.Duration(float64(time.Second) / f.rate), Duration: f.duration,
	}, p.add)
	if n := p.figures.Unseen; n > 0 {
		tellf(stderr, "on %d of the processors this program may not run (cpuset): who was there was not sampled", n)
	}
	if n := p.figures.Missed; n > 0 && n*100 > p.seen {
		tellf(stderr, "%d looks found a process and could not sample it; %d samples were taken", n, p.seen)
	}
	switch {
	case errors.Is(err, process.ErrExited) && p.seen > 0:
		tellf(stderr, "all processes have ended")
	case errors.Is(err, sampler.ErrUnsupported), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w\nTake \"pg_stat_backtrace capture --format folded --repeat N --interval TIME PID\" instead, "+
			"which stops the processes", err)
	case err != nil && len(targets) == 1 && !errors.Is(err, context.Canceled):
		if why := ended(targets[0]); why != "" && errors.Is(err, process.ErrExited) {
			return errors.New(why)
		}
		return errors.New(explain(targets[0].PID, err))
	case err != nil:
		return err
	}
	if note := backtrace.GeneratedNote(p.generated, p.counted); note != "" {
		tellf(stderr, "%s", note)
	}
	if p.counted == 0 {
		return fmt.Errorf("%w in %s", errNoSample, p.figures.Took.Round(time.Millisecond))
	}
	return p.tell(stdout)
}

// ended says of a process that has no main thread any more why no samples of it are to be had; of others "".
func ended(target process.Target) string {
	stat, err := procfs.ReadStat(target.PID)
	switch {
	case target.StartTime == 0, errors.Is(err, fs.ErrNotExist):
	case err != nil, !process.IsDead(stat.State):
		return ""
	case stat.Threads > 1:
		return fmt.Sprintf("the main thread of process %d has ended, and only main threads are sampled\n"+
			"  Take \"pg_stat_backtrace capture --threads %d\".", target.PID, target.PID)
	}
	return explain(target.PID, process.ErrExited)
}

// profile has the samples of one call.
type profile struct {
	*profileFlags

	seen, counted int
	generated     int // of those counted: they end in code compiled at run time
	folded        render.Folded
	figures       capture.ProfileStats
}

// add counts samples.
func (p *profile) add(t *backtrace.Trace, times int) error {
	p.seen += times
	if p.running && t.Threads[0].State != 'R' {
		return nil
	}
	p.counted += times
	if t.Threads[0].Generated {
		p.generated += times
	}
	if !p.stats {
		p.folded.Add(t, times)
	}
	return nil
}

// profileStats are the figures of a profile of processes.
type profileStats struct {
	// Count is the number of samples, Missed of those without a stack.
	Count   int     `json:"count"`
	Missed  int     `json:"missed"`
	Seconds float64 `json:"seconds"`
	// Unwind and Symbolize are means for a sample.
	Unwind    float64 `json:"unwind_us_mean"`
	Symbolize float64 `json:"symbolize_us_mean"`
}

// tell prints the result.
func (p *profile) tell(w io.Writer) error {
	took := p.figures.Took
	switch {
	case p.stats:
		each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(p.seen) }
		return render.JSONEncoder(w).Encode(profileStats{p.counted, p.figures.Missed, took.Seconds(), each(p.figures.Unwind), each(p.figures.Symbolize)})
	case p.format == formatFolded:
		return p.folded.Write(w)
	}
	var folded bytes.Buffer
	if err := p.folded.Write(&folded); err != nil {
		return err
	}
	summary, err := profilefmt.Read(&folded, budget.New(budget.Memory, "memory"))
	if err != nil {
		return err
	}
	return profilefmt.Write(w, summary, profilefmt.Options{
		Format: profilefmt.Text, Title: fmt.Sprintf("%d samples in %.1f s", p.counted, took.Seconds()), Top: p.most,
	})
}
