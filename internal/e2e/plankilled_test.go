package e2e

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// TestPlanReaderKilled kills the command plan, and the worker that answers pg_get_running_plan, while they trace a session. The
// sessions must go on, and no process of the server may stay stopped or traced.
func TestPlanReaderKilled(t *testing.T) {
	t.Parallel()
	s := start(t, pgtest.BinDir(t), pgtest.Options{})
	rounds := 3
	if pgtest.Full() {
		rounds = 30
	}
	ctx, cancel := context.WithCancel(context.Background())
	var counts [2]atomic.Int64
	var pids []int
	var working sync.WaitGroup
	for i := range counts {
		conn := s.Connect(t, s.User, "postgres")
		pids = append(pids, int(conn.PgConn().PID()))
		working.Go(func() {
			for ctx.Err() == nil {
				if _, err := conn.Exec(context.Background(), "SELECT count(md5(g::text)) FROM generate_series(1, 20000) g"); err != nil {
					t.Error(err)
					return
				}
				counts[i].Add(1)
			}
		})
	}
	defer func() { cancel(); working.Wait() }()
	untouched := func(t *testing.T) {
		t.Helper()
		for i := range counts {
			n := counts[i].Load()
			pgtest.Wait(t, "further statements of a session", func() bool { return counts[i].Load() > n+1 })
		}
		children, err := process.Children(s.PostmasterPID())
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range append(children, s.PostmasterPID()) {
			status, err := process.ReadStatus(pid)
			if errors.Is(err, process.ErrGone) {
				continue
			}
			if err != nil || status.TracerPID != 0 || status.State == 'T' || status.State == 't' {
				t.Errorf("process %d: state %c, tracer %d, %v", pid, status.State, status.TracerPID, err)
			}
		}
	}
	// killed kills a process as soon as it traces a session.
	killed := func(t *testing.T, reader int) {
		t.Helper()
		deadline := time.Now().Add(pgtest.Patience)
		for i := 0; ; i++ {
			status, err := process.ReadStatus(pids[i%len(pids)])
			if err != nil {
				t.Fatal(err)
			}
			if status.TracerPID != 0 {
				if err := syscall.Kill(reader, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("no session was traced")
			}
		}
	}
	t.Run("plan --watch", func(t *testing.T) {
		for range rounds {
			command := s.AsServerUser(exec.Command(programs.worker, "plan", "--watch", "100ms", strconv.Itoa(pids[0]), strconv.Itoa(pids[1])))
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			killed(t, command.Process.Pid)
			_ = command.Wait() // it was killed
			untouched(t)
		}
	})
	t.Run("worker", func(t *testing.T) {
		for range rounds {
			w := s.work(t)
			c := s.connect(t, s.User, "postgres")
			asking := make(chan struct{})
			go func() {
				defer close(asking)
				for !w.gone() {
					_, _ = c.try(context.Background(), "SELECT pg_get_running_plan($1)", pids[0])
				}
			}()
			killed(t, w.Process.Pid)
			_ = w.end(syscall.SIGKILL)
			<-asking
			untouched(t)
		}
	})
}
