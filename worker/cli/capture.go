package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// captureFlags are the flags of the command capture.
type captureFlags struct {
	dataDir   string
	format    string
	maxFrames int
	repeat    int
	warmUp    int
	interval  time.Duration
	timeout   time.Duration
	debugDirs []string
	stats     bool
	threads   bool
	// goroutines is set if the goroutines of Go programs are printed instead of threads.
	goroutines bool
	noContext  bool
	remote     console.DebuginfodFlags
	core       coreFlags
	compressed console.CompressedFlags
	nonStop    bool
	stop       bool
	titles     map[int]string // titles of a server's processes as in ps(1), by process id; nil: no server is captured
	server     *sessions      // the captured server's sessions; nil: each trace is printed at once
}

const captureLong = `Print the call stack of processes. You may capture any process that you may
trace, not only PostgreSQL's: your own processes, or all with CAP_SYS_PTRACE. The
process stops for some microseconds while its registers and its stack are copied.
Unwinding and naming come afterwards. A process that sleeps does not stop, if its
whole stack can be read and it did not wake up meanwhile. --stop stops it too.

With -D, all processes of a server are captured, one after another, except the
postmaster. The server needs no free connection. Each process has its title, time,
database, user and state, and the phrase names the holder of a lock. Text prints
the same stack of several processes once. The state is missing if it changed
during the captures. With process ids, the phrase names the holder too, and an
idle session has its state, unless --repeat is given.

With --nonstop, no process stops. The memory of a sleeping thread is read, and the
command checks that the thread did not wake up meanwhile. The kernel samples a
running thread, which needs CAP_PERFMON, or kernel.perf_event_paranoid of at most
2. Without the option, this way is also taken if a process cannot be stopped:
because another program traces it, because it is in uninterruptible sleep, or
because it is writing its core file. The output names the reason.

No stack waits for a debuginfod server. Downloads run in the background, and their
names appear in later rounds (--repeat) and later calls. "symbols --fetch" waits
for the download.

With --goroutines, the goroutines of a Go program, or of a Go library in another
program, are printed instead of the threads. All are of one stop or of one core
file. Go 1.16 to 1.26 is supported, with and without symbols.

--format brief has colours on a terminal. The environment variable NO_COLOR
switches them off.

With --core, all threads of a core file are printed. It may be of another host, of
x86_64, aarch64, ppc64le, s390x or riscv64. The program and its libraries are
read from the paths in the core, below --sysroot. A file that does not match
the core is reported, and not used.`

func newCapture() *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:   "capture [PID... | -D DIRECTORY | --core FILE]",
		Short: "Print the call stack of processes, or of a core file",
		Long:  captureLong,
		Example: `  pg_stat_backtrace capture 4711
  pg_stat_backtrace capture --format brief --repeat 10 --interval 100ms 4711
  pg_stat_backtrace capture -D /var/lib/postgresql/15/main
  pg_stat_backtrace capture --format folded -n 1000 -i 10ms 4711 | flamegraph.pl > 4711.svg
  pg_stat_backtrace capture --goroutines 4711
  pg_stat_backtrace capture --repeat 1000 --stats 4711
  pg_stat_backtrace capture --core core.4711 --sysroot /srv/images/arm64`,
		Args: console.UsageArgs(func(_ *cobra.Command, args []string) error {
			switch {
			case f.core.file != "":
				return nil
			case f.dataDir != "" && len(args) > 0:
				return console.ErrBoth
			}
			return nil
		}),
		RunE: f.execute,
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "",
		"capture all processes of the server with this data `DIRECTORY`; default: $PGDATA, else the only server of this host")
	_ = cmd.MarkFlagDirname("pgdata")
	fs.StringVarP(&f.format, "format", "f", console.FormatText,
		"`FORMAT` of a stack: text, brief (for people: what the process does, its wait, query and "+
			"functions, without addresses; short is the same), json (a line each), compressed (~m# lines, see decode); "+
			"or at the end, with equal stacks counted: folded (for a flame graph), pprof, speedscope or html")
	fs.IntVar(&f.maxFrames, "max-frames", 256, "at most `N` frames a thread, inlined calls included")
	fs.IntVarP(&f.repeat, "repeat", "n", 1, "capture each process `N` times")
	fs.IntVar(&f.warmUp, "warm-up", 0, "with --stats: capture each process `N` times first, without counting")
	fs.DurationVarP(&f.interval, "interval", "i", 0, "begin a round of --repeat every `TIME`, such as 100ms; 0: at once")
	fs.DurationVar(&f.timeout, "timeout", snapshot.DefaultDeadline, "give up if the process cannot be stopped within `TIME`")
	fs.StringSliceVar(&f.debugDirs, "debug-dir", nil, console.DebugDirUsage)
	fs.BoolVar(&f.stats, "stats", false, "print the times of the captures in microseconds, as JSON, instead of stacks")
	fs.BoolVar(&f.threads, "threads", false,
		"print all threads of each process, from one stop; with --nonstop, one after another")
	fs.BoolVar(&f.goroutines, "goroutines", false,
		"print all goroutines of a Go program instead of its threads, from one stop or one core file")
	fs.BoolVar(&f.nonStop, "nonstop", false, "do not stop the process")
	fs.BoolVar(&f.stop, "stop", false, "stop each process, also a process that sleeps")
	fs.BoolVar(&f.noContext, "no-context", false,
		"omit the functions, the query and the wait event of a PostgreSQL process")
	f.remote.Add(cmd)
	f.core.add(cmd)
	f.compressed.Add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// execute runs the command.
