package locks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// session is a client whose statements may block.
type session struct {
	conn     *pgx.Conn
	pid      int
	commands chan string
	done     chan error
	busy     bool
	failed   bool
}

// load is a server with sessions that take random locks.
type load struct {
	server   *pgtest.Server
	control  *pgx.Conn
	reader   *Reader
	random   *rand.Rand
	sessions []*session
	prepared int
}

func startLoad(t *testing.T, bin string, sessions int) *load {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("PGSB_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("seed %d", seed)
	s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
		"autovacuum = off", "deadlock_timeout = '10min'", "max_prepared_transactions = 5", "max_connections = 60",
		"max_parallel_workers = 8", "max_worker_processes = 8",
	}})
	s.Exec(t, `CREATE SCHEMA s; CREATE TABLE a (n int PRIMARY KEY, v int); CREATE TABLE b (n int PRIMARY KEY, v int);
		CREATE TABLE c (n int PRIMARY KEY, v int); INSERT INTO a SELECT g, 0 FROM generate_series(1, 4) g;
		INSERT INTO b SELECT g, 0 FROM generate_series(1, 4) g; CREATE TABLE big AS SELECT generate_series(1, 2000) n;
		ANALYZE; CREATE FUNCTION f(int) RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE COST 10000 AS
		'DECLARE r bigint; BEGIN IF $1 % 500 = 1 THEN EXECUTE ''SELECT count(*) FROM c'' INTO r; END IF; RETURN r; END';`)
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	l := &load{server: s, control: s.Connect(t, s.User, "postgres"), reader: r, random: rand.New(rand.NewPCG(seed, 1))}
	for range sessions {
		conn := s.Connect(t, s.User, "postgres")
		n := &session{conn: conn, pid: int(conn.PgConn().PID()), commands: make(chan string), done: make(chan error, 1)}
		go func() {
			for sql := range n.commands {
				_, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
				n.done <- err
			}
		}()
		t.Cleanup(func() { close(n.commands) })
		n.commands <- `SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0`
		<-n.done
		l.sessions = append(l.sessions, n)
	}
	return l
}

// statement returns a random statement.
func (l *load) statement() string {
	r := l.random
	table := string("abc"[r.IntN(3)])
	key := 1 + r.IntN(3)
	switch r.IntN(17) {
	case 0, 1, 2:
		modes := []string{
			"ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE",
			"EXCLUSIVE", "ACCESS EXCLUSIVE",
		}
		return fmt.Sprintf("BEGIN; LOCK TABLE %s IN %s MODE", table, modes[r.IntN(len(modes))])
	case 3, 4:
		return fmt.Sprintf("BEGIN; UPDATE %s SET v = v + 1 WHERE n = %d", table, key)
	case 5:
		strength := []string{"UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"}
		return fmt.Sprintf("BEGIN; SELECT * FROM %s WHERE n = %d FOR %s", table, key, strength[r.IntN(4)])
	case 6:
		return fmt.Sprintf("BEGIN; INSERT INTO %s VALUES (%d, 0)", table, 10+r.IntN(3))
	case 7:
		return fmt.Sprintf("BEGIN; SELECT pg_advisory_xact_lock(%d)", key)
	case 8:
		return fmt.Sprintf("BEGIN; SELECT pg_advisory_xact_lock_shared(%d)", key)
	case 9:
		return fmt.Sprintf("SELECT pg_advisory_lock(%d, %d)", key, -key)
	case 10:
		return fmt.Sprintf("SELECT pg_advisory_lock_shared(%d, %d)", key, -key)
	case 11:
		return "BEGIN; SELECT sum(f(n)) FROM big"
	case 12:
		if l.prepared < 4 {
			l.prepared++
			return fmt.Sprintf("PREPARE TRANSACTION 'prepared %d'", l.prepared)
		}
		return "ROLLBACK; SELECT pg_advisory_unlock_all()"
	}
	if r.IntN(2) == 0 {
		return []string{
			"CREATE INDEX CONCURRENTLY ON " + table + " (v)", "BEGIN; DROP SCHEMA s", "BEGIN; CREATE TABLE s.t ()",
			"VACUUM " + table, "BEGIN; ALTER TABLE " + table + " ADD COLUMN x int; ROLLBACK",
		}[r.IntN(5)]
	}
	return []string{"COMMIT", "ROLLBACK; SELECT pg_advisory_unlock_all()"}[r.IntN(2)]
}

