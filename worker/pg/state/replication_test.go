package state

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/locks"
)

// readers opens the readers of a server.
func readers(t *testing.T, s *pgtest.Server) (*Reader, *locks.Reader) {
	t.Helper()
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := locks.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return r, l
}

// value returns the text of a query's result.
func value(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var text string
	if err := conn.QueryRow(context.Background(), sql).Scan(&text); err != nil {
		t.Fatal(sql, err)
	}
	return text
}

// TestPositionsEqualSQL compares the positions of a primary and of its standby with the functions and the view that show them,
// and replay that is paused.
func TestPositionsEqualSQL(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		primary := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		standby := pgtest.StartReplica(t, primary, pgtest.Options{})
		conn, other := primary.Connect(t, primary.User, "postgres"), standby.Connect(t, standby.User, "postgres")
		r, l := readers(t, primary)
		sr, sl := readers(t, standby)
		pid := value(t, conn, "SELECT pg_backend_pid()::text")
		if _, err := conn.Exec(t.Context(), "CREATE TABLE t AS SELECT generate_series(1, 1000)"); err != nil {
			t.Fatal(err)
		}
		lsn := func(n uint64) string { return fmt.Sprintf("%X/%X", n>>32, uint32(n)) }
		got, want := "", ""
		pgtest.Wait(t, "the primary's positions", func() bool {
			p, err := r.Positions(l, func(int) bool { return false })
			if strings.Contains(standby.Log(), "could not load library") {
				t.Skip("the server and its library for standbys are of two minor versions")
			}
			if err != nil || len(p.Senders) != 1 {
				got = fmt.Sprint(p, err)
				return false
			}
			s := p.Senders[0]
			got = fmt.Sprintln(p.Recovery, lsn(p.End), s.PID, s.Logical, lsn(s.Sent), lsn(s.Write), lsn(s.Flush), lsn(s.Apply), s.Reply != 0)
			want = value(t, conn, `SELECT concat_ws(' ', 'false', pg_current_wal_flush_lsn(), pid, 'false', sent_lsn, write_lsn, flush_lsn,
				replay_lsn, 'true') FROM pg_stat_replication`) + "\n"
			return got == want
		})
		t.Log(got)
		activity, err := OpenActivity(r.Cluster())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Wait(t, "the positions for metrics", func() bool {
			p, _ := r.Positions(l, func(int) bool { return false })
			q, err := activity.Positions()
			return err == nil && reflect.DeepEqual(p, q) && q.SenderLag() == 0
		})
		pgtest.Wait(t, "the standby's positions", func() bool {
			p, err := sr.Positions(sl, func(int) bool { return false })
			got = fmt.Sprintln(p.Recovery, lsn(p.End), lsn(p.Replayed), p.Paused, len(p.Senders), err)
			want = value(t, other, "SELECT concat_ws(' ', 'true', pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), 'false', 0, '<nil>')") + "\n"
			return got == want
		})
		value(t, other, "SELECT pg_wal_replay_pause()::text")
		pgtest.Wait(t, "replay that is paused", func() bool {
			p, err := sr.Positions(sl, func(int) bool { return false })
			return err == nil && p.Paused == (value(t, other, "SELECT pg_get_wal_replay_pause_state()") == "paused") && p.Paused
		})
		n, err := strconv.Atoi(strings.TrimSpace(pid))
		if err != nil || r.CheckpointWork(n) == 0 || r.CheckpointWork(1) != 0 {
			t.Errorf("%v; the work of a process of the server is %d, of another one %d", err, r.CheckpointWork(n), r.CheckpointWork(1))
		}
	})
}
