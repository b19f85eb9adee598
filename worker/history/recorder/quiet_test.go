package recorder

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
)

// faster is by how much the rules of TestQuiet are faster than the built-in ones. The one for LWLocks is not: a second is short enough.
const faster = 3

// TestQuiet has a server with the work of a day: pgbench, VACUUM, indexes, dumps, base backups, checkpoints and restarts. The rules must
// find nothing.
func TestQuiet(t *testing.T) {
	minutes, _ := strconv.Atoi(os.Getenv("PGSB_TEST_QUIET"))
	switch {
	case minutes > 0:
	case pgtest.Full():
		minutes = 3
	default:
		t.Skip("takes minutes: PGSB_TEST_QUIET is how many")
	}
	bins := pgtest.BinDirs(t)
	i := slices.IndexFunc(bins, func(bin string) bool {
		_, err := os.Stat(filepath.Join(bin, "pgbench"))
		return err == nil
	})
	if i < 0 {
		t.Skip("no server with pgbench in PGSB_TEST_BINDIRS")
	}
	s := pgtest.Start(t, bins[i], pgtest.Options{Conf: []string{"autovacuum_naptime = 2s", "max_wal_size = 64MB", "checkpoint_timeout = 30s"}})
	c := rules.Default()
	for i := range c.Rules {
		if r := &c.Rules[i]; r.Name != rules.LWLockWait {
			r.After /= faster
		}
	}
	c.Rule(rules.Starved).Off, c.Budget, c.Cooldown = true, 1<<30, time.Second
	e := rules.New(c)
	var mu sync.Mutex
	looks, late, found, last := 0, 0, []string{}, time.Time{}
	r := New(Options{
		Store: store.Options{Dir: filepath.Join(t.TempDir(), "state"), MinFree: 1}, DataDir: s.DataDir,
		Server:    func() (cluster.Cluster, error) { return cluster.ByDataDir(s.DataDir) },
		TakeStack: takerOf(t, s), Next: e.Next,
		Watch: func(l *rules.Look) {
			mu.Lock()
			defer mu.Unlock()
			looks++
			if !last.IsZero() && l.Time.Sub(last) > 2*time.Second {
				late++
			}
			last = l.Time
			for _, f := range e.Look(l).New {
				found = append(found, fmt.Sprintf("%s: %s (%s)", f.Rule, f.Summary, f.Cause))
			}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	run := func(program string, arguments ...string) {
		t.Helper()
		command := s.AsServerUser(exec.Command(filepath.Join(s.BinDir, program), arguments...))
		command.Env = append(os.Environ(), "PGHOST="+s.SocketDir, fmt.Sprint("PGPORT=", s.Port), "PGUSER="+s.User, "PGDATABASE=postgres")
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%s %q: %v\n%s", program, arguments, err, out)
		}
	}
	run("pgbench", "-i", "-q", "-s", "10")
	days := 0
	for begin := time.Now(); time.Since(begin) < time.Duration(minutes)*time.Minute && !t.Failed(); days++ {
		copied := filepath.Join(filepath.Dir(s.DataDir), fmt.Sprint("copy", days))
		var wg sync.WaitGroup
		for _, command := range [][]string{
			{"pgbench", "-n", "-c", "4", "-T", "20"}, {"pgbench", "-n", "-S", "-c", "4", "-T", "20"}, {"pg_dump", "-f", "/dev/null"},
			{"pg_basebackup", "-D", copied, "-c", "fast"},
			{"psql", "-q", "-c", "VACUUM ANALYZE", "-c", "CHECKPOINT", "-c", "CREATE INDEX CONCURRENTLY x ON pgbench_accounts (abalance)", "-c", "DROP INDEX x",
				"-c", "SELECT count(*) FROM pgbench_accounts a, pgbench_accounts b WHERE a.aid = b.bid"},
		} {
			wg.Go(func() { run(command[0], command[1:]...) })
		}
		wg.Wait()
		_ = os.RemoveAll(copied)
		s.Restart([]string{"fast", "immediate", "smart"}[days%3])
	}
	cancel()
	<-done
	t.Logf("%d rounds of work, %d looks, of which %d were late", days, looks, late)
	for _, f := range found {
		t.Error("an incident without a stall:", f)
	}
}
