package serving

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
)

// TestKilledInAnAction kills the worker by SIGKILL while it runs an action of the page: the process that the action reads works on, no
// process of the server is stopped or traced, and no program stays in the kernel.
func TestKilledInAnAction(t *testing.T) {
	rounds := 1
	if pgtest.Full() {
		rounds = 20
	}
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := s.Connect(t, s.User, "postgres")
	target := int(conn.PgConn().PID())
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
	root := os.Geteuid() == 0
	kernel := root && clusterbpf.Check() == nil
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("operator an-operator-of-the-page\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"capture", "profile", "waits"} {
		t.Run(action, func(t *testing.T) {
			for round := range rounds {
				w := serve(t, s, root, "--listen-token-file", tokens)
				begun := make(chan struct{}, 1)
				acting := make(chan struct{})
				go func() {
					defer close(acting)
					act(w.address, action, target, begun)
				}()
				<-begun
				var left []pgtest.KernelObject
				if kernel && action != "capture" {
					pgtest.Wait(t, "programs in the kernel", func() bool {
						left = pgtest.KernelObjects(t, w.Process.Pid)
						return pgtest.HasLink(left)
					})
				}
				time.Sleep(time.Duration(round) * 7 * time.Millisecond) // another moment each time
				if err := w.Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				<-acting
				n := worked.Load()
				pgtest.Wait(t, "further statements of the target", func() bool { return worked.Load() > n+1 })
				s.Untouched(t)
				for _, object := range left {
					pgtest.Wait(t, object.String()+" to be freed", func() bool { return !object.Exists(t) })
				}
			}
		})
	}
}

// act starts an action of the page again and again until the worker does not answer any more. It sends a value to begun when the
// first request is on its way.
func act(address, action string, pid int, begun chan<- struct{}) {
	for first := true; ; first = false {
		r, err := http.NewRequest(http.MethodPost, "http://"+address+"/screen/"+action, bytes.NewReader(fmt.Appendf(nil, `{"pid": %d}`, pid)))
		if err != nil {
			panic(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer an-operator-of-the-page")
		if first {
			begun <- struct{}{}
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return
		}
		_ = answer.Body.Close()
	}
}
