// Command soak tests the queue under load. Many sessions make requests while the worker is repeatedly killed and
// restarted, and each request must have exactly one result. It prints rates and times to answer, beside the figures
// of the waiting call. With -duration it watches the table for that time instead: sizes, dead rows, autovacuum.
//
// It needs a server with the extension in the database of -dsn, and runs the worker itself (as root the worker
// becomes the server's user). It must not know how the worker works inside.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	DSN      string
	Sessions int           // that make requests at the same time
	Requests int           // in all
	Calls    int           // waiting calls, for comparison
	Kill     time.Duration // pause between two kills of the worker; 0: none
	Duration time.Duration // watch the table for that long instead
	Report   time.Duration // pause between two lines then
	Rate     int           // requests a second then, and as many waiting calls
	KeepRows int           // the worker's --keep-rows

	// Worker makes the command of a worker that keeps that many rows.
	Worker func(keepRows int) *exec.Cmd
	Out    io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := options{Out: os.Stdout}
	binary := flag.String("binary", "bin/pg_stat_backtrace", "our program")
	flag.StringVar(&o.DSN, "dsn", "", "connection string of a superuser, database with the extension")
	flag.IntVar(&o.Sessions, "sessions", 50, "sessions that make requests at the same time")
	flag.IntVar(&o.Requests, "requests", 100_000, "requests in all")
	flag.IntVar(&o.Calls, "calls", 20_000, "waiting calls, for comparison")
	flag.DurationVar(&o.Kill, "kill", time.Second, "kill the worker and start it again that often")
	flag.DurationVar(&o.Duration, "duration", 0, "watch the table for that long, instead of the above")
	flag.DurationVar(&o.Report, "report", time.Minute, "with -duration: print a line that often")
	flag.IntVar(&o.Rate, "rate", 100, "with -duration: requests a second, and as many waiting calls")
	flag.IntVar(&o.KeepRows, "keep-rows", 10_000, "with -duration: the worker's --keep-rows")
	flag.Parse()
	o.Worker = func(keepRows int) *exec.Cmd {
		return exec.Command(*binary, "worker", o.DSN, "--keep-rows", strconv.Itoa(keepRows), "--log-level", "warn")
	}
	run := soak
	if o.Duration > 0 {
		run = watch
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

// soak makes the requests, first with an undisturbed worker, then with a worker that is killed repeatedly.
func soak(ctx context.Context, o options) error {
	var failed error
	for _, kill := range []time.Duration{0, o.Kill} {
		name, requests := "queue", o.Requests/5
		if kill > 0 {
			name, requests = fmt.Sprintf("queue, worker killed every %v", kill), o.Requests
		}
		l, err := newLoad(ctx, o, requests)
		if err != nil {
			return err
		}
		k := startKiller(ctx, func() *exec.Cmd { return o.Worker(10 * o.Requests) }, kill)
		err = errors.Join(l.queue(ctx), l.check(ctx))
		kills, endErr := k.end()
		l.close(ctx)
		l.print(name, kills)
		failed = errors.Join(failed, err, endErr)
		if o.Kill == 0 {
			break
		}
	}
	l, err := newLoad(ctx, o, o.Calls)
	if err != nil {
		return err
	}
	defer l.close(ctx)
	k := startKiller(ctx, func() *exec.Cmd { return o.Worker(10 * o.Requests) }, 0)
	err = l.wait(ctx)
	_, endErr := k.end()
	l.print("waiting call", 0)
	return errors.Join(failed, err, endErr)
}
