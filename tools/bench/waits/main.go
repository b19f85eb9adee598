// Command waits measures how much processor time the timing of wait events and profiles cost a server, in one run.
// Sessions execute transactions without a pause, and the timing is switched on and off in turn. The command compares
// the processor time of the sessions' backends for each transaction. A control switches nothing. Its result shows the
// noise.
//
// It needs a server with the data directory of -D, and the rights that the methods need.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
)

// options are the command line.
type options struct {
	DataDir, DSN string
	Cycles       int
	Slice        time.Duration
	Sessions     int
	Cases, Loads string
	Profile      time.Duration
}

// settle is how long after a switch the measurement begins.
const settle = 30 * time.Millisecond

func main() {
	var o options
	flag.StringVar(&o.DataDir, "D", "", "data `directory` of the server")
	flag.StringVar(&o.DSN, "dsn", "", "connection `string` of the server")
	flag.IntVar(&o.Cycles, "cycles", 40, "how often the timing is switched on and off")
	flag.DurationVar(&o.Slice, "slice", 300*time.Millisecond, "how long each state is measured")
	flag.IntVar(&o.Sessions, "sessions", 2, "sessions that execute transactions")
	flag.StringVar(&o.Cases, "cases", "control,sampled,blocked,exact,trace",
		"what to measure: these, profile-cpu, profile-offcpu, profile-wall, perf; profile-cpu@10 takes 10 samples a second")
	flag.StringVar(&o.Loads, "loads", "simple,prepared,tpcb", "transactions to execute")
	flag.DurationVar(&o.Profile, "profile", 20*time.Second, "how long a profile is taken whose own figures are printed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "bench waits:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	c, err := cluster.ByDataDir(o.DataDir)
	if err != nil {
		return err
	}
	server, err := waitevent.Locate(c)
	if err != nil {
		return err
	}
	fmt.Printf("%d cycles of 2 x %v, %d sessions; processor time of the backends for each transaction, on / off\n",
		o.Cycles, o.Slice, o.Sessions)
	fmt.Printf("%-9s %-9s %-14s %9s %9s %9s %12s %9s\n",
		"load", "case", "mechanism", "median", "low 5 %", "high 5 %", "us/xact off", "n/xact")
	for load := range strings.SplitSeq(o.Loads, ",") {
		if err := measureLoad(ctx, o, server, load); err != nil {
			return fmt.Errorf("load %s: %w", load, err)
		}
	}
	return nil
}

// measureLoad measures all cases with one kind of transaction.
func measureLoad(ctx context.Context, o options, server *waitevent.Server, name string) error {
	l, err := startLoad(ctx, o.DSN, name, o.Sessions)
	if err != nil {
		return err
	}
	defer l.stop()
	for name := range strings.SplitSeq(o.Cases, ",") {
		r, err := measure(ctx, o, server, l, name)
		if errors.Is(err, waits.ErrUnsupported) || errors.Is(err, os.ErrPermission) {
			fmt.Printf("%-9s %-9s not here: %v\n", l.name, name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("case %s: %w", name, err)
		}
		low, median, high := r.quantiles()
		fmt.Printf("%-9s %-9s %-14s %+8.2f%% %+8.2f%% %+8.2f%% %12.2f %9.2f\n", l.name, name, r.mechanism,
			100*(median-1), 100*(low-1), 100*(high-1), r.off, r.waits)
		if mode, ok := strings.CutPrefix(name, "profile-"); ok {
			if err := describeProfile(ctx, o, server, mode); err != nil {
				return err
			}
		}
		if r.skipped > 0 {
			fmt.Printf("          %d cycles were left out: no transaction ended in a slice\n", r.skipped)
		}
	}
	return nil
}

// result is the outcome of a case.
type result struct {
	mechanism string
	ratios    []float64
	off       float64 // microseconds for a transaction without timing
	waits     float64 // waits or stacks for each transaction, with timing
	skipped   int     // cycles with a slice without a transaction
}

// measure switches the timing on and off. The order alternates, so that a trend cancels out.
func measure(ctx context.Context, o options, server *waitevent.Server, l *load, name string) (*result, error) {
	r := &result{mechanism: "none"}
	var offTotal float64
	for i := range o.Cycles {
		var on, off sample
		for _, timed := range []bool{i%2 == 0, i%2 != 0} {
			s, err := slice(ctx, o, server, l, name, timed && name != "control", r)
			if err != nil {
				return nil, err
			}
			if timed {
				on = s
			} else {
				off = s
			}
		}
		if on.done == 0 || off.done == 0 {
			r.skipped++
			continue
		}
		r.ratios = append(r.ratios, on.cost()/off.cost())
		offTotal += off.cost()
		r.waits += float64(on.waits) / float64(on.done)
	}
	measured := float64(len(r.ratios))
	if measured == 0 {
		return nil, errors.New("no transaction in any slice")
	}
	r.off, r.waits = offTotal/measured, r.waits/measured
	return r, nil
}

// sample is the measurement of one time slice.
type sample struct {
	done  int64
	spent time.Duration
	waits uint64
}

// cost is microseconds of processor time for a transaction.
func (s sample) cost() float64 { return float64(s.spent.Nanoseconds()) / 1e3 / float64(s.done) }

// slice measures for a while.
func slice(
	ctx context.Context, o options, server *waitevent.Server, l *load, name string, timed bool, r *result,
) (s sample, err error) {
	if timed {
		begin := timeWaits
		switch mode, isProfile := strings.CutPrefix(name, "profile-"); {
		case isProfile:
			name, begin = mode, profileServer
		case name == "perf":
			begin = perfRecord
		}
		stop, err := begin(ctx, server, l, name, r)
		if err != nil {
			return s, err
		}
		defer func() { s.waits = stop() }()
	}
	time.Sleep(settle)
	done, spent := l.done(), l.spent()
	select {
	case <-time.After(o.Slice):
	case <-ctx.Done():
		return s, ctx.Err()
	}
	s.done, s.spent = l.done()-done, l.spent()-spent
	return s, l.err()
}

// timeWaits begins to time wait events. The result of stop is the number of waits.
func timeWaits(
	_ context.Context, server *waitevent.Server, l *load, name string, r *result,
) (stop func() uint64, err error) {
	method, trace := waits.Method(name), name == "trace"
	if trace {
		method = waits.Exact
	}
	p, err := waits.Open(server.Target, waits.Options{Method: method, Queries: trace})
	if err != nil {
		return nil, err
	}
	r.mechanism = p.Info().Mechanism
	tracer, ok := p.(waits.Tracer)
	if ok && trace {
		time.Sleep(settle)
		tracer.SetTraced(l.pids[0], true)
	}
	return func() uint64 {
		n := counted(p, l.pids)
		if ok && trace {
			tracer.Records()
		}
		p.Close()
		return n
	}, nil
}

// counted is the number of waits of the sessions.
func counted(p waits.Provider, pids []int) (n uint64) {
	snapshot, err := p.Snapshot()
	if err != nil {
		return 0
	}
	for _, process := range snapshot.Processes {
		for _, pid := range pids {
			if process.PID != pid {
				continue
			}
			for _, e := range process.Events {
				n += e.Calls
			}
		}
	}
	return n
}

// processorTime is how long a process has had a processor.
func processorTime(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(ns)
}