// settle collects the ends of statements, and waits until no process of the sessions runs.
func (l *load) settle(t *testing.T) {
	t.Helper()
	pgtest.Wait(t, "all processes at rest", func() bool {
		for _, s := range l.sessions {
			if s.busy {
				select {
				case err := <-s.done:
					s.busy, s.failed = false, err != nil
				default:
				}
			}
		}
		var running int
		var waiting []int
		err := l.control.QueryRow(context.Background(), `SELECT count(*) FILTER (WHERE state IS NULL OR NOT waits),
			coalesce(array_agg(pid) FILTER (WHERE waits), '{}') FROM (SELECT pid, state, state = 'active'
				AND (wait_event_type = 'Lock' OR wait_event = 'ExecuteGather') IS TRUE AS waits
			FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type IN ('client backend', 'parallel worker')
				AND (state = 'active' OR state IS NULL)) a`).Scan(&running, &waiting)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range l.sessions {
			if s.busy && !slices.Contains(waiting, s.pid) {
				return false
			}
		}
		return running == 0
	})
}

// truth returns the result of pg_blocking_pids for each process, with each blocker once.
func (l *load) truth(t *testing.T) map[int][]int {
	t.Helper()
	rows, err := l.control.Query(context.Background(), `SELECT pid, pg_blocking_pids(pid) FROM pg_stat_activity`)
	if err != nil {
		t.Fatal(err)
	}
	truth := make(map[int][]int)
	for rows.Next() {
		var pid int
		var blockers []int
		if err := rows.Scan(&pid, &blockers); err != nil {
			t.Fatal(err)
		}
		slices.Sort(blockers)
		truth[pid] = slices.Compact(blockers)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return truth
}

// TestEqualToServer compares the blockers with pg_blocking_pids while all sessions are at rest.
func TestEqualToServer(t *testing.T) {
	moments := 30
	if pgtest.Full() {
		moments = 2000 // of each server: 10,000 with five versions
	}
	if n, err := strconv.Atoi(os.Getenv("PGSB_TEST_MOMENTS")); err == nil {
		moments = n
	}
	pgtest.Each(t, func(t *testing.T, bin string) {
		l := startLoad(t, bin, 16)
		types, edges, waits, groups, prepared, named, restless := map[string]int{}, 0, 0, 0, 0, 0, 0
		modes := map[Mode]int{}
		for range moments {
			l.step(t)
			m, moves := l.compare(t)
			restless += moves
			for _, w := range m.Waits {
				if w.Tag == nil {
					continue
				}
				waits, edges = waits+1, edges+len(w.Blockers)
				types[w.Tag.Type]++
				modes[w.Mode]++
				if w.Since.IsZero() || time.Since(w.Since) < 0 || time.Since(w.Since) > time.Hour {
					t.Errorf("wait since %v", w.Since)
				}
				if w.Leader != 0 {
					groups++
				}
				for _, b := range w.Blockers {
					if b.PID == 0 {
						prepared++
						if strings.HasPrefix(b.GID, "prepared ") {
							named++
						}
					}
				}
			}
		}
		t.Logf("%d moments, %d repeated because a process moved, %d waits, %d edges, %d of groups, "+
			"%d by prepared transactions, types %v, modes %v", moments, restless, waits, edges, groups, prepared, types, modes)
		if waits == 0 || edges == 0 {
			t.Error("no process waited")
		}
		if prepared != named {
			t.Errorf("%d of %d prepared transactions have an identifier", named, prepared)
		}
		l.release(t)
	})
}

// compare compares a moment at which all processes are at rest with pg_blocking_pids. It returns the moment, and how often
// a process moved meanwhile.
func (l *load) compare(t *testing.T) (m *Moment, moves int) {
	t.Helper()
	pgtest.Wait(t, "a moment at rest", func() bool {
		l.settle(t)
		m = l.read(t)
		truth := l.truth(t)
		l.reader.MaxSoft = 2
		bounded := l.read(t)
		l.reader.MaxSoft = 0
		if again := l.read(t); summary(m) != summary(again) {
			moves++
			return false
		}
		if m.Changed != 0 || m.Refused != 0 {
			t.Fatalf("%d waits changed and %d were refused while all were at rest:\n%s", m.Changed, m.Refused, Text(m.Forest()))
		}
		for pid, want := range truth {
			if got := m.BlockingPIDs(pid); !slices.Equal(got, want) {
				t.Fatalf("blockers of %d: %v; pg_blocking_pids returns %v\n%s", pid, got, want, Text(m.Forest()))
			}
		}
		for i := range m.Waits { // all hard blockers, and the first two processes that are only ahead in the queue
			n := 0
			want := slices.DeleteFunc(slices.Clone(m.Waits[i].Blockers), func(b Blocker) bool {
				if !b.Hard && m.Waits[i].Kind == Lock {
					n++
				}
				return n > 2 && !b.Hard
			})
			if got := bounded.Waits[i].Blockers; !slices.Equal(got, want) {
				t.Fatalf("bounded blockers of %d: %v, want %v", m.Waits[i].PID, got, want)
			}
		}
		return true
	})
	return m, moves
}

func (l *load) read(t *testing.T) *Moment {
	t.Helper()
	m, err := l.reader.Read()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// summary is equal for two moments with the same waits and blockers.
func summary(m *Moment) string {
	var s strings.Builder
	for i := range m.Waits {
		w := &m.Waits[i]
		fmt.Fprintln(&s, w.PID, w.Leader, w.Kind, w.Since.UnixMicro(), w.Blockers, w.Reason)
	}
	return s.String() + fmt.Sprint(m.groups)
}

// TestRunning reads while all sessions take and release locks without a pause.
func TestRunning(t *testing.T) {
	reads, most := 300, 0.01
	if pgtest.Full() {
		reads = 5000
	}
	pgtest.One(t, func(t *testing.T, bin string) {
		l := startLoad(t, bin, 12)
		l.exec(t, "ALTER SYSTEM SET deadlock_timeout = '10ms'")
		l.exec(t, "SELECT pg_reload_conf()")
		ctx, stop := context.WithCancel(context.Background())
		var group sync.WaitGroup
		end := sync.OnceFunc(func() {
			stop()
			l.release(t)
			group.Wait()
		})
		defer end() // also when the test fails: the goroutines use sessions that its cleanup closes
		for i, s := range l.sessions {
			random := rand.New(rand.NewPCG(uint64(i), l.random.Uint64()))
			own := &load{random: random, prepared: 4}
			group.Go(func() {
				for ctx.Err() == nil {
					s.commands <- own.statement()
					<-s.done
					if random.IntN(2) == 0 {
						s.commands <- "ROLLBACK; SELECT pg_advisory_unlock_all()"
						<-s.done
					}
				}
			})
		}
		waits, changed, refused, calls := 0, 0, 0, 0
		var slowest time.Duration
		for range reads {
			began := time.Now()
			m := l.read(t)
			slowest = max(slowest, time.Since(began))
			for i := range m.Waits {
				if m.Waits[i].Kind == Lock {
					waits++
				}
			}
			changed, refused, calls = changed+m.Changed, refused+m.Refused, calls+m.Reads
			_, _ = l.control.Exec(context.Background(), "SELECT pg_sleep(0.002)")
		}
		end()
		t.Logf("%d reads, %d waits, %d changed, %d refused, %.1f calls a read, slowest %v",
			reads, waits, changed, refused, float64(calls)/float64(reads), slowest)
		if waits < reads/10 || float64(changed+refused) > most*float64(waits) {
			t.Errorf("%d of %d waits changed while they were read, %d were refused", changed, waits, refused)
		}
	})
}

// step lets sessions continue: cancels some, and gives others a statement.
func (l *load) step(t *testing.T) {
	t.Helper()
	var cancel []string
	for _, s := range l.sessions {
		if s.busy {
			if l.random.IntN(8) == 0 {
				cancel = append(cancel, strconv.Itoa(s.pid))
			}
			continue
		}
		if l.random.IntN(3) > 0 {
			sql := l.statement()
			if s.failed {
				sql = "ROLLBACK"
			}
			s.busy = true
			s.commands <- sql
		}
	}
	if cancel != nil {
		l.exec(t, "SELECT pg_cancel_backend(p) FROM unnest('{"+strings.Join(cancel, ",")+"}'::int[]) p")
	}
	if l.prepared > 0 && l.random.IntN(12) == 0 {
		l.finishPrepared(t)
	}
}

func (l *load) finishPrepared(t *testing.T) {
	t.Helper()
	var gids []string
	if err := l.control.QueryRow(context.Background(),
		"SELECT coalesce(array_agg(gid), '{}') FROM pg_prepared_xacts").Scan(&gids); err != nil {
		t.Fatal(err)
	}
	for _, gid := range gids {
		l.exec(t, "ROLLBACK PREPARED '"+gid+"'")
	}
	l.prepared = 0
}

// release ends all waits.
func (l *load) release(t *testing.T) {
	t.Helper()
	l.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
}

func (l *load) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := l.control.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}
