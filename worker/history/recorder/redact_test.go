package recorder

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestRenamedRoleRedacted renames roles to a redacted name and away from it. No text of these roles may be recorded after the first
// of the renames, by recorders that share their redacted roles.
func TestRenamedRoleRedacted(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{})
		s.Exec(t, "CREATE ROLE plain1 LOGIN; CREATE ROLE plain2 LOGIN; CREATE ROLE secret LOGIN; CREATE ROLE early LOGIN")
		admin := s.Connect(t, s.User, "postgres")
		early := s.Connect(t, "early", "postgres")
		do := func(conn *pgx.Conn, sql string) {
			t.Helper()
			if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		do(admin, "ALTER ROLE early RENAME TO early2") // before the recorder starts
		shared := new(RedactedRoles)
		open := func() *Recorder {
			return New(Options{
				DataDir: s.DataDir, Server: func() (cluster.Cluster, error) { return cluster.ByDataDir(s.DataDir) }, Texts: TextsAll,
				Redact: []string{"hidden", "secret", "early"}, Redacted: shared,
			})
		}
		r := open()
		expect := func(r *Recorder, conn *pgx.Conn, user, query string) {
			t.Helper()
			what := fmt.Sprintf("%s %q", user, query)
			got := ""
			pgtest.Wait(t, what, func() bool {
				saw, err := r.read(time.Now())
				if err != nil {
					t.Fatal(err)
				}
				for i := range saw.rows {
					if row := &saw.rows[i]; row.PID == int32(conn.PgConn().PID()) {
						got = fmt.Sprintf("%s %q", row.User, row.Query)
						return true
					}
				}
				return false
			})
			if got != what {
				t.Errorf("recorded %s, want %s", got, what)
			}
		}
		one, two, secret := s.Connect(t, "plain1", "postgres"), s.Connect(t, "plain2", "postgres"), s.Connect(t, "secret", "postgres")
		for _, conn := range []*pgx.Conn{one, two, secret, early} {
			do(conn, "BEGIN; SELECT 4711")
		}
		expect(r, one, "plain1", "BEGIN; SELECT 4711")
		expect(r, two, "plain2", "BEGIN; SELECT 4711")
		expect(r, secret, "secret", "")
		expect(r, early, "early2", "") // its session logged in with the name

		do(admin, "ALTER ROLE plain1 RENAME TO hidden")
		expect(r, one, "hidden", "")
		r.remember(must(r.read(time.Now())).rows)
		do(admin, "ALTER ROLE hidden RENAME TO plain1")
		do(admin, "ALTER ROLE secret RENAME TO plain3")
		expect(r, one, "plain1", "")
		expect(r, secret, "plain3", "")
		_ = secret.Close(context.Background())
		again := s.Connect(t, "plain3", "postgres")
		do(again, "BEGIN; SELECT 4712")
		expect(r, again, "plain3", "")
		expect(open(), again, "plain3", "") // as in an incident of the same worker
		expect(r, two, "plain2", "BEGIN; SELECT 4711")

		r.remember(must(r.read(time.Now())).rows)
		do(admin, "ALTER ROLE plain2 RENAME TO hidden")
		_ = two.Close(context.Background())
		pgtest.Wait(t, "the row for its end", func() bool {
			for _, row := range must(r.read(time.Now())).rows {
				if row.PID != int32(two.PgConn().PID()) {
					continue
				}
				if row.Query != "" {
					t.Errorf("recorded %q, after the rename to a redacted name", row.Query)
				}
				return row.Ended
			}
			return false
		})
	})
}

func must(s seen, err error) seen {
	if err != nil {
		panic(err)
	}
	return s
}
