package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestRemediesAreCommands runs the remedies of a server as a shell does, until there is nothing left to mend by SQL.
func TestRemediesAreCommands(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"wal_level = replica"}})
		s.Exec(t, "CREATE DATABASE shop")
		s.Exec(t, `CREATE DATABASE "a'b $x"`)
		c, err := cluster.ByDataDir(s.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		found := func(c cluster.Cluster, database, what string) finding {
			list := connection(t.Context(), c, Options{ConnString: "dbname='" + strings.ReplaceAll(database, "'", `\'`) + "' user=" + s.User, DataDir: c.DataDir, Foreign: true})
			i := slices.IndexFunc(list, func(f finding) bool { return f.what == what })
			if i < 0 {
				t.Fatalf("no finding %s in %+v", what, list)
			}
			return list[i]
		}
		run := func(f finding) {
			t.Helper()
			if out, err := exec.Command("sh", "-ec", f.hint).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v, %s", f.hint, err, out)
			}
		}
		const odd = "a'b $x"
		if f := found(c, odd, "extension"); f.mark != warn || !strings.Contains(f.text, odd) {
			t.Fatalf("%+v", f)
		} else if strings.HasPrefix(f.hint, "First install") {
			t.Skip("the extension is not installed in this server")
		} else {
			run(f)
		}
		for _, database := range []string{odd, "shop"} { // from another one, too
			if f := found(c, database, "extension"); f.mark != good || !strings.Contains(f.text, odd) {
				t.Errorf("from %s: %+v", database, f)
			}
		}
		if f := found(c, "shop", "queries"); f.mark != warn {
			t.Errorf("%+v", f)
		} else {
			run(f)
		}
		pgtest.Wait(t, "the setting", func() bool { return found(c, "shop", "queries").mark == good })

		standby := pgtest.StartReplica(t, s, pgtest.Options{})
		pgtest.Wait(t, "the standby", func() bool {
			conn := standby.Connect(t, s.User, "postgres")
			there := false
			err := conn.QueryRow(context.Background(), "SELECT count(*) = 2 FROM pg_database WHERE datname IN ('shop', $1)", odd).Scan(&there)
			return err == nil && there
		})
		s.Exec(t, `DROP DATABASE "a'b $x"`)
		b, err := cluster.ByDataDir(standby.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Wait(t, "the remedy of a standby", func() bool {
			f := found(b, "postgres", "extension")
			return f.mark == warn && strings.Contains(f.hint, "is a standby: run this on its primary")
		})
		s.Stop("immediate")
	})
}

// TestRemedyWithoutSlots: with all slots in use, the login is not the cause.
func TestRemedyWithoutSlots(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("connect: %w", &pgconn.PgError{Code: "53300"})
	got := connectionRemedy(cluster.Cluster{SocketDir: "/s", Port: 5433, DataDir: "/a b"}, Options{}, full)
	for _, want := range []string{"superuser_reserved_connections", "--fallback-connection", "-h /s -p 5433", "-D '/a b' --sort state", "pg_terminate_backend"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if got := connectionRemedy(cluster.Cluster{SocketDir: "/s"}, Options{}, errors.Join(cluster.ErrScarce)); !strings.Contains(got, "CONNECTION LIMIT") {
		t.Errorf("%q", got)
	}
}
