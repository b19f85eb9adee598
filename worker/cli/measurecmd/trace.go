package measurecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// traceFlags are the flags of the command trace.
type traceFlags struct {
	dataDir   string
	static    []string
	duration  time.Duration
	format    string
	count     bool
	latency   bool
	args      string
	when      string
	overhead  string
	stacks    int
	maxFrames int
	top       int
	debugDirs []string
	remote    console.DebuginfodFlags
}

const traceLong = `Count the calls of functions in running processes, and print the stacks that led
to them, the most frequent first. Functions of the server, its libraries and of
Go programs can be traced. Every call is counted, in the kernel.

FUNCTION is a name, LIBRARY:FUNCTION, or MODULE+0xADDRESS as stacks show it.
Give the server's data directory with -D to trace all its processes, also those
that start later, or give process ids. --usdt traces a static probe of the
server instead, if its build has them.

Each call stops at a breakpoint. That costs the process about a microsecond, and
some ten times as much if the kernel has to single-step the instruction: the
command measures and prints it before it attaches. With a stack it costs some
microseconds more. Beyond --max-overhead, only a part of the calls get a stack.
If that does not suffice, the probe is removed, and the exit status is 3.
Interrupted or killed, even with kill -9, the command leaves no breakpoint.

--args reads arguments that are integers or pointers: the first N, or a list such
as 1,2:s. The letter behind a colon is the form: d or u for 32 bits with or
without a sign, l or x for 64 bits, b for a byte, s for a string. --when counts
calls only if their arguments meet a condition, such as 'arg1>8192 && arg2:d!=0'.
--latency measures the time from each call to its return. Go programs do not
survive that, so it is refused for them.

The command needs root, or CAP_BPF and CAP_PERFMON and the processes' user,
Linux 6.6 (--latency: 6.13), and the host's PID namespace.`

