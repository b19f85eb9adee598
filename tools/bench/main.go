// Command bench measures the speed figures of doc/internals/benchmarks.md. It measures how long a capture stops its target and
// how long a call takes, beside the C floor, libunwind over ptrace, tbstack, eu-stack and gdb. All tools run on the
// same targets, in one run, interleaved in rounds. It also measures calls from SQL, the worker's start and running
// costs, and the loss of a server's throughput during captures.
//
// It starts a throw-away PostgreSQL server and ends everything that it started. It prints a table and writes the same
// figures as JSON (latest.json in the output directory). It must not know how captures work: it runs programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	Rounds   int           // how often every tool gets its turn
	Captures int           // captures of the fast tools per round and target
	Interval time.Duration // between two captures of the fast tools
	Calls    int           // SQL calls per target
	Binary   string        // our program
	Source   string        // directory of the C programs
	Out      string        // output directory
	BinDir   string        // PostgreSQL's programs
	Parts    string        // what to measure
	Slice    time.Duration // of pgbench
	Publish  bool          // into doc/internals/benchmarks.md
}

func parse() options {
	var o options
	flag.IntVar(&o.Rounds, "rounds", 10, "rounds; every tool has one turn per target in each")
	flag.IntVar(&o.Captures, "captures", 200, "captures per turn of a fast tool")
	flag.DurationVar(&o.Interval, "interval", time.Millisecond, "time between two captures of a fast tool")
	flag.IntVar(&o.Calls, "calls", 1000, "SQL calls per target")
	flag.StringVar(&o.Binary, "binary", "bin/pg_stat_backtrace", "our program")
	flag.StringVar(&o.Source, "source", "tools/bench", "directory of the C programs")
	flag.StringVar(&o.Out, "out", "tools/bench/out", "directory for the results")
	flag.StringVar(&o.BinDir, "bindir", "",
		"directory of initdb and postgres; default: PG_CONFIG's, then the newest in /usr/lib/postgresql")
	flag.StringVar(&o.Parts, "parts", "captures,sql,load", "what to measure")
	flag.DurationVar(&o.Slice, "slice", 500*time.Millisecond,
		"how long pgbench is measured beside each tool, and without one, ten times in a turn")
	flag.BoolVar(&o.Publish, "publish", false, "put the table and the chart into doc/")
	flag.Parse()
	return o
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func run(ctx context.Context, o options) (err error) {
	progressf("compiling the C programs")
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return fmt.Errorf("output directory: %w", err)
	}
	programs, err := compile(ctx, o.Source, o.Out)
	if err != nil {
		return err
	}
	if o.Binary, err = filepath.Abs(o.Binary); err != nil {
		return fmt.Errorf("our program: %w", err)
	}
	progressf("starting a server")
	server, err := startServer(ctx, o.BinDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop(ctx)) }()
	report := newReport(o, server)
	if err := measure(ctx, o, programs, server, report); err != nil {
		return err
	}
	report.print(os.Stdout)
	if err := report.publish(o); err != nil {
		return err
	}
	return report.write(filepath.Join(o.Out, "latest.json"))
}

// measure measures all figures: first the captures, while no worker runs, then the worker and the calls from SQL.
func measure(ctx context.Context, o options, programs programs, server *server, report *report) error {
	targets, err := openTargets(ctx, programs, server, o.Out)
	if err != nil {
		return err
	}
	defer targets.close()
	if o.wants("captures") {
		if err := report.rounds(ctx, o, tools(o, programs), targets); err != nil {
			return err
		}
	}
	if o.wants("sql") {
		progressf("worker and SQL")
		if err := report.sql(ctx, o, server, targets); err != nil {
			return err
		}
	}
	if o.wants("load") {
		return report.load(ctx, o, programs, server)
	}
	return nil
}

// wants reports whether a part is to be measured.
func (o options) wants(part string) bool {
	return slices.Contains(strings.Split(o.Parts, ","), part)
}

// progressf prints the next step to standard error, because a run takes minutes.
func progressf(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", arguments...)
}
