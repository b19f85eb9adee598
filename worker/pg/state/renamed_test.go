package state

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestRenamed renames roles and a database while a reader is open. The names must be those of the catalogs, before any session
// logs in with the new name. A rename that has not been committed changes no name.
func TestRenamed(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		s.Exec(t, "CREATE ROLE oldname LOGIN; CREATE ROLE swapa LOGIN; CREATE ROLE swapb LOGIN; CREATE ROLE gone LOGIN")
		s.Exec(t, "CREATE DATABASE olddata")
		r := openReader(t, s)
		admin := s.Connect(t, s.User, "postgres")
		do := func(sql string) {
			t.Helper()
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		first, a, b := s.Connect(t, "oldname", "postgres"), s.Connect(t, "swapa", "postgres"), s.Connect(t, "swapb", "postgres")
		gone := s.Connect(t, "gone", "postgres")
		inside := s.Connect(t, s.User, "olddata")
		expectUser(t, r, first, "oldname")
		expectUser(t, r, a, "swapa")
		if got := sessionOf(t, r, inside).Database; got != "olddata" {
			t.Errorf("database %q", got)
		}
		_ = inside.Close(context.Background())

		do("BEGIN; ALTER ROLE oldname RENAME TO newname")
		expectUser(t, r, first, "oldname")
		do("ROLLBACK; BEGIN; ALTER ROLE oldname RENAME TO newname")
		do("COMMIT")
		expectUser(t, r, first, "newname")
		expectUser(t, openReader(t, s), first, "newname")
		do("ALTER ROLE swapa RENAME TO swapc")
		do("ALTER ROLE swapb RENAME TO swapa")
		do("ALTER ROLE swapc RENAME TO swapb")
		expectUser(t, r, a, "swapb")
		expectUser(t, r, b, "swapa")
		expectUser(t, r, s.Connect(t, "newname", "postgres"), "newname")
		expectUser(t, r, first, "newname")
		do("DROP ROLE gone")
		expectUser(t, r, gone, "")

		pgtest.Wait(t, "the end of the session in the database", func() bool {
			_, err := admin.Exec(t.Context(), "ALTER DATABASE olddata RENAME TO newdata")
			return err == nil
		})
		do("CREATE DATABASE olddata")
		for _, name := range []string{"newdata", "olddata"} {
			if got := sessionOf(t, r, s.Connect(t, s.User, name)).Database; got != name {
				t.Errorf("database %q, want %q", got, name)
			}
		}

		m, err := r.Read(Options{Texts: true, Logins: true})
		if err != nil {
			t.Fatal(err)
		}
		own := sessionOf(t, r, first).UserOID
		for _, name := range []string{"newname", "oldname"} {
			if got := r.RolesNamed(m, []string{name}); !slices.Equal(got, []uint32{own}) {
				t.Errorf("the role %s: %v, want %d", name, got, own)
			}
		}
		if got := r.RolesNamed(m, []string{"nobody"}); len(got) > 0 {
			t.Errorf("roles %v of an unknown name", got)
		}
	})
}

// TestRenamedWithoutCatalog expects the names of the newest logins if the catalogs cannot be read.
func TestRenamedWithoutCatalog(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{})
		s.Exec(t, "CREATE ROLE oldname LOGIN")
		r := openReader(t, s)
		r.noShared = true
		first := s.Connect(t, "oldname", "postgres")
		expectUser(t, r, first, "oldname")
		s.Exec(t, "ALTER ROLE oldname RENAME TO newname; CREATE ROLE oldname LOGIN")
		expectUser(t, r, first, "oldname") // nothing shows the rename
		second, other := s.Connect(t, "newname", "postgres"), s.Connect(t, "oldname", "postgres")
		for range 2 {
			expectUser(t, r, second, "newname")
			expectUser(t, r, first, "newname")
			expectUser(t, r, other, "oldname")
		}
		_ = second.Close(context.Background())
		expectUser(t, r, first, "newname") // it stays the newest login
		m, err := r.Read(Options{Texts: true, Logins: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.RolesNamed(m, []string{"oldname"}); len(got) != 2 {
			t.Errorf("roles %v of oldname", got)
		}
	})
}

func openReader(t *testing.T, s *pgtest.Server) *Reader {
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

func sessionOf(t *testing.T, r *Reader, conn *pgx.Conn) (s moment.Session) {
	t.Helper()
	pgtest.Wait(t, fmt.Sprint("session ", conn.PgConn().PID()), func() bool {
		m, err := r.Read(Options{Texts: true})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(m.Sessions, func(s moment.Session) bool { return s.ServerPID == int(conn.PgConn().PID()) })
		if i >= 0 {
			s = m.Sessions[i]
		}
		return i >= 0
	})
	return s
}

func expectUser(t *testing.T, r *Reader, conn *pgx.Conn, want string) {
	t.Helper()
	if got := sessionOf(t, r, conn).User; got != want {
		t.Errorf("user %q, want %q", got, want)
	}
}