// NewTrace returns the command trace.
func NewTrace() *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace FUNCTION... [-D DIRECTORY | PID...]",
		Short: "Count calls of functions in running processes, and print the stacks that led to them",
		Long:  traceLong,
		Example: `  pg_stat_backtrace trace XLogFlush -D /var/lib/postgresql/15/main
  pg_stat_backtrace trace smgrextend LWLockAcquire --duration 30s 4711
  pg_stat_backtrace trace XLogWrite --latency -D /srv/pgdata
  pg_stat_backtrace trace libc:malloc --when 'arg1>8192' --args 1 4711
  pg_stat_backtrace trace --usdt query__start --args 1:s -D /srv/pgdata
  pg_stat_backtrace trace errfinish --format html -D /srv/pgdata > errors.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.check(args)
			if err != nil {
				return console.Usage(err)
			}
			if err := console.RefuseBinary(f.format, cmd.OutOrStdout()); err != nil {
				return err
			}
			if err := console.TakeOnlyServer(&f.dataDir, len(o.PIDs) > 0, cmd.ErrOrStderr()); err != nil {
				return err
			}
			return f.run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd)
	return cmd
}

func (f *traceFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "",
		"trace all processes of the server with this data `DIRECTORY`; default: $PGDATA, else the only server of this host")
	fs.StringArrayVar(&f.static, "usdt", nil, "trace the static probe `NAME`; may be given several times")
	fs.DurationVarP(&f.duration, "duration", "d", 10*time.Second, "trace for this `TIME`; an interrupt ends it earlier")
	fs.StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: "+strings.Join(traceFormats(), ", "))
	fs.BoolVar(&f.count, "count", false, "only count: copy no stacks")
	fs.BoolVar(&f.latency, "latency", false, "measure the time from each call to its return")
	fs.StringVar(&f.args, "args", "", "print arguments: the first `N`, or a list such as 1,2:s")
	fs.StringVar(&f.when, "when", "", "count calls that meet this `CONDITION`, such as 'arg1>8192'")
	fs.StringVar(&f.overhead, "max-overhead", "10%",
		"limit of the cost, as a `SHARE` of the processor time of a process; 0: no limit")
	fs.IntVar(&f.stacks, "max-stacks", probe.DefaultStacks, "copy at most `N` stacks a second; all calls are counted")
	fs.IntVar(&f.maxFrames, "max-frames", 256, "at most `N` frames, inlined calls included")
	fs.IntVarP(&f.top, "top", "n", 20, "with text: the `N` most frequent stacks")
	fs.StringSliceVar(&f.debugDirs, "debug-dir", nil, console.DebugDirUsage)
	f.remote.Add(cmd)
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(traceFormats(), cobra.ShellCompDirectiveNoFileComp))
}

// traceFormats returns the formats of the command trace.
func traceFormats() []string { return profilefmt.Formats() }

// check validates flags and arguments, and returns the options of the trace.
func (f *traceFlags) check(args []string) (o functrace.Options, err error) {
	o = functrace.Options{
		Static: f.static, Calls: f.latency, CountOnly: f.count, StacksPerSecond: f.stacks, MaxFrames: f.maxFrames,
		Title: cluster.Title,
	}
	for _, arg := range args {
		if pid, err := strconv.ParseInt(arg, 10, 32); err == nil && pid > 0 {
			o.PIDs = append(o.PIDs, int(pid))
		} else if strings.Trim(arg, "0123456789") == "" {
			return o, fmt.Errorf("%q is neither a function nor a process id", arg)
		} else {
			o.Functions = append(o.Functions, arg)
		}
	}
	slices.Sort(o.PIDs)
	o.PIDs = slices.Compact(o.PIDs)
	switch {
	case len(o.Functions)+len(o.Static) == 0:
		return o, errors.New("name a function, or a static probe with --usdt")
	case f.dataDir != "" && len(o.PIDs) > 0:
		return o, console.ErrBoth
	case !slices.Contains(traceFormats(), f.format):
		return o, fmt.Errorf("--format must be one of %s, not %q", strings.Join(traceFormats(), ", "), f.format)
	case f.duration <= 0:
		return o, fmt.Errorf("--duration must be more than 0, not %s", f.duration)
	case f.stacks < 1:
		return o, fmt.Errorf("--max-stacks must be at least 1, not %d", f.stacks)
	case f.maxFrames < 1 || f.maxFrames > limits.MaxFrames:
		return o, fmt.Errorf("--max-frames must be from 1 to %d, not %d", limits.MaxFrames, f.maxFrames)
	case f.top < 1:
		return o, fmt.Errorf("--top must be at least 1, not %d", f.top)
	case f.count && f.format != console.FormatText && f.format != console.FormatJSON:
		return o, fmt.Errorf("--count gives no stacks for --format %s", f.format)
	}
	if o.MaxOverhead, err = parseShare(f.overhead); err != nil {
		return o, fmt.Errorf("--max-overhead: %w", err)
	}
	if f.args != "" {
		if o.Arguments, err = functrace.ParseArguments(f.args); err != nil {
			return o, fmt.Errorf("--args: %w", err)
		}
	}
	if f.when != "" {
		if o.Conditions, err = functrace.ParseConditions(f.when); err != nil {
			return o, fmt.Errorf("--when: %w", err)
		}
	}
	return o, nil
}

// parseShare reads a percentage such as "10%" or "10". It returns 0.1 for these.
func parseShare(text string) (float64, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(text, "%")), 64)
	if err != nil || !(n >= 0 && n <= 100) {
		return 0, fmt.Errorf("%q is not a share from 0%% to 100%%", text)
	}
	return n / 100, nil
}

// attach starts the trace.
func (f *traceFlags) attach(capturer *capture.Capturer, o functrace.Options, stderr io.Writer) (*functrace.Tracer, error) {
	t, err := functrace.New(capturer, o)
	if err != nil {
		return nil, err
	}
	cost, err := probe.Calibrate()
	if err == nil {
		f.announce(t, cost, stderr)
		err = t.Attach(cost)
	}
	if err != nil {
		t.Close()
		return nil, traceRefusal(err)
	}
	return t, nil
}

// run traces and prints the result. After an interrupt, it prints the result until then.
func (f *traceFlags) run(ctx context.Context, o functrace.Options, stdout, stderr io.Writer) error {
	if f.dataDir != "" {
		c, err := cluster.ByDataDir(f.dataDir)
		if err != nil {
			return err
		}
		rights, err := c.Rights()
		if err != nil {
			return err
		}
		o.Postmaster, o.Rights = c.PostmasterPID, &rights
	}
	if err := checkTraced(o.PIDs); err != nil {
		return err
	}
	capturer, closeRemote, err := f.remote.Capturer(stderr, f.debugDirs)
	if err != nil {
		return err
	}
	defer closeRemote()
	o.Notice = func(text string) { console.Tellf(stderr, "%s", text) }
	t, err := console.Await(ctx, func() (*functrace.Tracer, error) { return f.attach(capturer, o, stderr) })
	if err != nil {
		return err
	}
	defer t.Close()
	console.Tellf(stderr, "tracing for %s; press Ctrl-C to end it", f.duration)
	out := render.JSONEncoder(stdout)
	var each func(*functrace.Event) error
	if f.format == console.FormatJSON {
		each = func(e *functrace.Event) error { return out.Encode(e.JSON()) }
	}
	slow := time.AfterFunc(f.duration+slowNaming, func() {
		console.Tellf(stderr, "the trace has ended; its stacks are being named, for at most half a minute")
	})
	result, err := t.Run(ctx, f.duration, each)
	slow.Stop()
	if err != nil {
		return err
	}
	t.Close()
	if err := f.print(result, out, stdout); err != nil {
		return err
	}
	return f.limited(result)
}

// checkTraced returns an error for a process that does not exist, or whose memory this user may not read.
func checkTraced(pids []int) error {
	for _, pid := range pids {
		if _, err := process.ReadStat(pid); errors.Is(err, process.ErrGone) {
			return errors.New(console.NoProcess(pid))
		}
		if _, err := process.Maps(pid); console.IsDenied(err) {
			return errors.New(console.DeniedProcess(pid))
		}
	}
	return nil
}

// slowNaming is the time after the end of a trace after which a message says that the names for the stacks are still
// being looked up.
const slowNaming = 2 * time.Second

// limited returns an error that wraps console.ErrLimited if a probe was removed because it cost too much.
func (f *traceFlags) limited(r *functrace.Result) error {
	if len(r.Removed) == 0 {
		return nil
	}
	when := "during the trace"
	if r.Took < f.duration {
		when = fmt.Sprintf("after %.1f s of %s", r.Took.Seconds(), f.duration)
	}
	return fmt.Errorf("the trace is %w: %s, %s\nRaise --max-overhead, add a condition with --when, or trace single "+
		"processes: then no other process pays", console.ErrLimited, r.Removed[0], when)
}

// announce prints on stderr which functions will be probed, and what a call will cost.
func (f *traceFlags) announce(t *functrace.Tracer, cost probe.Cost, stderr io.Writer) {
	for _, traced := range t.Traced() {
		each, why := cost.Emulated, ""
		if traced.Stepped {
			each, why = cost.Stepped, fmt.Sprintf(", because the kernel has to single-step %q", traced.Instruction)
		}
		if each > 0 {
			console.Tellf(stderr, "%s: each call will cost its process about %.1f µs%s", traced.Name, each.Seconds()*1e6, why)
		}
		for _, note := range traced.Notes {
			console.Tellf(stderr, "%s: %s", traced.Name, note)
		}
	}
	if n := t.Others(); n > 0 {
		console.Tellf(stderr, "%s: each call will cost as much; a note at the end counts these calls",
			units.Plural(n, "%d {process of another server runs|processes of other servers run} the same program"))
	}
}

// print prints the result.
func (f *traceFlags) print(r *functrace.Result, out *json.Encoder, stdout io.Writer) error {
	names := make([]string, 0, len(r.Functions))
	for i := range r.Functions {
		names = append(names, r.Functions[i].Name)
	}
	switch f.format {
	case console.FormatJSON:
		return out.Encode(r.Totals())
	case console.FormatText:
		if err := r.Text(stdout); err != nil || f.count {
			return err
		}
		if p := r.Profile(); len(p.Sample) > 0 {
			if _, err := io.WriteString(stdout, "\n"); err != nil {
				return err
			}
			return profilefmt.Write(stdout, p, profilefmt.Options{
				Format: f.format, Title: "Stacks", Top: f.top,
			})
		}
		return nil
	}
	p := r.Profile()
	return profilefmt.Write(stdout, p, profilefmt.Options{
		Format: f.format, Title: "Calls of " + strings.Join(names, ", "), Top: f.top, Notes: p.Comments,
		Subtitle: fmt.Sprintf("%.1f s", r.Took.Seconds()),
	})
}

// traceRefusal returns err, an error of attaching probes, in words for the user. For some errors, it adds a remedy.
func traceRefusal(err error) error {
	switch {
	case errors.Is(err, probe.ErrEnded):
		return errors.New("all processes have ended")
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w\nRun it as root, or as the server's user with CAP_BPF and CAP_PERFMON", err)
	}
	return err
}
