package queue_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// take connects as role app when a session that has ended has given its slot back, which may be later than the end of its entry
// in pg_stat_activity.
func (s *site) take(t *testing.T, database string) (c *pgx.Conn) {
	t.Helper()
	pgtest.Wait(t, "a connection slot", func() (taken bool) {
		var err error
		if c, err = pgx.Connect(t.Context(), s.DSN("app", database)); err != nil && !strings.Contains(err.Error(), "53300") {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

const sessionsOfWorker = `SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_stat_backtrace%'`

// TestManyDatabases checks more databases than slots. Each database's requests must be served, and clients must find
// slots.
func TestManyDatabases(t *testing.T) {
	oneSite(t, pgtest.Options{Conf: []string{"max_connections = 20"}}, func(t *testing.T, s *site) {
		const databases = 20 // more than slots that are not reserved
		s.extend(t, "template1")
		boss := s.Connect(t, s.User, "postgres")
		name := func(i int) string { return fmt.Sprintf("t%d", i) }
		for i := range databases {
			run(t, boss, "CREATE DATABASE "+name(i))
		}
		run(t, boss, "CREATE ROLE app LOGIN")
		p := s.work(t)
		// A session stays in pg_stat_activity for some time after its end, so the worker's sockets are counted.
		sockets := func() (n int) {
			dir := fmt.Sprintf("/proc/%d/fd/", p.Process.Pid)
			files, _ := os.ReadDir(dir)
			for _, f := range files {
				if to, err := os.Readlink(dir + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
					n++
				}
			}
			return n
		}
		ids := map[int]int64{}
		most := 0
		for i := range databases {
			c := s.Connect(t, s.User, name(i))
			ids[i] = request(t, c, pid(boss))
			most = max(most, min(sockets(), value[int](t, boss, sessionsOfWorker)))
			_ = c.Close(t.Context())
		}
		for i := range databases {
			c := s.Connect(t, s.User, name(i))
			pgtest.Wait(t, "the request in "+name(i), func() bool {
				most = max(most, min(sockets(), value[int](t, boss, sessionsOfWorker)))
				return value[string](t, c, "SELECT state FROM backtrace.request WHERE id = $1", ids[i]) == "done"
			})
			_ = c.Close(t.Context())
		}
		if most > 2 || most == 0 {
			t.Errorf("the worker had %d sessions at a time", most)
		}
		var clients []*pgx.Conn // 17 slots are not reserved, 2 are the worker's, 1 is boss's
		for range 13 {
			clients = append(clients, s.take(t, "postgres"))
		}
		s.Connect(t, s.User, "postgres")
		t.Logf("%d clients beside %d sessions of the worker; %d bytes of log", len(clients)+2, most, len(p.text()))
	})
}

// TestFewSlots checks that the worker's session for queues leaves if slots are scarce, takes no reserved slot, and
// returns later.
func TestFewSlots(t *testing.T) {
	oneSite(t, pgtest.Options{Conf: []string{"max_connections = 20"}}, func(t *testing.T, s *site) {
		boss := s.Connect(t, s.User, "postgres")
		run(t, boss, "CREATE ROLE app LOGIN")
		p := s.work(t)
		var clients []*pgx.Conn
		for len(clients) < 15 { // of 17 that are not reserved: boss and the worker's main session have the others
			config, err := pgx.ParseConfig(s.DSN("app", "postgres"))
			if err != nil {
				t.Fatal(err)
			}
			if c, err := pgx.ConnectConfig(t.Context(), config); err == nil {
				clients = append(clients, c)
			} else if !strings.Contains(err.Error(), "53300") {
				t.Fatal(err)
			} else {
				time.Sleep(10 * time.Millisecond) // until the worker's session has left
			}
		}
		pgtest.Wait(t, "the session for queues leaves", func() bool { return value[int](t, boss, sessionsOfWorker) == 1 })
		pgtest.Wait(t, "the log says so", func() bool { return strings.Contains(p.text(), "few connection slots are left") })
		id := request(t, boss, pid(clients[0]))
		// A worker that starts now, as a superuser, takes no reserved slot for more than a moment.
		if err := p.end(stopSignal); err != nil {
			t.Fatal(err)
		}
		c := s.Connect(t, s.User, "postgres") // in the slot of the worker: none is left but the reserved ones
		p = s.launch(t)
		pgtest.Wait(t, "the worker leaves the reserved slots alone", func() bool {
			return strings.Contains(p.text(), "no connection slot to spare: all 17 slots that are not reserved are in use")
		})
		pgtest.Wait(t, "it has no session", func() bool { return value[int](t, boss, sessionsOfWorker) == 0 })
		_ = c.Close(t.Context())
		for _, c := range clients {
			_ = c.Close(t.Context())
		}
		if o := result(t, boss, id); o.State == "queued" {
			t.Errorf("%+v", o)
		}
	})
}

// TestConnectionLimits checks that the worker leaves the last slot of a database and of a role to other clients.
func TestConnectionLimits(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		boss := s.Connect(t, s.User, "postgres")
		run(t, boss, "CREATE ROLE app LOGIN")
		for _, name := range []string{"onlyone", "two"} {
			run(t, boss, "CREATE DATABASE "+name)
			s.extend(t, name)
		}
		run(t, boss, "ALTER DATABASE onlyone CONNECTION LIMIT 1")
		run(t, boss, "ALTER DATABASE two CONNECTION LIMIT 2")
		in := func(name string) int {
			return value[int](t, boss, sessionsOfWorker+" AND datname = $1", name)
		}
		p := s.work(t)
		pgtest.Wait(t, "the worker serves the database with two slots", func() bool { return in("two") == 1 })
		one := s.take(t, "two")
		// The worker has the second slot, and leaves it when both slots are taken.
		pgtest.Wait(t, "the worker leaves the last slot", func() bool { return in("two") == 0 })
		two := s.take(t, "two")
		_, _ = one.Close(t.Context()), two.Close(t.Context())
		pgtest.Wait(t, "the worker is back", func() bool { return in("two") == 1 })
		for range 30 {
			_ = s.take(t, "onlyone").Close(t.Context())
			pgtest.Wait(t, "the session has ended", func() bool {
				return value[int](t, boss, "SELECT count(*) FROM pg_stat_activity WHERE datname = 'onlyone'") == 0
			})
			time.Sleep(10 * time.Millisecond)
		}
		if !strings.Contains(p.text(), `\"onlyone\" has CONNECTION LIMIT 1`) || in("onlyone") != 0 {
			t.Error("the log does not say why a database is not served")
		}
	})
}

// TestRoleLimit checks the same for the main session.
func TestRoleLimit(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		boss := s.Connect(t, s.User, "postgres")
		run(t, boss, `CREATE ROLE app LOGIN CONNECTION LIMIT 2`)
		p := s.launch(t, workerEnv+"="+s.DSN("app", "postgres"))
		pgtest.Wait(t, "the worker connects", func() bool { return value[int](t, boss, sessionsOfWorker) == 1 })
		_ = s.take(t, "postgres").Close(t.Context())
		if err := p.end(stopSignal); err != nil {
			t.Fatal(err)
		}
		run(t, boss, `ALTER ROLE app CONNECTION LIMIT 1`)
		p = s.launch(t, workerEnv+"="+s.DSN("app", "postgres"))
		pgtest.Wait(t, "the worker leaves the role's slot", func() bool {
			return strings.Contains(p.text(), `the last of role \"app\" (CONNECTION LIMIT 1)`)
		})
		pgtest.Wait(t, "it has no session", func() bool { return value[int](t, boss, sessionsOfWorker) == 0 })
		_ = s.take(t, "postgres").Close(t.Context())
	})
}
