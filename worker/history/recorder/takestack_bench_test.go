package recorder

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
)

// BenchmarkTakeStack takes the stack of each of many sessions that wait for one lock and have run since the stack before. It reports the processor time of one stack.
func BenchmarkTakeStack(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := waiters(b, n)
			defer s.Stop("immediate")
			pids := waiting(b, s, n)
			take := takerOf(b, s)
			for _, pid := range pids { // the files of the program are read once
				if _, err := take(b.Context(), pid, time.Minute); err != nil {
					b.Fatal(err)
				}
			}
			files := process.NewKeeper(n)
			defer files.Close()
			files.Begin(append([]int{s.PostmasterPID()}, pids...))
			used := time.Duration(0)
			for b.Loop() {
				wake(b, pids)
				began := processTime()
				for _, pid := range pids {
					if _, err := take(b.Context(), pid, time.Minute); err != nil {
						b.Fatal(err)
					}
				}
				used += processTime() - began
			}
			each := used.Seconds() / float64(b.N*len(pids))
			b.ReportMetric(each*1e6, "cpu-us/stack")
			b.ReportMetric(each*1e3*float64(n), "cpu-ms/sweep")
		})
	}
}

// wake makes processes run for a moment, and waits until they sleep again.
func wake(b *testing.B, pids []int) {
	b.Helper()
	for _, pid := range pids {
		before, err := process.ReadStatus(pid)
		if err != nil {
			b.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
			b.Fatal(err)
		}
		switches := before.VoluntarySwitches + before.InvoluntarySwitches
		pgtest.Wait(b, "a turn of the process", func() bool {
			now, err := process.ReadStatus(pid)
			return err == nil && now.State == 'S' && now.VoluntarySwitches+now.InvoluntarySwitches != switches
		})
	}
}

// waiters starts a server with sessions that wait for an advisory lock.
func waiters(b *testing.B, n int) *pgtest.Server {
	b.Helper()
	s := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{Conf: []string{
		fmt.Sprintf("max_connections = %d", n+20), "autovacuum = off", "deadlock_timeout = '1h'", "shared_buffers = 16MB",
	}})
	if _, err := s.Connect(b, "postgres", "postgres").Exec(context.Background(), "SELECT pg_advisory_lock(1)"); err != nil {
		b.Fatal(err)
	}
	for range n {
		conn := s.Connect(b, "postgres", "postgres")
		go func() { _, _ = conn.Exec(context.Background(), "SELECT pg_advisory_lock(1)") }()
	}
	return s
}

// waiting returns the processes that wait for a lock.
func waiting(b *testing.B, s *pgtest.Server, n int) (pids []int) {
	b.Helper()
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		b.Fatal(err)
	}
	r, err := state.Open(c)
	if err != nil {
		b.Fatal(err)
	}
	pgtest.Wait(b, "the waiters", func() bool {
		m, err := r.Read(state.Options{})
		if err != nil {
			b.Fatal(err)
		}
		pids = pids[:0]
		for i := range m.Sessions {
			if w := m.Sessions[i].Wait; w != nil && w.Type == "Lock" {
				pids = append(pids, m.Sessions[i].PID)
			}
		}
		return len(pids) == n
	})
	return pids
}
