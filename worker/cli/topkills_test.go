package cli

import (
	"context"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
)

// TestTopKilledWhileItMeasures kills the screen by SIGKILL while it runs a profile or times waits: the command ends too, the session
// works on, no process of the server is stopped or traced, and no program stays in the kernel.
func TestTopKilledWhileItMeasures(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := s.Connect(t, s.User, "postgres")
	var worked atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if _, err := conn.Exec(context.Background(), "SELECT count(*) FROM generate_series(1, 3000), pg_sleep(0.001)"); err != nil {
				t.Error(err)
				return
			}
			worked.Add(1)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	kernel := os.Geteuid() == 0 && clusterbpf.Check() == nil
	for key, command := range map[string]string{"p": " profile ", "w": " waits "} {
		t.Run(command, func(t *testing.T) {
			x := openTerminal(t)
			x.size(t, 120, 40)
			quits := x.run(t, "top", "-D", s.DataDir, "--pid", strconv.FormatUint(uint64(conn.PgConn().PID()), 10))
			x.await(t, "#0 ")
			x.send(t, key)
			x.await(t, command)
			var children []int
			var left []pgtest.KernelObject
			pgtest.Wait(t, "the command, and its programs in the kernel", func() bool {
				children, _ = process.Children(x.pid)
				if len(children) == 1 {
					left = pgtest.KernelObjects(t, children[0])
				}
				return len(children) == 1 && (!kernel || pgtest.HasLink(left))
			})
			if err := syscall.Kill(x.pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-quits
			pgtest.Wait(t, "the end of the command", func() bool {
				stat, err := process.ReadStat(children[0])
				return err != nil || stat.State == 'Z' // its new parent may ask for it late
			})
			n := worked.Load()
			pgtest.Wait(t, "further statements", func() bool { return worked.Load() > n+1 })
			s.Untouched(t)
			for _, object := range left {
				pgtest.Wait(t, object.String()+" to be freed", func() bool { return !object.Exists(t) })
			}
		})
	}
}
