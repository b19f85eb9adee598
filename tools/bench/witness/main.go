// Command witness captures every process of PostgreSQL servers, each at a fixed rate per second, while other programs
// put load on the servers: PostgreSQL's own tests, replication, a crash. On SIGTERM or SIGINT it prints the number of
// captures, the pauses of the processes, and all failures with their reasons. It also checks whether a process was
// left stopped or traced. Its exit status is 1 if it finds such a process, or if a capture failed for another reason
// than that the process had ended.
//
// It captures by package ptrace itself, and uses worker/capture to walk and name the stacks of some captures. It must
// not know the purpose of the servers, and sends them no queries.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
)

// options are the command line.
type options struct {
	Rate   int    // captures a second of each process
	Engine string // "stop" or "nonstop"
	Walk   int    // one of so many captures is walked and named; 0: none
	Dirs   []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.IntVar(&o.Rate, "rate", 200, "captures a second of each process")
	flag.StringVar(&o.Engine, "engine", snapshot.EngineStop, "stop, or nonstop (blocked or running, as it comes)")
	flag.IntVar(&o.Walk, "walk", 10, "walk and name the stack of one in so many captures; 0: of none")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: witness [OPTION]... DATA_DIRECTORY...")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.Dirs = flag.Args()
	if len(o.Dirs) == 0 || o.Rate <= 0 || o.Rate > 10_000 || (o.Engine != snapshot.EngineStop && o.Engine != "nonstop") {
		flag.Usage()
		os.Exit(2) //nolint:gocritic // stop has nothing to undo yet
	}
	ok, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "witness:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run watches until the context ends, and prints the results.
func run(ctx context.Context, o options) (ok bool, err error) {
	c, err := capture.New(capture.Config{})
	if err != nil {
		return false, fmt.Errorf("no captures here: %w", err)
	}
	w := newWatch(o, c)
	fmt.Println("watching")
	w.run(ctx)
	return w.figures.print(os.Stdout, o), nil
}
