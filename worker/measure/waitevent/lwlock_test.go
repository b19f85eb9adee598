package waitevent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
)

// semaphoreTimes reads the times that testdata/semaphores.c has added up, by event.
func semaphoreTimes(t *testing.T, path string) map[uint32]time.Duration {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	times := make(map[uint32]time.Duration)
	for ; len(data) >= 16; data = data[16:] {
		if event := binary.NativeEndian.Uint64(data); event != 0 {
			times[uint32(event)] = time.Duration(binary.NativeEndian.Uint64(data[8:]))
		}
	}
	return times
}

// TestLWLockTime compares the time of waits for LWLocks with the time that the server's own processes measure. In the
// kernel a wait for an LWLock is part of the wait in the server: at least 90 percent of the time of each tranche that
// matters.
func TestLWLockTime(t *testing.T) {
	dir := t.TempDir()
	library, file := filepath.Join(dir, "semaphores.so"), filepath.Join(dir, "times")
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, "testdata/semaphores.c", "-ldl").CombinedOutput()
	if err != nil {
		t.Skipf("no library for the server: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, make([]byte, 8192), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o666); err != nil { // the server's user writes it
		t.Fatal(err)
	}
	for parent := dir; parent != "/" && parent != "."; parent = filepath.Dir(parent) {
		_ = exec.Command("chmod", "a+x", parent).Run()
	}
	bins := pgtest.BinDirs(t)
	server := pgtest.Options{
		Env: []string{"LD_PRELOAD=" + library, "SEMAPHORE_TIMES=" + file},
		Conf: []string{
			"fsync = on", "wal_buffers = 64kB", "shared_buffers = 1MB", "autovacuum = off", "max_connections = 40",
		},
	}
	exact := watch(t, bins[len(bins)-1], server, waits.Options{Method: waits.Exact})
	blocked, err := waits.Open(exact.Target, waits.Options{Method: waits.Blocked})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, waits.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer blocked.Close()
	contend(t, exact.server, file)
	truth := semaphoreTimes(t, file)
	for _, p := range []waits.Provider{exact.provider, blocked} {
		s, err := p.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		ours := make(map[uint32]waits.Event)
		for _, e := range s.Totals() {
			ours[e.ID] = e
		}
		exact.compareTranches(t, p.Info().Method, ours, truth)
	}
}

// enough is the least total time of the waits for a tranche that the test compares.
const enough = 50 * time.Millisecond

// alone is the number of waits from which on a tranche is compared by itself. On a busy machine a process may lose its
// processor between its own measurement and the kernel's, which is a large part of a few waits. The sum of all waits is
// always compared.
const alone = 100

func (w watched) compareTranches(
	t *testing.T, method waits.Method, ours map[uint32]waits.Event, truth map[uint32]time.Duration,
) {
	t.Helper()
	const lwlock = 1
	compared := 0
	var sum, truths time.Duration
	for id, total := range truth {
		if id>>24 != lwlock || total < enough {
			continue
		}
		compared++
		e := ours[id]
		_, name, _ := w.Names.Name(id)
		sum, truths = sum+e.Total, truths+total
		share := float64(e.Total) / float64(total)
		t.Logf("%-8s %-16s %9v of %9v: %.1f %%, %d calls", method, name, e.Total.Round(time.Microsecond),
			total.Round(time.Microsecond), 100*share, e.Calls)
		if e.Calls >= alone && (share < 0.9 || share > 1.01) {
			t.Errorf("%s: %s: %v of %v", method, name, e.Total, total)
		}
	}
	if share := float64(sum) / float64(truths); share < 0.9 || share > 1.01 {
		t.Errorf("%s: all: %v of %v", method, sum, truths)
	}
	if compared == 0 {
		t.Error("no tranche has waited for long")
	}
}

// contend has sessions wait for LWLocks until two tranches have done so for long enough, or three if Full.
func contend(t *testing.T, server *pgtest.Server, file string) {
	t.Helper()
	server.Exec(t, `CREATE TABLE t AS SELECT i AS n, repeat('x', 400) AS s FROM generate_series(1, 20000) i;
		CREATE INDEX ON t (n); CREATE TABLE w (n int, s text); CREATE TABLE p (n int) PARTITION BY RANGE (n);
		DO $$ BEGIN FOR i IN 1..30 LOOP
			EXECUTE format('CREATE TABLE p%s PARTITION OF p FOR VALUES FROM (%s) TO (%s)', i, i, i + 1);
		END LOOP; END $$`)
	tranches := 2
	if pgtest.Full() {
		tranches = 3
	}
	stop, pids := make(chan struct{}), []uint32(nil)
	var sessions sync.WaitGroup
	for i := range 24 {
		c := server.Connect(t, "postgres", "postgres")
		pids = append(pids, c.PgConn().PID())
		sessions.Go(func() { contender(stop, t, c, i) })
	}
	pgtest.Wait(t, "waits for LWLocks", func() bool {
		long := 0
		for id, total := range semaphoreTimes(t, file) {
			if id>>24 == 1 && total >= 4*enough {
				long++
			}
		}
		return long >= tranches
	})
	close(stop)
	sessions.Wait()
	pgtest.Wait(t, "the end of the sessions", func() bool { // and of their waits
		for _, pid := range pids {
			if syscall.Kill(int(pid), 0) == nil {
				return false
			}
		}
		return true
	})
}

// contender executes transactions until stop is closed.
func contender(stop chan struct{}, t *testing.T, c *pgx.Conn, i int) {
	defer func() { _ = c.Close(context.Background()) }()
	for {
		select {
		case <-stop:
			return
		default:
		}
		// WALInsert, WALWrite, and WALBufMapping: two statements fill the server's WAL buffers before either commits.
		sql := "INSERT INTO w SELECT 1, repeat('x', 2000) FROM generate_series(1, 20)"
		switch i % 3 {
		case 1: // BufferMapping, BufferContent
			from := rand.IntN(20000)
			sql = fmt.Sprintf("SELECT count(s) FROM t WHERE n BETWEEN %d AND %[1]d + 20", from)
		case 2: // LockManager
			sql = "SELECT count(*) FROM p"
		}
		if _, err := c.Exec(context.Background(), sql); err != nil {
			t.Error(err)
			return
		}
	}
}
