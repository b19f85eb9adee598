package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// The real-time signals of testdata/preload.c. SIGRTMIN is 34: glibc keeps two for itself.
const (
	signalNamed      = syscall.Signal(35)
	signalInKernel   = syscall.Signal(36)
	signalUndumpable = syscall.Signal(37)
)

const (
	odd      = "naïve_日本_функция"
	oddASCII = `na\u00efve_\u65e5\u672c_\u0444\u0443\u043d\u043a\u0446\u0438\u044f`
)

// needPreload skips a test where testdata/preload.c could not be compiled.
func needPreload(t *testing.T) {
	t.Helper()
	if programs.preload == "" {
		t.Skip("no C compiler to build testdata/preload.c with")
	}
}

// encodings checks databases of several encodings, each with the extension, and a function with a non-ASCII name.
func encodings(t *testing.T, s *site) {
	needPreload(t)
	target := s.idle(t, s.User)
	boss := s.connect(t, s.User, "postgres")
	for encoding, want := range map[string]string{
		"UTF8": odd, "LATIN1": oddASCII, "SQL_ASCII": oddASCII, "EUC_JP": oddASCII,
	} {
		t.Run(encoding, func(t *testing.T) {
			name := "enc_" + strings.ToLower(encoding)
			boss.run(t, "CREATE DATABASE "+name+` TEMPLATE template0 LC_COLLATE "C" LC_CTYPE "C" ENCODING `+encoding)
			c := s.connect(t, s.User, name)
			c.run(t, "CREATE EXTENSION pg_stat_backtrace")
			var got string
			inFunction := func() bool { return strings.Contains(boss.text(t, ask1(target)), odd) }
			looks := 0
			pgtest.Wait(t, "a stack with the function", func() bool {
				// Again each time: CREATE DATABASE signals every process, and each signal ends the function.
				if looks++; looks%100 == 1 {
					signal(t, target, signalNamed)
				}
				if !inFunction() {
					return false
				}
				got = c.text(t, ask1(target))
				return inFunction()
			})
			stack(t, encoding, got)
			if !strings.Contains(got, " in "+want+"+0x") {
				t.Errorf("no %s in\n%s", want, got)
			}
			if got := c.text(t, fmt.Sprintf("SELECT pg_log_backtrace(%d)::text", target)); got != "true" {
				t.Error(got)
			}
		})
	}
	signal(t, target, syscall.SIGUSR1) // any: the function returns
	t.Run("names that need quoting", func(t *testing.T) { s.quoted(t, boss) })
	t.Run("a name that is no UTF-8", func(t *testing.T) {
		c := s.connect(t, s.User, "enc_sql_ascii")
		c.run(t, "SET client_encoding = sql_ascii; CREATE ROLE \"b\xe9ta\" SUPERUSER; SET ROLE \"b\xe9ta\"")
		stack(t, "as it", c.text(t, ask1(target)))
		c.run(t, "RESET ROLE; DROP ROLE \"b\xe9ta\"")
	})
}

// quoted checks role, database and schema with very unusual names.
func (s *site) quoted(t *testing.T, boss *session) {
	const role, database = `Ünder "cover" it's \1`, `Data "base"`
	boss.run(t, `CREATE ROLE "Ünder ""cover"" it's \1" LOGIN`)
	boss.run(t, `CREATE DATABASE "Data ""base"""`)
	config := s.connect(t, s.User, "postgres").Config().Copy()
	config.User, config.Database = s.User, database
	c := s.reconnect(t, config)
	c.run(t, `CREATE SCHEMA "Odd schema, größer"; CREATE EXTENSION pg_stat_backtrace SCHEMA "Odd schema, größer";
		GRANT USAGE ON SCHEMA "Odd schema, größer" TO "Ünder ""cover"" it's \1";
		GRANT EXECUTE ON FUNCTION "Odd schema, größer".pg_get_backtrace TO "Ünder ""cover"" it's \1"`)
	config.User = role
	guest, target := s.reconnect(t, config), s.reconnect(t, config)
	stack(t, "odd names", guest.text(t, fmt.Sprintf(`SELECT "Odd schema, größer".pg_get_backtrace(%d)`, target.pid())))
	guest.fails(t, "denied function", fmt.Sprintf(`SELECT "Odd schema, größer".pg_log_backtrace(%d)`, target.pid()))
	for _, name := range []string{"123", "pg-backtrace", "public_", "none_", "current user"} {
		boss.run(t, fmt.Sprintf(`CREATE ROLE %q LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO %q`, name, name))
		config := s.connect(t, s.User, "postgres").Config().Copy()
		config.User = name
		guest, target := s.reconnect(t, config), s.reconnect(t, config)
		stack(t, name, guest.text(t, ask1(target.pid())))
	}
}

