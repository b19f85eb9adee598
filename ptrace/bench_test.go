package ptrace

import (
	"context"
	"slices"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/snapshot"
)

// BenchmarkCapture measures the whole call, the target's pause, and the call without reading maps.
func BenchmarkCapture(b *testing.B) {
	for _, test := range []struct {
		name string
		args []string
		o    snapshot.Options
	}{
		{"sleeping", []string{"sleep"}, snapshot.Options{}},
		{"busy", []string{"busy"}, snapshot.Options{}},
		{"stack128KiB", []string{"deep", "128"}, snapshot.Options{}},
		{"threads35", []string{"threads", "34"}, snapshot.Options{AllThreads: true}},
	} {
		b.Run(test.name, func(b *testing.B) {
			benchmarkCapture(b, startTarget(b, test.args...).pid, test.o)
		})
	}
}

func benchmarkCapture(b *testing.B, pid int, o snapshot.Options) {
	b.Helper()
	pauses, calls := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	for b.Loop() {
		begin := time.Now()
		s, err := Capture(context.Background(), anyTarget(pid), o)
		if err != nil {
			b.Fatal(err)
		}
		calls = append(calls, time.Since(begin))
		pauses = append(pauses, s.Pause)
	}
	report(b, pauses, "pause")
	report(b, calls, "call")
}

// report adds median and 99th percentile in microseconds.
func report(b *testing.B, values []time.Duration, name string) {
	b.Helper()
	slices.Sort(values)
	at := func(percent int) float64 {
		return float64(values[(len(values)-1)*percent/100].Nanoseconds()) / 1000
	}
	b.ReportMetric(at(50), name+"-p50-µs")
	b.ReportMetric(at(99), name+"-p99-µs")
}
