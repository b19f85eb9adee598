package heap

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/allocs"
)

// BenchmarkCost measures how much processor time a trace adds to a pair of malloc and free in the traced process, for
// stacks of several sizes. It compares equal runs with and without a trace, and with the estimate that the budget uses.
func BenchmarkCost(b *testing.B) {
	needTracer(b)
	exe := build(b, "gcc")
	for _, depth := range []int{0, 25, 100} { // a frame of churn has 304 bytes
		b.Run(fmt.Sprintf("stack=%dkB", depth*304/1000), func(b *testing.B) {
			p := start(b, exe)
			const calls = 20_000
			command := fmt.Sprintf("churn %d %d", calls, depth)
			var plain, traced, estimated time.Duration
			p.do(command)
			for b.Loop() {
				began := processorTime(b, p.pid())
				p.do(command)
				plain += processorTime(b, p.pid()) - began
				r := during(b, p.pid(), allocs.Options{}, func() {
					began = processorTime(b, p.pid())
					p.do(command)
					traced += processorTime(b, p.pid()) - began
				})
				estimated += r.Overhead
			}
			each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(calls*b.N) }
			b.ReportMetric(each(plain), "ns-plain/pair")
			b.ReportMetric(each(traced), "ns-traced/pair")
			b.ReportMetric(each(estimated), "ns-estimated/pair")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// processorTime returns the processor time of a process.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(pid)<<3|2, &t); err != nil { // CPUCLOCK_SCHED of include/linux/posix-timers.h
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