// standby checks a hot standby with its own worker. The TAP test t/010 checks streaming.
func standby(t *testing.T, primary *site) {
	s := start(t, primary.BinDir, pgtest.Options{Standby: true, Prepare: func(dsn string) {
		c, err := pgxConnect(t, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(t.Context()) }()
		if _, err := c.Exec(t.Context(), `CREATE EXTENSION pg_stat_backtrace; CREATE ROLE plain LOGIN;
			GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain`); err != nil {
			t.Fatal(err)
		}
	}})
	s.record = primary.record
	boss, plain := s.connect(t, s.User, "postgres"), s.connect(t, "plain", "postgres")
	boss.fails(t, "no worker, for superusers", ask1(1))
	plain.fails(t, "no worker", ask1(1))
	s.work(t)
	target := s.idle(t, "plain")
	for _, before := range []string{
		"", "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN READ ONLY", "BEGIN; SAVEPOINT a",
	} {
		for _, c := range []*session{boss, plain} {
			c.run(t, before)
			stack(t, before, c.text(t, ask1(target)))
			c.run(t, "ROLLBACK")
		}
	}
	if got := boss.text(t, fmt.Sprintf("SELECT pg_log_backtrace(%d)::text", target)); got != "true" {
		t.Error(got)
	}
	startup := s.process(t, boss, "startup")
	for _, pause := range []bool{false, true} {
		if pause {
			boss.run(t, "SELECT pg_wal_replay_pause()")
		}
		if got := boss.text(t, ask1(startup)); !strings.Contains(got, " in StartupProcessMain+0x") {
			t.Errorf("paused %v: %s", pause, got)
		}
		plain.fails(t, "auxiliary process", ask1(startup))
	}
	if boss.text(t, "SELECT pg_is_in_recovery()::text") != "true" {
		t.Error("this was no standby")
	}
	boss.run(t, "SELECT pg_wal_replay_resume()")
	boss.run(t, "SELECT pg_promote()")
	stack(t, "promoted", plain.text(t, ask1(target)))
	// (The server is promoted before the process that promoted it ends.)
	pgtest.Wait(t, "the startup process has ended", func() bool { return syscall.Kill(startup, 0) == syscall.ESRCH })
	boss.warns(t, "no process", "NULL", ask1(startup))
	boss.run(t, "CREATE TABLE written ()")
	stack(t, "in a transaction that writes", boss.text(t, ask1(target)))
}

// process finds the server's process of a kind.
func (s *site) process(t *testing.T, boss *session, kind string) int {
	t.Helper()
	var pid int
	pgtest.Wait(t, "a process: "+kind, func() bool {
		_, err := fmt.Sscan(boss.text(t, "SELECT min(pid)::text FROM pg_stat_activity WHERE backend_type = $1", kind), &pid)
		return err == nil
	})
	return pid
}

