package cli

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/store"
)

// recorderKills kills a worker that records, and its server.
type recorderKills struct {
	*pgtest.Server

	t          *testing.T
	program    string // this one, where the server's user can execute it
	dir, spool string
	started    time.Time // when the worker was started
	worker     *exec.Cmd
	log        bytes.Buffer
	lost       []time.Duration // between the last sweep and a kill of the worker, beyond the period
	gaps       []time.Duration // without a sweep after a kill of the server, beyond the period
}

// TestRecorderKilled kills the worker, the postmaster, and single backends with SIGKILL at random moments while sessions work.
// Each sweep that could be read before a kill must be there afterwards, each file must be readable, and after the worker's ordinary
// End only the history may be left. PGSB_TEST_KILLS is the number of kills of the worker. There are a tenth as many of the server.
func TestRecorderKilled(t *testing.T) {
	kills := 5
	if pgtest.Full() {
		kills = 200
	}
	if n, err := strconv.Atoi(os.Getenv("PGSB_TEST_KILLS")); err == nil {
		kills = n
	}
	k := &recorderKills{t: t, Server: pgtest.Start(t, pgtest.Newest(t), pgtest.Options{Conf: []string{
		"autovacuum = off", "max_connections = 20", "fsync = off",
	}})}
	k.program = k.Self(t)
	k.dir, k.spool = k.folder(), k.folder()
	k.Exec(t, "CREATE TABLE counters AS SELECT 1 AS n")
	k.work()
	t.Cleanup(func() {
		if k.worker != nil {
			_ = k.worker.Process.Kill()
			_ = k.worker.Wait()
		}
		if t.Failed() {
			t.Log(k.log.String())
		}
	})
	k.start()
	for i := range kills {
		k.killWorker()
		if i%10 == 9 || kills < 10 && i%2 == 0 {
			k.killServer(i%20 == 9 || i == 0)
		}
	}
	if err := k.worker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := k.worker.Wait(); err != nil {
		t.Errorf("the worker: %v", err)
	}
	k.worker = nil
	k.checkFiles()
	slices.Sort(k.lost)
	slices.Sort(k.gaps)
	late := func(list []time.Duration) int {
		return len(slices.DeleteFunc(slices.Clone(list), func(d time.Duration) bool { return d < time.Second }))
	}
	t.Logf("%d kills of the worker: %s lost in the median, %s at most, a second or more after %d; "+
		"%d kills in the server: no sweep for %s in the median, %s at most, a second or more after %d",
		len(k.lost), k.lost[len(k.lost)/2], k.lost[len(k.lost)-1], late(k.lost),
		len(k.gaps), k.gaps[len(k.gaps)/2], k.gaps[len(k.gaps)-1], late(k.gaps))
}

// folder makes a folder that the server's user can use.
func (k *recorderKills) folder() string {
	k.t.Helper()
	dir, err := os.MkdirTemp("", "kills")
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid, gid := k.OSUser()
	if err := os.Chown(dir, uid, gid); err != nil {
		k.t.Fatal(err)
	}
	return dir
}

// work has sessions that wait for each other. They connect again after a crash.
func (k *recorderKills) work() {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for range 3 {
		working.Go(func() {
			for ctx.Err() == nil {
				conn, err := pgx.Connect(ctx, k.DSN("postgres", "postgres"))
				for err == nil && ctx.Err() == nil {
					_, err = conn.Exec(ctx, "UPDATE counters SET n = n + 1 FROM (SELECT pg_sleep(0.01)) s")
				}
				if conn != nil {
					_ = conn.Close(context.Background())
				}
				time.Sleep(10 * time.Millisecond) // the server may be down
			}
		})
	}
	k.t.Cleanup(func() { cancel(); working.Wait() })
}

const killsPeriod = 200 * time.Millisecond

// start starts a worker, and waits for its first sweep.
func (k *recorderKills) start() {
	k.t.Helper()
	k.started = time.Now()
	words := []string{
		"worker", "-D", k.DataDir, "--record", killsPeriod.String(), "--record-dir", k.dir, "--record-min-free", "1MB",
		"--spool-dir", k.spool, "--log-format", "json", k.DSN("postgres", "postgres"),
	}
	k.worker = k.AsServerUser(exec.Command(k.program))
	k.worker.Env = append(os.Environ(), topVariable+"="+strings.Join(words, "\n"))
	k.worker.Stdout, k.worker.Stderr = &k.log, &k.log
	if k.worker.SysProcAttr == nil {
		k.worker.SysProcAttr = &syscall.SysProcAttr{}
	}
	k.worker.SysProcAttr.Pdeathsig = unix.SIGKILL
	if err := k.worker.Start(); err != nil {
		k.worker = nil
		k.t.Fatal(err)
	}
	k.await("a sweep of the new worker", k.started)
}

// await waits for a sweep with rows after a time.
func (k *recorderKills) await(what string, after time.Time) {
	k.t.Helper()
	pgtest.Wait(k.t, what, func() bool {
		return slices.ContainsFunc(k.sweeps(after), func(s store.SweepInfo) bool { return s.Rows > 0 })
	})
}

