package waitevent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
)

// TestSyncRep has a synchronous standby withhold its answer for a known time. The standby is pg_receivewal.
func TestSyncRep(t *testing.T) {
	bin := ""
	for _, dir := range pgtest.BinDirs(t) {
		if _, err := os.Stat(filepath.Join(dir, "pg_receivewal")); err == nil {
			bin = dir
		}
	}
	if bin == "" {
		t.Skip("no server here comes with pg_receivewal")
	}
	for _, method := range []waits.Method{waits.Blocked, waits.Exact} {
		t.Run(string(method), func(t *testing.T) {
			const most = 5 // a signal for another reason wakes the session up, and it waits again: that is a second call
			var calls uint64
			for range most {
				if t.Run("", func(t *testing.T) { calls = syncRep(t, bin, method) }); calls == 1 || t.Failed() || t.Skipped() {
					return
				}
			}
			t.Errorf("each of %d commits that waited once had several calls", most)
		})
	}
}

// syncRep measures a commit that waits for the standby, and returns the number of its waits.
func syncRep(t *testing.T, bin string, method waits.Method) (calls uint64) {
	conf := []string{"autovacuum = off", "synchronous_standby_names = 'standby'", "wal_sender_timeout = 0"}
	w := watch(t, bin, pgtest.Options{Conf: conf}, waits.Options{Method: method})
	w.server.Exec(t, "SET synchronous_commit = local; CREATE TABLE t (n int)")
	standby := w.server.AsServerUser(exec.Command(filepath.Join(bin, "pg_receivewal"), "--synchronous", "--no-loop",
		"-D", filepath.Dir(w.server.DataDir), "-d", w.server.DSN("postgres", "postgres")+" application_name=standby"))
	if err := standby.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = standby.Process.Kill()
		_ = standby.Wait()
	})
	c, other := w.server.Connect(t, "postgres", "postgres"), w.server.Connect(t, "postgres", "postgres")
	pgtest.Wait(t, "the synchronous standby", func() bool {
		return number[int](t, other, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	pgtest.Suspend(t, standby.Process)
	w.server.RequireStandby(t, "standby", "on")
	pid := number[int](t, c, "SELECT pg_backend_pid()")
	w.provider.Reset(pid)
	done, began := make(chan error), time.Now()
	go func() {
		_, err := c.Exec(context.Background(), "INSERT INTO t VALUES (2)")
		done <- err
	}()
	pgtest.Wait(t, "the commit's wait", func() bool {
		return number[int](t, other, fmt.Sprintf(
			"SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'SyncRep'", pid)) == 1
	})
	awaitSleep(t, pid)
	seen := time.Now()
	number[string](t, other, "SELECT pg_sleep(0.2)::text")
	withheld := time.Since(seen)
	if err := standby.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	row := w.callsOf(t, w.provider, pid)["IPC/SyncRep"]
	t.Logf("%d calls, %v; withheld for %v", row.Calls, row.Total, withheld)
	if row.Calls < 1 || row.Total < withheld || row.Total > time.Since(began) {
		t.Errorf("%d calls, %v; the answer was withheld for %v", row.Calls, row.Total, withheld)
	}
	return row.Calls
}