// strained checks a server on which other ways of asking would not work.
func strained(t *testing.T, shared *site) {
	s := start(t, shared.BinDir, pgtest.Options{Conf: []string{
		"wal_level = minimal", "max_wal_senders = 0", "max_connections = 8", "superuser_reserved_connections = 1",
	}, TCP: true})
	s.record = shared.record
	s.Exec(t, "CREATE ROLE plain LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain")
	s.work(t, "--log-level", "debug")
	boss, plain := s.connect(t, s.User, "postgres"), s.connect(t, "plain", "postgres")
	target, own := plain.pid(), s.idle(t, "plain")
	t.Run("wal_level minimal", func(t *testing.T) { stack(t, "minimal", boss.text(t, ask1(target))) })
	t.Run("no slot left", func(t *testing.T) {
		for {
			c, err := pgxConnect(t, s.DSN(s.User, "postgres"))
			if err != nil {
				if !strings.Contains(err.Error(), "53300") {
					t.Fatal(err)
				}
				break
			}
			t.Cleanup(func() { _ = c.Close(t.Context()) })
		}
		stack(t, "superuser", boss.text(t, ask1(target)))
		stack(t, "plain", plain.text(t, ask1(own)))
	})

	hung := start(t, shared.BinDir, pgtest.Options{Conf: []string{"wal_level = replica"}})
	hung.record = shared.record
	hung.Exec(t, `CREATE ROLE plain LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain;
		CREATE TABLE t (a int); GRANT INSERT ON t TO plain`)
	hung.RequireStandby(t, "lost", "on")
	hung.work(t)
	t.Run("a commit hangs on a lost synchronous standby", func(t *testing.T) {
		boss, committer := hung.connect(t, hung.User, "postgres"), hung.connect(t, "plain", "postgres")
		plain := hung.connect(t, "plain", "postgres")
		done := committer.later("INSERT INTO t VALUES (1) RETURNING 'done'")
		hung.waits(t, committer.pid(), "SyncRep")
		for _, c := range []*session{boss, plain} {
			got := c.text(t, ask1(committer.pid()))
			stack(t, "the committer", got)
			if !strings.Contains(got, " in SyncRepWaitForLSN+0x") {
				t.Error(got)
			}
		}
		boss.run(t, "ALTER SYSTEM RESET synchronous_standby_names")
		boss.run(t, "SELECT pg_reload_conf()")
		if got := <-done; got.text != "done" {
			t.Error(got)
		}
	})
}

// logging checks that a call creates one entry in the server log and sends nothing to the client, with any settings.
func logging(t *testing.T, s *site) {
	target := s.idle(t, s.User)
	c := s.connect(t, s.User, "postgres")
	banner := fmt.Sprintf("backtrace of PID %d", target)
	for _, setting := range []string{
		"client_min_messages = notice", "client_min_messages = log", "client_min_messages = debug5",
		"client_min_messages = error", "log_min_messages = error", "log_min_messages = log",
		"log_error_verbosity = verbose", "log_error_verbosity = terse", "lc_messages = 'C'",
	} {
		c.run(t, "RESET ALL; SET "+setting)
		c.told()
		before := len(s.Log())
		if got := c.text(t, fmt.Sprintf("SELECT pg_log_backtrace(%d)::text", target)); got != "true" {
			t.Errorf("%s: %s", setting, got)
		}
		c.text(t, "SELECT 'flush'")
		entries := s.Log()[before:]
		for text, times := range map[string]int{"LOG:  ": -1, banner: 1, "#0 ": 1, " in PostgresMain+0x": 1} {
			if n := strings.Count(entries, text); n != times && times >= 0 {
				t.Errorf("%s: %d times %q in the log: %s", setting, n, text, entries)
			}
		}
		if terse := strings.Contains(setting, "terse"); strings.Contains(entries, "DETAIL:  ") == terse &&
			!strings.Contains(entries, "DETAIL:  XX") {
			t.Errorf("%s: the frames are not where they should be: %s", setting, entries)
		}
		quiet := !strings.Contains(setting, "client_min_messages = log") && !strings.Contains(setting, "debug5")
		if n := strings.Count(entries, "PL/pgSQL function"); n > 2 || quiet && n > 1 {
			t.Errorf("%s: %d lines of context: %s", setting, n, entries)
		}
		for _, n := range c.told() {
			if strings.Contains(n.message+n.detail, "backtrace of PID") || strings.Contains(n.detail, "#0") {
				t.Errorf("%s: the client gets %v", setting, n)
			}
		}
	}
	c.run(t, "RESET ALL; SET log_min_messages = panic")
	c.warns(t, "not logged", "false", fmt.Sprintf("SELECT pg_log_backtrace(%d)::text", target))
	c.warns(t, "none logged", "false", fmt.Sprintf("SELECT pg_log_backtrace(%d, %d)::text", target, target))
	c.run(t, "RESET ALL; SET client_min_messages = error")
	for _, sql := range []string{"SELECT pg_log_backtrace(0)", "SELECT pg_get_backtrace(0)"} {
		c.told()
		_, _ = c.try(t.Context(), sql+"::text")
		if told := c.told(); len(told) != 0 {
			t.Errorf("%s: a client that wants errors only is told %v", sql, told)
		}
	}
}

func signal(t *testing.T, pid int, number syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, number); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
