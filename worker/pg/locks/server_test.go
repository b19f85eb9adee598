package locks

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// open returns a reader of a server.
func open(t testing.TB, s *pgtest.Server) *Reader {
	t.Helper()
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// find waits until a process waits in the given way, with blockers or a reason.
func find(t *testing.T, r *Reader, kind Kind, pid int) Wait {
	t.Helper()
	var found Wait
	pgtest.Wait(t, fmt.Sprintf("wait of process %d for a %s", pid, kind), func() bool {
		m, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range m.Waits {
			if w.Kind == kind && (pid == 0 || w.PID == pid) && !w.Changed {
				found = w
				return true
			}
		}
		return false
	})
	return found
}

// TestSafeSnapshot compares with pg_safe_snapshot_blocking_pids.
func TestSafeSnapshot(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"max_prepared_transactions = 2"}})
		s.Exec(t, "CREATE TABLE t (n int)")
		r := open(t, s)
		control, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		for i := range 3 {
			writer := s.Connect(t, s.User, "postgres")
			if _, err := writer.PgConn().Exec(context.Background(), fmt.Sprintf(
				"BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO t VALUES (%d)", i)).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		prepared := map[string]string{} // the transactions, by identifier
		for _, gid := range []string{"x", "y"} {
			for sql := range strings.SplitSeq("BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO t VALUES (9); PREPARE TRANSACTION '"+gid+"'", ";") {
				if _, err := control.Exec(context.Background(), sql); err != nil {
					t.Fatal(err)
				}
			}
			var xid string
			if err := control.QueryRow(context.Background(), "SELECT transaction::text FROM pg_prepared_xacts WHERE gid = $1", gid).Scan(&xid); err != nil {
				t.Fatal(err)
			}
			prepared[gid] = xid
		}
		go func() {
			_, _ = waiter.PgConn().Exec(context.Background(),
				"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE; SELECT count(*) FROM t").ReadAll()
		}()
		pid := int(waiter.PgConn().PID())
		w := find(t, r, SafeSnapshot, pid)
		var want, got []int
		if err := control.QueryRow(context.Background(), "SELECT pg_safe_snapshot_blocking_pids($1)", pid).Scan(&want); err != nil {
			t.Fatal(err)
		}
		for _, b := range w.Blockers {
			got = append(got, b.PID)
			if b.PID == 0 && prepared[b.GID] == fmt.Sprint(b.XID) {
				delete(prepared, b.GID)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if len(prepared) > 0 {
			t.Errorf("blockers %+v lack the prepared transactions %v", w.Blockers, prepared)
		}
		if len(want) != 5 || !slices.Equal(got, want) {
			t.Errorf("blockers %v (%s), the server says %v", got, w.Reason, want)
		}
		s.Stop("immediate")
	})
}

