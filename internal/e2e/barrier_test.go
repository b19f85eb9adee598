package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestBarrierBlockers checks DROP DATABASE, which waits until all processes have absorbed a barrier.
// pg_get_blocking_backtraces lists the late processes, each with its stack.
func TestBarrierBlockers(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		if s.Major < 15 {
			t.Skip("PostgreSQL 14 waits for no barrier")
		}
		boss.run(t, "CREATE DATABASE dropped")
		late := []int{s.connect(t, s.User, "postgres").pid(), s.connect(t, s.User, "postgres").pid()}
		slices.Sort(late)
		for _, pid := range late {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		}
		dropper := s.connect(t, s.User, "postgres")
		done := dropper.later("DROP DATABASE dropped")
		s.waits(t, dropper.pid(), "ProcSignalBarrier")
		const blockers = `SELECT coalesce(string_agg(distance || ' ' || blocking_pid || ' ' || (backtrace ~ '^#0 '), ', '
			ORDER BY distance, blocking_pid), '') FROM pg_get_blocking_backtraces(%d)`
		// A process between two waits has not absorbed the barrier yet, either.
		want := fmt.Sprintf("0 %d true, 1 %d true, 1 %d true", dropper.pid(), late[0], late[1])
		pgtest.Wait(t, want, func() bool { return boss.text(t, fmt.Sprintf(blockers, dropper.pid())) == want })
		if err := syscall.Kill(late[0], syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		want = fmt.Sprintf("0 %d true, 1 %d true", dropper.pid(), late[1])
		pgtest.Wait(t, want, func() bool { return boss.text(t, fmt.Sprintf(blockers, dropper.pid())) == want })
		if err := syscall.Kill(late[1], syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		<-done
	})
}
