package measurecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/bpf"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// profileFlags are the flags of the command profile.
type profileFlags struct {
	format       string
	rate         float64
	duration     time.Duration
	maxFrames    int
	most         int
	running      bool
	stats        bool
	output       string
	debugDirs    []string
	remote       console.DebuginfodFlags
	dataDir      string
	mode         string
	queryIDs     []string
	users        []string
	databases    []string
	backendTypes []string
	by           []string
}

const profileLong = `Sample a server or some of its processes for a while, and print totals by
function and by PL/pgSQL line, and a tree of the most frequent stacks, in which
common callers stand once. No process is stopped, and no system call is
interrupted. A running process loses some microseconds to a timer's interrupt
for each sample.

With -D, all processes of a server are sampled, whatever their number, also those
that start or end meanwhile. With process ids, these processes of one server are
sampled: its postmaster can be one of them. The server needs no free connection.
Each sample has labels, as in pg_stat_activity at that moment: pid, backend_type,
database, user, application_name, query_id, wait_event_type, wait_event, state.
The label query has the text of one execution of the query, with its constants;
text prints a table.
--mode says which time counts:
  cpu      time on a processor, sampled --rate times a second on each processor;
           the default with -D
  offcpu   sleep, and waits for a processor, from the kernel's context switches.
           The label off_cpu separates them: sleeping, runnable. Total times are
           exact. Stacks are those of long waits and of some short ones.
  wall     both; the default with process ids
The command prints to standard error how many samples have all labels, and how
many were lost.
Formats are text, json, folded, pprof (go tool pprof, Parca, Pyroscope), speedscope and
html. A file given with -o appears when it is complete.

Only main threads are sampled: PostgreSQL's processes have no others.

The command loads programs into the kernel. That needs root, or CAP_BPF and
CAP_PERFMON, Linux 6.10, x86_64, and the host's PID namespace. It ends early if
the programs take more than 5 % of all processors. Elsewhere, and for processes of
other programs, use
"capture --nonstop --format folded --repeat N --interval TIME".`

