package measurecmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/measure/allocs"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/measure/heap"
	"pg_stat_backtrace/worker/report/compressed"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/units"
)

// allocationFlags are the flags of memory --allocations.
type allocationFlags struct {
	on          bool
	duration    time.Duration
	maxOverhead string
	sample      string
	debugDirs   []string
	compressed  console.CompressedFlags
	remote      console.DebuginfodFlags
}

func (f *allocationFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.on, "allocations", false, "trace the allocations of one process, by call path")
	fs.DurationVarP(&f.duration, "duration", "d", 10*time.Second,
		"with --allocations: trace for this `TIME`; an interrupt ends it earlier")
	fs.StringVar(&f.maxOverhead, "max-overhead", "50%",
		"with --allocations: stop if the trace costs more than this `SHARE` of the process's processor time")
	fs.StringVar(&f.sample, "sample-type", heap.InuseSpace,
		"with --allocations: `TYPE` that folded prints and html shows first: "+strings.Join(heap.SampleTypes(), ", "))
	fs.StringSliceVar(&f.debugDirs, "debug-dir", nil, console.DebugDirUsage)
	f.compressed.Add(cmd)
	f.remote.Add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("sample-type",
		cobra.FixedCompletions(heap.SampleTypes(), cobra.ShellCompDirectiveNoFileComp))
}

// formats returns the formats of a trace of allocations.
func (f *allocationFlags) formats() []string {
	return append(profilefmt.Formats(), console.FormatCompressed)
}

// check validates the flags, and returns the process id and the budget: the largest cost of the trace, as a part (0 to 1) of the
// process's processor time.
func (f *allocationFlags) check(format string, args []string) (pid int, budget float64, err error) {
	budget, err = parseShare(f.maxOverhead)
	switch {
	case err != nil || budget == 0:
		return 0, 0, fmt.Errorf("--max-overhead must be more than 0%% and at most 100%%, not %q", f.maxOverhead)
	case !slices.Contains(f.formats(), format):
		return 0, 0, fmt.Errorf("--format must be one of %s with --allocations, not %q",
			strings.Join(f.formats(), ", "), format)
	case f.duration <= 0:
		return 0, 0, fmt.Errorf("--duration must be more than 0, not %s", f.duration)
	case !slices.Contains(heap.SampleTypes(), f.sample):
		return 0, 0, fmt.Errorf("--sample-type must be one of %s, not %q",
			strings.Join(heap.SampleTypes(), ", "), f.sample)
	case len(args) != 1:
		return 0, 0, errors.New("--allocations traces one process: give one process id")
	}
	if err := f.compressed.Check(format); err != nil {
		return 0, 0, err
	}
	pids, err := console.ProcessIDs(args)
	if err != nil {
		return 0, 0, err
	}
	return pids[0], budget, nil
}

// run traces and prints the result. After an interrupt, it prints the result until then.
func (f *allocationFlags) run(
	ctx context.Context, pid int, budget float64, m *memoryFlags, stdout, stderr io.Writer,
) error {
	capturer, closeRemote, err := f.remote.Capturer(stderr, f.debugDirs)
	if err != nil {
		return err
	}
	defer closeRemote()
	target := console.Identities([]int{pid})[0]
	if target.StartTime == 0 {
		return errors.New(console.NoProcess(pid))
	}
	allocator, err := heap.Locate(pid)
	if err != nil {
		return explainAllocations(pid, err)
	}
	defer allocator.Close()
	progress := allocationProgress{out: stderr, shown: console.Terminal(stderr), duration: f.duration, begin: fmt.Sprintf(
		"tracing the allocations of process %d for %s: malloc of %s", pid, f.duration, allocator.Name)}
	report, err := heap.Run(ctx, capturer, target, allocator,
		allocs.Options{MaxOverhead: budget, Blocks: m.format == console.FormatCompressed, Duration: f.duration}, progress.show)
	progress.clear()
	if err != nil {
		return explainAllocations(pid, err)
	}
	if err := f.print(report, m, stdout); err != nil {
		return err
	}
	if m.format != console.FormatText && m.format != profilefmt.HTML {
		for _, line := range append(report.Summary(), report.Notes()...) {
			console.Tellf(stderr, "%s", line)
		}
	}
	if report.TooDear {
		console.Tellf(stderr, "the trace ended after %.1f s: it cost more than %s of the processor time of process %d\n"+
			"  Its allocator is called %.0f times a second. Raise --max-overhead, or trace another process.",
			report.Elapsed.Seconds(), f.maxOverhead, pid, float64(report.Counters.Calls())/report.Elapsed.Seconds())
		return console.ErrReported
	}
	return nil
}

// print prints the report in the format of the flags.
func (f *allocationFlags) print(r *heap.Report, m *memoryFlags, out io.Writer) error {
	switch m.format {
	case console.FormatText:
		return r.Text(out, m.top)
	case console.FormatCompressed:
		return f.printBlocks(r, out)
	}
	summary := r.Summary()
	return profilefmt.Write(out, r.Profile(), profilefmt.Options{
		Format: m.format, Title: r.Title(), Subtitle: strings.Join(summary, "; "), SampleType: f.sample, Top: m.top,
		Notes: r.Notes(),
	})
}

// printBlocks prints a compressed backtrace for each block that is still allocated.
func (f *allocationFlags) printBlocks(r *heap.Report, w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, p := range r.Paths {
		sizes := r.Live[p]
		slices.Sort(sizes)
		for _, size := range sizes {
			if p.Stack == nil {
				b := compressed.Backtrace{Size: size}
				line, err := b.Line()
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(out, "%spid=%d incomplete\n%s\n", console.ThreadMark, r.PID, line) // Flush returns the error
				continue
			}
			f.compressed.PrintStack(out, fmt.Sprintf("pid=%d tid=%d", r.PID, p.Stack.TID), p.Stack, size)
		}
	}
	return out.Flush()
}

// explainAllocations returns err in words for the user. For some errors, it adds a remedy.
func explainAllocations(pid int, err error) error {
	switch {
	case errors.Is(err, process.ErrExited), errors.Is(err, fs.ErrNotExist), errors.Is(err, process.ErrGone):
		return fmt.Errorf("process %d has ended", pid)
	case errors.Is(err, heap.ErrNoAllocator):
		return err
	case errors.Is(err, process.ErrDenied):
		return errors.New(console.DeniedProcess(pid))
	case errors.Is(err, fs.ErrPermission), errors.Is(err, process.ErrNotPermitted):
		return fmt.Errorf("%w\nRun it as root, or as the user of the process with CAP_BPF and CAP_PERFMON", err)
	}
	return err
}

// allocationProgress shows on a terminal which part of a trace's time has passed.
type allocationProgress struct {
	begin    string // the line to print when the trace begins; empty: it has been printed
	out      io.Writer
	shown    bool
	duration time.Duration
	last     time.Duration
}

func (p *allocationProgress) show(now *allocs.Progress) {
	if p.begin != "" {
		console.Tellf(p.out, "%s", p.begin)
		p.begin = ""
	}
	if !p.shown || now.Elapsed-p.last < time.Second {
		return
	}
	p.last = now.Elapsed
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%.0f of %s, %s of the allocator, estimated cost %.1f %%",
		now.Elapsed.Seconds(), p.duration, units.Count(now.Counters.Calls(), "call"), 100*now.Share())
}

func (p *allocationProgress) clear() {
	if p.shown {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
	}
}
