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
		found := func(c cluster.Cluster, database, what string) (f finding) {
			pgtest.Wait(t, "the finding "+what, func() bool { // a busy machine may be too slow for the time limit
				list := connection(t.Context(), c, Options{ConnString: "dbname='" + strings.ReplaceAll(database, "'", `\'`) + "' user=" + s.User, DataDir: c.DataDir, Foreign: true})
				i := slices.IndexFunc(list, func(f finding) bool { return f.what == what })
				if text := fmt.Sprint(list); i < 0 && !strings.Contains(text, "did not answer") && !strings.Contains(text, "deadline exceeded") {
					t.Fatalf("no finding %s in %s", what, text)
				}
				if i >= 0 {
					f = list[i]
				}
				return i >= 0 && !strings.Contains(f.text, "a query of the checks failed: ")
			})
			return f
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
		if f := found(c, "shop", "roles"); f.mark != absent || !strings.Contains(f.text, "only superusers may call") {
			t.Errorf("%+v", f)
		} else {
			run(f)
		}
		if f := found(c, odd, "roles"); f.mark != good || !strings.HasSuffix(f.text, ": pg_monitor") {
			t.Errorf("after GRANT: %+v", f)
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

// TestServerRemedy expects the command that has the right, or the servers to choose from.
func TestServerRemedy(t *testing.T) {
	t.Parallel()
	servers := func() []string { return []string{"/a", "/b c"} }
	for _, c := range []struct {
		err  error
		o    Options
		root bool
		want string
	}{
		{cluster.ErrWrongUser, Options{DataDir: "/b c"}, false, "or as root: sudo pg_stat_backtrace doctor -D '/b c'"},
		{cluster.ErrWrongUser, Options{ConnString: "host=/s port=1"}, false, "sudo pg_stat_backtrace doctor 'host=/s port=1'"},
		{cluster.ErrNoAccess, Options{}, true, "grant CAP_SYS_PTRACE"},
		{cluster.ErrNotDataDir, Options{Servers: servers}, true, "Name its data directory with -D, or a connection string that leads to it. These run here: -D /a, -D '/b c'"},
		{cluster.ErrNotRunning, Options{}, false, "Start the server"},
		{errors.New("dial"), Options{Servers: func() []string { return []string{"1", "2", "3", "4", "5", "6", "7"} }}, false, "-D 5 and 2 more"},
	} {
		if got := serverRemedy(fmt.Errorf("x: %w", c.err), c.o, c.root); !strings.Contains(got, c.want) {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// TestGrantOfAnyName expects no text in the command that a shell would run.
func TestGrantOfAnyName(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{"app_1": "FUNCTION app_1.pg_get_backtrace(int)", `"a$(id)"`: "FUNCTION pg_get_backtrace(int)"} {
		if f := grants(nil, schema, &place{}); f.mark != absent || !strings.Contains(f.hint, want) || strings.Contains(f.hint, "$(") {
			t.Errorf("%s: %+v", schema, f)
		}
	}
	if f := grants([]string{"a", "b", "c", "d", "e", "f", "g"}, "public", &place{}); f.mark != good || !strings.HasSuffix(f.text, "a, b, c, d, e and 2 others") {
		t.Errorf("%+v", f)
	}
}
