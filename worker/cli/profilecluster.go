package cli

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

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/bpf"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// clusterFlags are the flags of the command profile that go with a data directory.
type clusterFlags struct {
	dataDir      string
	mode         string
	queryIDs     []string
	users        []string
	databases    []string
	backendTypes []string
	by           []string
}

// onlyWithDirectory are flags that need -D.
//
//nolint:gochecknoglobals // a table
var onlyWithDirectory = []string{"mode", "query-id", "user", "database", "backend-type", "group-by"}

func (f *clusterFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "sample all processes of the server with this data `DIRECTORY`; default: the only server of this host")
	fs.StringVarP(&f.mode, "mode", "m", string(clusterprofile.CPU),
		"with -D: time on the processor (cpu), off it (offcpu), or both (wall)")
	fs.StringSliceVar(&f.queryIDs, "query-id", nil,
		"with -D: only samples in which the statement with this query `ID` runs")
	fs.StringSliceVar(&f.users, "user", nil, "with -D: only sessions of the user `NAME`")
	fs.StringSliceVar(&f.databases, "database", nil, "with -D: only processes in the database `NAME`")
	fs.StringSliceVar(&f.backendTypes, "backend-type", nil,
		"with -D: only processes of this `TYPE`, such as \"client backend\"")
	fs.StringSliceVar(&f.by, "group-by", []string{clusterprofile.LabelBackendType},
		"with -D, formats text and folded: `LABELS` to show as outermost frames, such as backend_type,query_id")
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.RegisterFlagCompletionFunc("mode",
		cobra.FixedCompletions(clusterprofile.Modes(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("group-by",
		cobra.FixedCompletions(clusterprofile.Labels(), cobra.ShellCompDirectiveNoFileComp))
}

// check validates the flags that need -D, or go with it.
func (f *profileFlags) checkCluster(cmd *cobra.Command, args []string) error {
	if f.cluster.dataDir == "" {
		for _, name := range onlyWithDirectory {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s needs -D", name)
			}
		}
		if f.format != formatText && f.format != formatFolded {
			return fmt.Errorf("--format %s needs -D", f.format)
		}
		return nil
	}
	switch {
	case len(args) > 0:
		return errors.New("give either -D or process ids, not both")
	case f.running:
		return errors.New("--running does not go with -D: use --mode cpu")
	case f.stats:
		return errors.New("--stats does not go with -D")
	case !slices.Contains(clusterprofile.Modes(), f.cluster.mode):
		return fmt.Errorf("--mode must be cpu, offcpu or wall, not %q", f.cluster.mode)
	case f.rate < 1:
		return fmt.Errorf("with -D, --rate must be from 1 to %d, not %v", clusterprofile.MaxRate, f.rate)
	case f.duration > clusterprofile.MaxDuration:
		return fmt.Errorf("with -D, --duration must be at most %s, not %s", clusterprofile.MaxDuration, f.duration)
	}
	for _, name := range f.cluster.by {
		if !slices.Contains(clusterprofile.Labels(), name) {
			return fmt.Errorf("--group-by: no label %q: choose from %s", name, strings.Join(clusterprofile.Labels(), ", "))
		}
	}
	_, err := f.cluster.filter()
	return err
}

// filter returns what the flags select.
func (f *clusterFlags) filter() (clusterprofile.Filter, error) {
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

// describe words the filter.
func (f *clusterFlags) describe() string {
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

// runCluster samples a server, and prints the profile; after an interrupt, what has come until then.
func (f *profileFlags) runCluster(ctx context.Context, stdout, stderr io.Writer) error {
	if f.format == profilefmt.Pprof && f.output == "" && terminal(stdout) {
		return usage(errors.New("--format pprof is binary: write it to a file with -o"))
	}
	filter, err := f.cluster.filter()
	if err != nil {
		return usage(err)
	}
	cluster, err := cluster.ByDataDir(f.cluster.dataDir)
	if err != nil {
		return err
	}
	out, err := createOutput(f.output, stdout)
	if err != nil {
		return err
	}
	defer out.discard()
	capturer, closeRemote, err := f.remote.capturer(stderr, f.debugDirs)
	if err != nil {
		return err
	}
	defer closeRemote()
	mode := clusterprofile.Mode(f.cluster.mode)
	shown := terminal(stderr)
	p, summary, err := clusterprofile.Collect(ctx, clusterprofile.Options{
		Cluster: &cluster, Mode: mode, Rate: f.rate, Duration: f.duration, Filter: filter, MaxFrames: f.maxFrames,
		Capturer: capturer, Texts: true, Progress: func(took time.Duration, samples int) {
			if shown {
				_, _ = fmt.Fprintf(stderr, "\r\x1b[K%.0f of %s, %d stacks", took.Seconds(), f.duration, samples)
			}
		},
	})
	if shown {
		_, _ = io.WriteString(stderr, "\r\x1b[K")
	}
	switch {
	case errors.Is(err, clusterbpf.ErrUnsupported), errors.Is(err, fs.ErrPermission):
		return noProfile(err, f.cluster.dataDir)
	case errors.Is(err, clusterprofile.ErrNoSamples) && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, clusterprofile.ErrNoSamples):
		return noSamples(err, mode, f.cluster.describe())
	case err != nil:
		return err
	}
	tellSummary(stderr, summary)
	about := fmt.Sprintf("%s, PostgreSQL %d, %s, %.1f s, %v samples a second of each processor", summary.Server,
		cluster.Version, time.Unix(0, p.TimeNanos).UTC().Format(time.RFC3339), summary.Took.Seconds(), summary.Rate)
	if only := f.cluster.describe(); only != "" {
		about += ", only " + only
	}
	if err := profilefmt.Write(out, p, profilefmt.Options{
		Format: f.format, Title: titleOf(mode), Subtitle: about, Root: f.cluster.by, Top: f.most, Notes: summary.Notes(),
	}); err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	return out.commit()
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

// noProfile adds to an error of the kernel's programs what to do: where they would run, and what works without them.
func noProfile(err error, dataDir string) error {
	remedy := "Run it on the server's host, on Linux 6.10 or later on x86_64"
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = "Run it as root, or with CAP_BPF and CAP_PERFMON"
	case bpf.MissingTypes() != nil:
		remedy = "Run it on the server's host, on x86_64 and on a kernel with type information"
	}
	return fmt.Errorf("%w\n%s.\nWithout programs in the kernel, sample at a low rate. This stops no process:\n"+
		"  pg_stat_backtrace capture -D %s --nonstop --format folded --repeat 100 --interval 100ms |\n"+
		"  pg_stat_backtrace report - -o profile.html", err, remedy, shellQuoted(dataDir))
}

// shellQuoted returns a word as a shell reads it.
func shellQuoted(word string) string {
	if word != "" && strings.Trim(word, wordCharacters) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// wordCharacters need no quotes in a shell.
const wordCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"

// noSamples words that there is nothing to print.
func noSamples(err error, mode clusterprofile.Mode, filter string) error {
	switch {
	case filter != "":
		return fmt.Errorf("%w of %s\nTry without the filter", err, filter)
	case mode == clusterprofile.CPU:
		return fmt.Errorf("%w: no process of the server had a processor\nTry --mode wall, or a longer --duration", err)
	}
	return err
}

// leastCPU is the processor time of a server from which on the share of the programs in the kernel says something.
const leastCPU = 100 * time.Millisecond

// tellSummary prints how complete the profile is.
func tellSummary(stderr io.Writer, s *clusterprofile.Summary) {
	tellf(stderr, "%d stacks of %d processes in %.1f s, %.1f %% of them labelled; %.3f s on the processor, %.3f s off it",
		s.Taken, s.Processes, s.Took.Seconds(), 100*s.LabelledShare(), s.CPU.Seconds(), s.OffCPU.Seconds())
	if s.CPU >= leastCPU {
		tellf(stderr, "programs in the kernel took about %s, %.2f %% of the server's processor time",
			s.KernelTime.Round(10*time.Microsecond), 100*s.KernelTime.Seconds()/s.CPU.Seconds())
	}
	for i, note := range s.Notes() {
		if i > 0 { // the first is the share of labels
			tellf(stderr, "%s", note)
		}
	}
}
