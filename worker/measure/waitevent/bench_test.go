package waitevent

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/pg/cluster"
)

// BenchmarkStacks measures the processor time of a backend for a query without work, whose wait for the client is
// timed, with and without copies of its stack.
func BenchmarkStacks(b *testing.B) {
	server := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{})
	c, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		b.Fatal(err)
	}
	located, err := Locate(c)
	if err != nil {
		b.Fatal(err)
	}
	for name, o := range map[string]waits.Options{
		"off": {}, "exact": {Method: waits.Exact},
		"one in 100": {Method: waits.Exact, Stacks: waits.StackOptions{Every: 100}},
		"every":      {Method: waits.Exact, Stacks: waits.StackOptions{Every: 1}},
	} {
		b.Run(name, func(b *testing.B) {
			conn := server.Connect(b, "postgres", "postgres")
			if o.Method != "" {
				provider, err := waits.Open(located.Target, o)
				if err != nil {
					b.Skip(err)
				}
				defer provider.Close()
				stacker, _ := provider.(waits.Stacker)
				done := make(chan struct{})
				defer close(done)
				go func() {
					for ticker := time.NewTicker(20 * time.Millisecond); ; {
						select {
						case <-done:
							return
						case <-ticker.C:
							stacker.Stacks()
						}
					}
				}()
			}
			clock := ^int32(conn.PgConn().PID())<<3 | 2 // CPUCLOCK_SCHED of include/linux/posix-timers.h
			var before, after unix.Timespec
			_ = unix.ClockGettime(clock, &before)
			for b.Loop() {
				if _, err := conn.Exec(b.Context(), ";"); err != nil {
					b.Fatal(err)
				}
			}
			_ = unix.ClockGettime(clock, &after)
			b.ReportMetric(float64(after.Nano()-before.Nano())/float64(b.N), "ns-backend/query")
		})
	}
}