// commitWaits makes a commit wait until the standby has replayed it, and compares its blocker with the WAL sender.
func commitWaits(t *testing.T, primary *pgtest.Server) {
	t.Helper()
	control, session := primary.Connect(t, "postgres", "postgres"), primary.Connect(t, "postgres", "postgres")
	primary.RequireStandby(t, "standby", "remote_apply")
	var walSender int
	pgtest.Wait(t, "the standby", func() bool {
		return control.QueryRow(context.Background(),
			"SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'").Scan(&walSender) == nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = session.PgConn().Exec(context.Background(), "SET synchronous_commit = remote_apply; CREATE TABLE s ()").ReadAll()
	}()
	r, pid := open(t, primary), int(session.PgConn().PID())
	var w Wait
	pgtest.Wait(t, "a blocker", func() bool {
		w = find(t, r, SyncRep, pid)
		return w.Blockers != nil
	})
	if len(w.Blockers) != 1 || w.Blockers[0].PID != walSender || !w.Blockers[0].Hard {
		t.Errorf("commit: %+v; the WAL sender is %d", w, walSender)
	}
	for _, sql := range []string{"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"} {
		if _, err := control.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	<-done
}

// TestBufferPinCandidates has a VACUUM wait for the page of a cursor, beside transactions that have no lock on its table, or no lock at all.
func TestBufferPinCandidates(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off", "max_locks_per_transaction = 64"}})
		s.Exec(t, "CREATE TABLE pinned AS SELECT generate_series(1, 1000) n; CREATE TABLE other (n int)")
		r := open(t, s)
		begin := func(sql string) int {
			conn := s.Connect(t, s.User, "postgres")
			if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
			return int(conn.PgConn().PID())
		}
		cursor := begin("BEGIN; DECLARE c CURSOR FOR SELECT * FROM pinned; FETCH 1 FROM c")
		begin("BEGIN; DECLARE c CURSOR FOR SELECT * FROM other; FETCH 1 FROM c")
		begin("BEGIN; SELECT pg_current_xact_id()")
		begin("SELECT count(*) FROM pinned")
		s.Exec(t, "DELETE FROM pinned WHERE n < 100")
		vacuum := s.Connect(t, s.User, "postgres")
		go func() { _, _ = vacuum.PgConn().Exec(context.Background(), "VACUUM (FREEZE) pinned").ReadAll() }()
		pid := int(vacuum.PgConn().PID())
		w := find(t, r, BufferPin, pid)
		want := fmt.Sprintf("%s; %d may hold it: it has a lock on pinned", noPinHolders, cursor)
		if !slices.Equal(w.Candidates, []int{cursor}) || w.Reason != want {
			t.Errorf("%v %q, want %d and %q", w.Candidates, w.Reason, cursor, want)
		}
		locked := begin("BEGIN; LOCK TABLE pinned IN ROW SHARE MODE; " + strings.Repeat("SAVEPOINT a; ", 3))
		listed := begin("BEGIN; SELECT count(*) FROM pg_class, pg_attribute, pg_proc, pg_type, pg_operator, pg_index LIMIT 0; SELECT n FROM pinned LIMIT 1")
		w = find(t, r, BufferPin, pid)
		for _, other := range []int{cursor, locked, listed} {
			if !slices.Contains(w.Candidates, other) || len(w.Candidates) != 3 {
				t.Errorf("candidates %v, want %d, %d and %d", w.Candidates, cursor, locked, listed)
			}
		}
		s.Stop("immediate")
	})
}