func (f *captureFlags) execute(cmd *cobra.Command, args []string) error {
	if err := f.core.check(cmd, args); err != nil {
		return console.Usage(err)
	}
	pids, err := f.check(args)
	if err != nil {
		return console.Usage(err)
	}
	if err := console.TakeOnlyServer(&f.dataDir, len(pids) > 0 || f.core.file != "", cmd.ErrOrStderr()); err != nil {
		return err
	}
	switch {
	case f.core.file != "" && f.dataDir != "":
		return console.Usage(errors.New("give either -D or --core, not both"))
	case f.core.file != "":
		return f.runCore(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
	case f.dataDir != "":
		return f.runServer(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return f.run(cmd.Context(), console.Identities(pids), cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// check validates the flags and returns the process ids.
func (f *captureFlags) check(args []string) ([]int, error) {
	switch {
	case !slices.Contains(formats, f.format):
		return nil, fmt.Errorf("--format must be one of %s, not %q", strings.Join(formats, ", "), f.format)
	case f.maxFrames < 1 || f.maxFrames > limits.MaxFrames:
		return nil, fmt.Errorf("--max-frames must be from 1 to %d, not %d", limits.MaxFrames, f.maxFrames)
	case f.repeat < 1:
		return nil, fmt.Errorf("--repeat must be at least 1, not %d", f.repeat)
	case f.warmUp < 0 || f.warmUp > 0 && !f.stats:
		return nil, fmt.Errorf("--warm-up must not be negative, and goes with --stats, but is %d", f.warmUp)
	case f.interval < 0:
		return nil, fmt.Errorf("--interval must not be negative, but is %s", f.interval)
	case f.goroutines && (f.threads || f.nonStop):
		return nil, errors.New("--goroutines goes together neither with --threads nor with --nonstop")
	case f.stop && f.nonStop:
		return nil, errors.New("--stop cannot be used with --nonstop")
	case f.timeout <= 0:
		return nil, fmt.Errorf("--timeout must be more than 0, not %s", f.timeout)
	}
	if err := f.compressed.Check(f.format); err != nil {
		return nil, err
	}
	return console.ProcessIDs(args)
}

// run captures all processes in each round. If a capture fails, run reports
// it on stderr and leaves this process out of later rounds.
func (f *captureFlags) run(ctx context.Context, targets []process.Target, stdout, stderr io.Writer) error {
	if err := console.RefuseBinary(f.format, stdout); err != nil {
		return err
	}
	host.Frugal()
	defer collectLate(f.warmUp + f.repeat)()
	capturer, closeRemote, err := f.remote.Capturer(stderr, f.debugDirs)
	if err != nil {
		return err
	}
	defer closeRemote()
	clock, err := newAlarm()
	if err != nil {
		return err
	}
	defer clock.close()
	r := rounds{
		captureFlags: f, capturer: capturer, targets: targets, failed: make(map[int]bool),
		counted: profilefmt.Traces{ByProcess: len(targets) > 1}, stdout: stdout, stderr: stderr,
		options: capture.Options{
			MaxFrames: f.maxFrames, Deadline: f.timeout, AllThreads: f.threads, NoContext: f.noContext, NonStop: f.nonStop,
			PreferNonStop: !f.stop,
		},
	}
	if f.server == nil {
		r.named = f.sessionsOf(targets)
	}
	next := time.Now()
	for round := range f.warmUp + f.repeat {
		if round > 0 && !clock.wait(ctx, time.Until(next)) {
			break // print the result of the rounds before the interrupt
		}
		next = later(next.Add(f.interval), time.Now())
		if err := r.round(ctx, round >= f.warmUp); err != nil {
			return err
		}
		if len(r.failed) == len(targets) {
			break
		}
	}
	if err := r.total(); err != nil {
		return err
	}
	if note := backtrace.GeneratedNote(r.generated, r.stacks); note != "" {
		console.Tellf(stderr, "%s", note)
	}
	if len(r.failed) > r.ended {
		return console.ErrReported
	}
	return ctx.Err()
}

// rounds has the captures of one call.
type rounds struct {
	*captureFlags

	capturer *capture.Capturer
	options  capture.Options
	targets  []process.Target
	failed   map[int]bool // by process id
	named    *sessions    // sessions of the processes in the arguments; nil: not read
	ended    int          // number of the failed processes that have ended, which is not an error
	taken    stats
	// stacks is the number of captured threads, and generated is the number of those threads whose stack ends in code
	// that was compiled at run time.
	stacks, generated int
	counted           profilefmt.Traces // all stacks, if the format is one of package profilefmt
	stdout, stderr    io.Writer
}

// round captures each process once. If counts is set, the times that the captures took are added to the statistics. An error
// means that the output could not be written.
func (r *rounds) round(ctx context.Context, counts bool) error {
	if r.server != nil {
		r.server.begin()
	}
	if r.named != nil {
		r.named.begin()
	}
	for _, target := range r.targets {
		if r.failed[target.PID] {
			continue
		}
		began := time.Now()
		t, err := r.capture(ctx, r.capturer, target, r.options)
		if err != nil {
			if errors.Is(err, context.Canceled) {
				break
			}
			r.failed[target.PID] = true
			if r.titles != nil && errors.Is(err, process.ErrExited) {
				r.ended++ // not an error, as processes of a server may end at any time
				continue
			}
			console.Tellf(r.stderr, "%s", console.ExplainTarget(target, err))
			continue
		}
		if counts {
			r.taken.add(t)
		}
		for i := range t.Threads {
			if r.stacks++; t.Threads[i].Generated {
				r.generated++
			}
		}
		if r.server != nil {
			t.Session = &backtrace.Session{Time: began}
			r.server.traces = append(r.server.traces, t)
		} else if r.named != nil {
			if err := r.printSession(r.named, t, began); err != nil {
				return err
			}
		} else if err := r.print(t); err != nil {
			return err
		}
	}
	if r.server != nil {
		return r.printServer()
	}
	return nil
}

// collectLate raises the heap size of the first garbage collection if there is only one round. A first capture keeps nearly all
// data that it reads, and this process ends soon after. Garbage collection took a sixth of the command's time. If the environment
// sets GOGC, collectLate does nothing. restore undoes it, for a process that runs more commands.
func collectLate(rounds int) (restore func()) {
	const first, smallest = 32, 4 // heap size of the first collection, in MB: as wanted here, and as it is with GOGC=100
	if rounds != 1 || os.Getenv("GOGC") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(100 * first / smallest)
	return func() { debug.SetGCPercent(before) }
}

// later returns the later of two times. Its caller computes the time of the next round with it, so that after a late round the
// next rounds do not follow faster.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// capture captures the threads or the goroutines of one process.
func (f *captureFlags) capture(
	ctx context.Context, capturer *capture.Capturer, target process.Target, opts capture.Options,
) (*backtrace.Trace, error) {
	if f.goroutines {
		return capturer.Goroutines(ctx, target, opts)
	}
	return capturer.Capture(ctx, target, opts)
}