// NewProfile returns the command profile.
func NewProfile() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "profile [-D DIRECTORY | PID...]",
		Short: "Sample a server, or some of its processes, without stopping them, and print where they were",
		Long:  profileLong,
		Example: `  pg_stat_backtrace profile -D /var/lib/postgresql/15/main --duration 30s
  pg_stat_backtrace profile -D /srv/pgdata --mode wall --format html -o profile.html
  pg_stat_backtrace profile -D /srv/pgdata --query-id -4711 --format pprof -o query.pb.gz
  pg_stat_backtrace profile 4711
  pg_stat_backtrace profile --duration 1m --mode cpu 4711 4712
  pg_stat_backtrace profile --format folded $(pgrep -f 'postgres: .* SELECT') | flamegraph.pl > server.svg`,
		Args: console.UsageArgs(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := console.TakeOnlyServer(&f.dataDir, len(args) > 0, cmd.ErrOrStderr()); err != nil {
				return err
			}
			if f.dataDir == "" && !cmd.Flags().Changed("mode") {
				f.mode = string(clusterprofile.Wall)
			}
			if f.running {
				console.Tellf(cmd.ErrOrStderr(), "--running is the former name of --mode cpu")
				f.mode = string(clusterprofile.CPU)
			}
			if len(args) > 1 && !cmd.Flags().Changed("group-by") {
				f.by = []string{clusterprofile.LabelPID}
			}
			pids, err := f.check(args)
			if err != nil {
				return console.Usage(err)
			}
			return f.run(cmd.Context(), pids, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.format, "format", "f", console.FormatText,
		"`FORMAT` of the result: text, json, folded (for flame graphs), pprof, speedscope or html")
	fs.StringVarP(&f.output, "output", "o", "", "write the result to `FILE`; default: standard output")
	fs.Float64VarP(&f.rate, "rate", "r", clusterprofile.DefaultRate,
		"`N` samples a second of each processor, and stacks of waits of each process, 1 to 1000")
	fs.DurationVarP(&f.duration, "duration", "d", clusterprofile.DefaultDuration,
		"sample for this `TIME`; an interrupt ends it earlier")
	fs.IntVar(&f.maxFrames, "max-frames", 256, "at most `N` frames, inlined calls included")
	fs.IntVarP(&f.most, "top", "n", 20, "with text: the `N` most frequent stacks, functions and lines")
	fs.BoolVar(&f.running, "running", false, "the same as --mode cpu")
	_ = fs.MarkHidden("running") // former name, for one more release
	fs.BoolVar(&f.stats, "stats", false, "print the number of samples and their times as JSON, instead of stacks")
	fs.StringSliceVar(&f.debugDirs, "debug-dir", nil, console.DebugDirUsage)
	f.remote.Add(cmd)
	f.addServer(cmd)
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(profilefmt.Formats(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// addServer adds the flags that select processes and times of a server.
func (f *profileFlags) addServer(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "",
		"sample all processes of the server with this data `DIRECTORY`; default: $PGDATA, else the only server of this host")
	fs.StringVarP(&f.mode, "mode", "m", string(clusterprofile.CPU),
		"`MODE`: time on the processor (cpu), off it (offcpu), or both (wall, the default with process ids)")
	fs.StringSliceVar(&f.queryIDs, "query-id", nil, "only samples in which the statement with this query `ID` runs")
	fs.StringSliceVar(&f.users, "user", nil, "only sessions of the user `NAME`")
	fs.StringSliceVar(&f.databases, "database", nil, "only processes in the database `NAME`")
	fs.StringSliceVar(&f.backendTypes, "backend-type", nil, "only processes of this `TYPE`, such as \"client backend\"")
	fs.StringSliceVar(&f.by, "group-by", []string{clusterprofile.LabelBackendType},
		"`LABELS` to show as outermost frames (not with pprof and json), such as backend_type,query_id; "+
			"the default with several process ids is pid")
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.RegisterFlagCompletionFunc("mode",
		cobra.FixedCompletions(clusterprofile.Modes(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("group-by",
		cobra.FixedCompletions(clusterprofile.Labels(), cobra.ShellCompDirectiveNoFileComp))
}

// check validates the flags and returns the process ids.
func (f *profileFlags) check(args []string) ([]int, error) {
	switch {
	case f.dataDir != "" && len(args) > 0:
		return nil, console.ErrBoth
	case !slices.Contains(profilefmt.Formats(), f.format):
		return nil, fmt.Errorf("--format must be one of %s, not %q", strings.Join(profilefmt.Formats(), ", "), f.format)
	case !slices.Contains(clusterprofile.Modes(), f.mode):
		return nil, fmt.Errorf("--mode must be cpu, offcpu or wall, not %q", f.mode)
	case !(f.rate >= 1 && f.rate <= clusterprofile.MaxRate): // in this form, it is true for NaN too
		return nil, fmt.Errorf("--rate must be from 1 to %d, not %v", clusterprofile.MaxRate, f.rate)
	case f.duration <= 0 || f.duration > clusterprofile.MaxDuration:
		return nil, fmt.Errorf("--duration must be more than 0 and at most %s, not %s", clusterprofile.MaxDuration, f.duration)
	case f.maxFrames < 1 || f.maxFrames > limits.MaxFrames:
		return nil, fmt.Errorf("--max-frames must be from 1 to %d, not %d", limits.MaxFrames, f.maxFrames)
	case f.most < 1:
		return nil, fmt.Errorf("--top must be at least 1, not %d", f.most)
	}
	for _, name := range f.by {
		if !slices.Contains(clusterprofile.Labels(), name) {
			return nil, fmt.Errorf("--group-by: no label %q: choose from %s", name, strings.Join(clusterprofile.Labels(), ", "))
		}
	}
	if _, err := f.filter(); err != nil {
		return nil, err
	}
	pids, err := console.ProcessIDs(args)
	slices.Sort(pids)
	return slices.Compact(pids), err
}

// filter returns the filter for samples that the flags define.
func (f *profileFlags) filter() (clusterprofile.Filter, error) {
	filter := clusterprofile.Filter{Users: f.users, Databases: f.databases, BackendTypes: f.backendTypes}
	for _, text := range f.queryIDs {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return filter, fmt.Errorf("--query-id: %q is not a query id", text)
		}
		filter.QueryIDs = append(filter.QueryIDs, id)
	}
	return filter, nil
}

// unseen returns a sentence for each user, database and backend type of the filter that no process of the server has now.
func (f *profileFlags) unseen(server cluster.Cluster) []string {
	if len(f.users)+len(f.databases)+len(f.backendTypes) == 0 {
		return nil
	}
	reader, err := state.Open(server)
	if err != nil {
		return nil
	}
	m, err := reader.Read(state.Options{})
	if err != nil {
		return nil
	}
	return append(state.Unseen(f.users, f.databases, state.NamesOf(m)), state.UnseenTypes(f.backendTypes, m)...)
}

// describe returns the filter in words; empty: no filter.
func (f *profileFlags) describe() string {
	var parts []string
	add := func(name string, values []string) {
		if len(values) > 0 {
			parts = append(parts, name+" "+strings.Join(values, " or "))
		}
	}
	add("query id", f.queryIDs)
	add("user", f.users)
	add("database", f.databases)
	add("backend type", f.backendTypes)
	return strings.Join(parts, ", ")
}

// target returns the server, and those of its processes that the command samples; nil: all. It reports on stderr which of the
// processes pids have ended.
func (f *profileFlags) target(pids []int, stderr io.Writer) (cluster.Cluster, []process.ID, error) {
	if len(pids) == 0 {
		c, err := cluster.ByDataDir(f.dataDir)
		return c, nil, err
	}
	var server cluster.Cluster
	var chosen []process.ID
	for i, pid := range pids {
		c, id, err := member(pid)
		switch {
		case console.IsGone(err) && (i < len(pids)-1 || len(chosen) > 0):
			console.Tellf(stderr, "%s", gone(pid, id))
			continue
		case console.IsGone(err):
			return c, nil, errors.New(gone(pid, id))
		case err != nil:
			return c, nil, err
		case len(chosen) > 0 && !server.Same(c):
			return c, nil, fmt.Errorf("processes %d and %d belong to different servers\nTake a profile of each server",
				chosen[0].PID, pid)
		}
		server, chosen = c, append(chosen, id)
	}
	return server, chosen, nil
}

// gone returns the message that a process has ended or, if id is zero, that it does not exist.
func gone(pid int, id process.ID) string {
	if _, err := process.ReadStat(pid); errors.Is(err, process.ErrGone) && id.StartTime == 0 {
		return console.NoProcess(pid)
	}
	return console.Explain(pid, process.Exited(pid))
}

// member returns the server of a process, and the identity of the process. It returns an error for a process that does not belong
// to a server, has ended, or may not be read.
func member(pid int) (cluster.Cluster, process.ID, error) {
	id, err := process.IDOf(pid)
	if err != nil {
		return cluster.Cluster{}, id, err
	}
	c, err := cluster.ByProcess(pid)
	if why := console.NotOfServer(pid, err); why != "" {
		return c, id, errors.New(why)
	}
	if errors.Is(err, cluster.ErrWrongUser) || errors.Is(err, cluster.ErrNoAccess) || errors.Is(err, process.ErrExited) {
		return c, id, err
	}
	stranger := fmt.Errorf("%s\n"+
		"Take \"pg_stat_backtrace capture --nonstop --format folded --repeat N --interval TIME %d\" instead", console.Stranger(pid), pid)
	if err != nil {
		return c, id, stranger
	}
	if pid == c.PostmasterPID {
		return c, id, nil
	}
	members, err := c.Members()
	if err != nil {
		return c, id, err
	}
	i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.Local == pid && m.StartTime == id.StartTime })
	switch {
	case i >= 0:
		return c, id, members[i].Denied
	case id.Ended():
		return c, id, process.Exited(pid)
	}
	return c, id, stranger
}

// run samples, and prints the profile. After an interrupt, the profile has the samples until then.
func (f *profileFlags) run(ctx context.Context, pids []int, stdout, stderr io.Writer) error {
	if f.output == "" && !f.stats {
		if err := console.RefuseBinary(f.format, stdout); err != nil {
			return err
		}
	}
	filter, err := f.filter()
	if err != nil {
		return console.Usage(err)
	}
	server, chosen, err := f.target(pids, stderr)
	if err != nil {
		return err
	}
	out, err := console.CreateOutput(f.output, stdout)
	if err != nil {
		return err
	}
	defer out.Discard()
	capturer, closeRemote, err := f.remote.Capturer(stderr, f.debugDirs)
	if err != nil {
		return err
	}
	defer closeRemote()
	mode := clusterprofile.Mode(f.mode)
	shown := console.Terminal(stderr)
	p, summary, err := clusterprofile.Collect(ctx, clusterprofile.Options{
		Cluster: &server, Processes: chosen, Mode: mode, Rate: f.rate, Duration: f.duration, Filter: filter,
		MaxFrames: f.maxFrames, Capturer: capturer, Texts: true, Progress: func(took time.Duration, samples int) {
			if shown {
				_, _ = fmt.Fprintf(stderr, "\r\x1b[K%.0f of %s, %s", took.Seconds(), f.duration, units.Count(samples, "stack"))
			}
		},
	})
	if shown {
		_, _ = io.WriteString(stderr, "\r\x1b[K")
	}
	switch {
	case errors.Is(err, clusterbpf.ErrUnsupported), errors.Is(err, fs.ErrPermission):
		return WithoutPrograms(f.dataDir, pids, err)
	case errors.Is(err, clusterprofile.ErrNoSamples) && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, clusterprofile.ErrNoSamples) && summary.ProcessesEnded:
		return fmt.Errorf("%w: all processes have ended", err)
	case errors.Is(err, clusterprofile.ErrNoSamples):
		return noSamples(err, mode, f.describe(), f.unseen(server))
	case err != nil:
		return err
	}
	tellSummary(stderr, summary)
	if err := f.write(out, p, summary, server.Version); err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	return out.Commit()
}

// write prints a profile in the format of the flags or, with --stats, its figures.
func (f *profileFlags) write(out io.Writer, p *pprof.Profile, summary *clusterprofile.Summary, version int) error {
	if f.stats {
		return writeProfileStats(out, summary)
	}
	about := fmt.Sprintf("%s, PostgreSQL %d, %s, %.1f s, %v samples a second of each processor", summary.Server,
		version, time.Unix(0, p.TimeNanos).UTC().Format(time.RFC3339), summary.Took.Seconds(), summary.Rate)
	if only := f.describe(); only != "" {
		about += ", only " + only
	}
	return profilefmt.Write(out, p, profilefmt.Options{
		Format: f.format, Title: titleOf(summary.Mode), Subtitle: about, Root: f.by, Top: f.most, Notes: summary.Notes(),
	})
}

// ProfileStats are the figures of a profile.
type ProfileStats struct {
	// Count is the number of samples. Missed is the number of samples that were lost or have no stack.
	Count   int     `json:"count"`
	Missed  int     `json:"missed"`
	Seconds float64 `json:"seconds"`
	// Kernel and Own are the processor time of the BPF programs in the kernel and of this command.
	Kernel float64 `json:"kernel_seconds"`
	Own    float64 `json:"own_seconds"`
}

// writeProfileStats prints the figures of a profile as JSON.
func writeProfileStats(w io.Writer, s *clusterprofile.Summary) error {
	return render.JSONEncoder(w).Encode(ProfileStats{
		Count: s.Taken, Missed: s.Lost + s.NoStack, Seconds: s.Took.Seconds(), Kernel: s.KernelTime.Seconds(),
		Own: s.WorkerCPU.Seconds(),
	})
}

func titleOf(mode clusterprofile.Mode) string {
	switch mode {
	case clusterprofile.OffCPU:
		return "Time off the processor"
	case clusterprofile.Wall:
		return "Time on and off the processor"
	default:
		return "Time on the processor"
	}
}

// WithoutPrograms adds advice to err, an error of loading BPF programs: where the programs can run, and a command that works
// without them.
func WithoutPrograms(dataDir string, pids []int, err error) error {
	remedy := "Run it on the server's host, on Linux 6.10 or later on x86_64"
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = "Run it as root, or with CAP_BPF and CAP_PERFMON"
	case bpf.MissingTypes() != nil:
		remedy = "Run it on the server's host, on x86_64 and on a kernel with type information"
	}
	which := "-D " + shellQuoted(dataDir)
	if len(pids) > 0 {
		which = strings.Trim(fmt.Sprint(pids), "[]")
	}
	return fmt.Errorf("%w\n%s.\nWithout programs in the kernel, sample at a low rate. This stops no process:\n"+
		"  pg_stat_backtrace capture %s --nonstop --format folded --repeat 100 --interval 100ms |\n"+
		"  pg_stat_backtrace report - -o profile.html", err, remedy, which)
}
