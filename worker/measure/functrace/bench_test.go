package functrace_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/measure/functrace"
)

// BenchmarkCostOfCalls measures the processor time that a probe adds to a call, in the process that calls the function.
// It alternates runs of a backend with and without the probe. Each figure is the median of the differences, for one
// call.
func BenchmarkCostOfCalls(b *testing.B) {
	s := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{})
	conn := s.Connect(b, s.User, "postgres")
	pid := int(conn.PgConn().PID())
	capturer, err := capture.New(capture.Config{AwaitNames: true})
	if err != nil {
		b.Fatal(err)
	}
	const calls = 2000 // their stacks find room in the ring
	for _, c := range []struct {
		name, function string
		options        functrace.Options
	}{
		{"count", "drandom", functrace.Options{CountOnly: true}},
		{"stack", "drandom", functrace.Options{StacksPerSecond: 1_000_000}},
		{"condition", "drandom", functrace.Options{
			CountOnly: true, Conditions: []functrace.Condition{{Argument: functrace.Argument{Number: 1, Form: 'x'}, Op: 1}},
		}},
		{"latency", "drandom", functrace.Options{CountOnly: true, Calls: true}},
		{"single-stepped count", "pg_backend_pid", functrace.Options{CountOnly: true}},
	} {
		sql := fmt.Sprintf("SELECT count(random()), count(pg_backend_pid()) FROM generate_series(1, %d)", calls)
		run := func() int64 {
			before := processorTime(b, pid)
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				b.Fatal(err)
			}
			return processorTime(b, pid) - before
		}
		b.Run(c.name, func(b *testing.B) {
			var costs, sizes []float64
			for b.Loop() {
				cost, size := costOfCalls(b, capturer, c.function, c.options, pid, calls, run)
				costs, sizes = append(costs, cost), append(sizes, size)
			}
			slices.Sort(costs)
			b.ReportMetric(costs[len(costs)/2], "ns/call")
			b.ReportMetric(0, "ns/op")
			if !c.options.CountOnly {
				b.ReportMetric(sizes[len(sizes)/2], "stacks")
			}
		})
	}
}

// costOfCalls is one run without and one with a probe.
func costOfCalls(
	b *testing.B, capturer *capture.Capturer, function string, o functrace.Options, pid, calls int, run func() int64,
) (cost, stacks float64) {
	b.Helper()
	run()
	off := run()
	o.Functions, o.PIDs = []string{function}, []int{pid}
	tracer, err := functrace.New(capturer, o)
	if err != nil {
		b.Fatal(err)
	}
	defer tracer.Close()
	if err := tracer.Attach(probe.Cost{}); err != nil {
		b.Skipf("this host cannot run the programs: %v", err)
	}
	on := run()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r, err := tracer.Run(ctx, 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	sum := r.Functions[0].Total()
	if sum.Hits != uint64(calls) || sum.Lost > 0 {
		b.Fatalf("%d calls: %+v", calls, sum)
	}
	return float64(on-off) / float64(calls), float64(sum.Stacks)
}

// processorTime is how long a process has had a processor, in ns.
func processorTime(b *testing.B, pid int) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Fatal(err)
	}
	field, _, _ := bytes.Cut(text, []byte(" "))
	n, err := strconv.ParseInt(string(field), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