// sweeps returns the sweeps after a time.
func (k *recorderKills) sweeps(after time.Time) (list []store.SweepInfo) {
	k.t.Helper()
	ids, err := store.Clusters(k.dir)
	if errors.Is(err, store.ErrNoHistory) {
		return nil
	}
	if err != nil || len(ids) != 1 {
		k.t.Fatal(ids, err)
	}
	r, err := store.OpenReader(k.dir, ids[0])
	if err != nil {
		k.t.Fatal(err)
	}
	err = r.Sweeps(k.t.Context(), after, time.Now().Add(time.Hour), func(s store.SweepInfo) error {
		list = append(list, s)
		return nil
	})
	if err != nil || len(r.Damage) > 0 {
		k.t.Fatal(err, r.Damage)
	}
	return list
}

// killWorker kills the worker at a random moment, and starts another one.
func (k *recorderKills) killWorker() {
	k.t.Helper()
	time.Sleep(time.Duration(rand.Int64N(int64(2 * killsPeriod))))
	recent := k.started // start has awaited a sweep since then, however slow the disk is
	before := k.sweeps(recent)
	killed := time.Now()
	if err := k.worker.Process.Kill(); err != nil {
		k.t.Fatal(err)
	}
	_ = k.worker.Wait()
	after := k.sweeps(recent)
	if len(after) < len(before) || !slices.Equal(before, after[:len(before)]) {
		k.t.Fatalf("%d sweeps before the kill, and now %d: %v, %v", len(before), len(after), before, after)
	}
	k.lost = append(k.lost, max(0, killed.Sub(time.UnixMicro(after[len(after)-1].Time))-killsPeriod))
	k.start()
	if again := k.sweeps(recent); len(again) <= len(after) || !slices.Equal(after, again[:len(after)]) {
		k.t.Fatalf("%d sweeps after the kill, and %d after the next start", len(after), len(again))
	}
}

// killServer kills the postmaster, or a backend, while the worker records.
func (k *recorderKills) killServer(whole bool) {
	k.t.Helper()
	began := time.Now()
	if whole {
		k.Kill()
		k.Start()
	} else {
		crashes := strings.Count(k.Log(), "all server processes terminated")
		conn, err := pgx.Connect(k.t.Context(), k.DSN("postgres", "postgres"))
		if err != nil {
			k.t.Fatal(err)
		}
		if err := syscall.Kill(int(conn.PgConn().PID()), syscall.SIGKILL); err != nil {
			k.t.Fatal(err)
		}
		_ = conn.Close(context.Background())
		// The postmaster notices the crash a moment later. Until then it accepts connections.
		pgtest.Wait(k.t, "the end of the other processes", func() bool { return strings.Count(k.Log(), "all server processes terminated") > crashes })
		pgtest.Wait(k.t, "the server's recovery", func() bool {
			c, err := pgx.Connect(k.t.Context(), k.DSN("postgres", "postgres"))
			if err == nil {
				_ = c.Close(context.Background())
			}
			return err == nil
		})
	}
	k.await("sessions after a crash", time.Now())
	longest, last := time.Duration(0), time.Time{}
	for _, s := range k.sweeps(began.Add(-time.Second)) {
		at := time.UnixMicro(s.Time)
		if !last.IsZero() {
			longest = max(longest, at.Sub(last)-killsPeriod)
		}
		last = at
	}
	k.gaps = append(k.gaps, longest)
}

// checkFiles expects the history and nothing else. Each file must be readable.
func (k *recorderKills) checkFiles() {
	k.t.Helper()
	ids, err := store.Clusters(k.dir)
	if err != nil {
		k.t.Fatal(err)
	}
	r, err := store.OpenReader(k.dir, ids[0])
	if err != nil {
		k.t.Fatal(err)
	}
	sweeps, rows := len(k.sweeps(time.Unix(0, 0))), 0
	err = r.Rows(k.t.Context(), time.Unix(0, 0), time.Now().Add(time.Hour), func(*store.Row) error { rows++; return nil })
	if err != nil || len(r.Damage) > 0 || rows == 0 {
		k.t.Errorf("%d rows, %v, %v", rows, err, r.Damage)
	}
	files := map[string]int{}
	for _, dir := range []string{k.dir, k.spool} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				name, _, _ := strings.Cut(e.Name(), "-")
				files[name+filepath.Ext(e.Name())]++
			}
			if err == nil && dir == k.spool && path != dir {
				k.t.Errorf("%s is left in the spool", path)
			}
			return err
		})
		if err != nil {
			k.t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(k.DataDir, "pg_stat_backtrace.pid")); !errors.Is(err, fs.ErrNotExist) {
		k.t.Errorf("pg_stat_backtrace.pid: %v", err)
	}
	k.t.Logf("%d sweeps, %d rows, files %v", sweeps, rows, files)
}