// TestReplayBlocked has a reader of a standby block the replay of a DROP TABLE, and then of a VACUUM. Meanwhile a commit
// waits for the replay.
func TestReplayBlocked(t *testing.T) {
	each := pgtest.One
	if pgtest.Full() {
		each = pgtest.Each
	}
	each(t, func(t *testing.T, bin string) {
		primary := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off", "wal_level = replica"}})
		primary.Exec(t, "CREATE TABLE t AS SELECT 1 n; CREATE TABLE v AS SELECT generate_series(1, 1000) n")
		standby := standbyOf(t, primary)
		r := open(t, standby)
		reader := standby.Connect(t, "postgres", "postgres")
		pgtest.Wait(t, "the tables on the standby", func() bool {
			_, err := reader.Exec(context.Background(), "SELECT n FROM v")
			return err == nil
		})
		for _, c := range []struct {
			kind           Kind
			before, change string
		}{
			{Lock, "BEGIN; SELECT * FROM t", "DROP TABLE t"},
			{Conflict, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM v", "DELETE FROM v; VACUUM v"},
		} {
			if _, err := reader.PgConn().Exec(context.Background(), c.before).ReadAll(); err != nil {
				t.Fatal(err)
			}
			change := primary.Connect(t, "postgres", "postgres")
			for sql := range strings.SplitSeq(c.change, ";") {
				if _, err := change.Exec(context.Background(), sql); err != nil {
					t.Fatal(err)
				}
			}
			w := find(t, r, c.kind, 0)
			if len(w.Blockers) != 1 || w.Blockers[0].PID != int(reader.PgConn().PID()) {
				t.Errorf("%s: %+v; the reader is %d", c.change, w, reader.PgConn().PID())
			}
			if c.kind == Lock {
				commitWaits(t, primary)
			}
			if _, err := reader.Exec(context.Background(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// standbyOf starts a standby of a server, which replays only what does not conflict with its readers.
func standbyOf(t *testing.T, primary *pgtest.Server) *pgtest.Server {
	t.Helper()
	standby := pgtest.Start(t, primary.BinDir, pgtest.Options{Stopped: true, Conf: []string{
		"max_standby_streaming_delay = -1", "hot_standby_feedback = off", "deadlock_timeout = '10min'",
		"wal_retrieve_retry_interval = 100",
		"primary_conninfo = '" + primary.DSN("postgres", "postgres") + " application_name=standby'",
	}})
	primary.Stop("fast")
	for _, shell := range []string{
		`cd "$2" && find . -mindepth 1 -maxdepth 1 ! -name postgresql.conf -exec rm -r {} +`,
		`cd "$1" && find . -mindepth 1 -maxdepth 1 ! -name postgresql.conf -exec cp -a {} "$2" ";"`,
		`touch "$2/standby.signal"`,
	} {
		command := standby.AsServerUser(exec.Command("sh", "-ec", shell, "sh", primary.DataDir, standby.DataDir))
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	primary.Start()
	standby.Start()
	return standby
}

// TestSyncRepWithoutStandby has commits wait for a synchronous standby that is not connected. Each further waiting commit costs the
// same number of reads, however long the queue is.
func TestSyncRepWithoutStandby(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"max_connections = 60"}})
		s.Exec(t, "CREATE TABLE t (n int)")
		r := open(t, s)
		const few, many = 5, 40
		var pids []int
		var sessions []*pgx.Conn
		for range many {
			c := s.Connect(t, "postgres", "postgres")
			sessions, pids = append(sessions, c), append(pids, int(c.PgConn().PID()))
		}
		s.RequireStandby(t, "standby", "on")
		insert := func(sessions []*pgx.Conn) {
			for _, c := range sessions {
				go func() { _, _ = c.Exec(context.Background(), "INSERT INTO t VALUES (1)") }()
			}
		}
		reads := func(pids []int) (reads int) {
			for _, pid := range pids {
				if w := find(t, r, SyncRep, pid); w.Blockers != nil || w.Reason != "0 of 1 required synchronous standbys are connected" {
					t.Errorf("without a standby: %+v", w)
				}
			}
			m, err := r.Read()
			if err != nil {
				t.Fatal(err)
			}
			return m.Reads
		}
		insert(sessions[:few])
		first := reads(pids[:few])
		insert(sessions[few:])
		if second := reads(pids); second-first > 8*(many-few) {
			t.Errorf("%d reads for %d commits, %d for %d", first, few, second, many)
		}
	})
}

// TestRow: the wait for the transaction that has changed a row has the row, with the name of its relation.
func TestRow(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{})
		s.Exec(t, "CREATE TABLE stock (id int PRIMARY KEY, n int); INSERT INTO stock SELECT g, 0 FROM generate_series(1, 1000) g; "+
			"CREATE TABLE other (n int UNIQUE)")
		r := open(t, s)
		holder := s.Connect(t, s.User, "postgres")
		if _, err := holder.PgConn().Exec(context.Background(),
			"BEGIN; UPDATE stock SET n = 1 WHERE id = 777; INSERT INTO other VALUES (1)").ReadAll(); err != nil {
			t.Fatal(err)
		}
		var place string
		control := s.Connect(t, s.User, "postgres")
		if err := control.QueryRow(context.Background(), "SELECT ctid::text FROM stock WHERE id = 777").Scan(&place); err != nil {
			t.Fatal(err)
		}
		for sql, want := range map[string]string{
			"UPDATE stock SET n = 2 WHERE id = 777":         "tuple " + place + " of stock (",
			"SELECT * FROM stock WHERE id = 777 FOR UPDATE": "tuple " + place + " of stock (",
			"INSERT INTO other VALUES (1)":                  "", // it waits without a lock of a row
		} {
			waiter := s.Connect(t, s.User, "postgres")
			pid := int(waiter.PgConn().PID())
			done := make(chan error, 1)
			go func() {
				_, err := waiter.PgConn().Exec(context.Background(), sql).ReadAll()
				done <- err
			}()
			w := find(t, r, Lock, pid)
			if got := fmt.Sprint(w.Row); want == "" && w.Row != nil || !strings.HasPrefix(got, want) {
				t.Errorf("%s: row %s, want %q", sql, got, want)
			}
			if _, err := control.Exec(context.Background(), "SELECT pg_cancel_backend($1)", pid); err != nil {
				t.Fatal(err)
			}
			<-done
		}
	})
}
