package stackoracle

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// conf makes a server start every kind of process that needs no second server.
var conf = []string{
	"logging_collector = on", "archive_mode = on", "archive_command = 'true'", "wal_level = logical",
	"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "autovacuum_naptime = 1s", "max_worker_processes = 8",
	"max_parallel_workers = 4", "jit_debugging_support = on",
}

// sessions are statements that run while the server is examined. A name with a slash before it is a replication
// connection. Each statement is endless, or waits for an event that does not come.
var sessions = []struct{ name, sql string }{
	{"idle", ""},
	{"lock wait", "SELECT oracle_outer(2)"},
	{"sleep", "SELECT pg_sleep(3600)"},
	{"sort", "DO $$ BEGIN LOOP PERFORM oracle_sort(); END LOOP; END $$"},
	{"error", `DO $$ BEGIN LOOP
		BEGIN PERFORM 1 / (random() * 0)::int; EXCEPTION WHEN OTHERS THEN NULL; END;
	END LOOP; END $$`},
	{"parallel", "DO $$ BEGIN LOOP PERFORM count(*) FROM oracle_big a JOIN oracle_big b USING (y); END LOOP; END $$"},
	{"trigger", "DO $$ BEGIN LOOP UPDATE oracle_small SET x = x + 1; ROLLBACK; END LOOP; END $$"},
	{"copy", "COPY (SELECT a.x, md5(b.x::text) FROM oracle_big a, oracle_big b, oracle_big c) TO '/dev/null'"},
	{"walsender", "/START_REPLICATION PHYSICAL 0/1000000"},
	{"walsender, idle", "/"},
}

const schema = `
CREATE TABLE oracle_small (x int PRIMARY KEY);
INSERT INTO oracle_small VALUES (1);
CREATE TABLE oracle_big AS SELECT x, x % 100 AS y FROM generate_series(1, 100000) x;
ALTER TABLE oracle_big SET (parallel_workers = 2);
ANALYZE oracle_big;
CREATE FUNCTION oracle_outer(n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE r record; BEGIN
	IF n > 0 THEN RETURN oracle_outer(n - 1) + 1; END IF;
	FOR r IN SELECT pg_advisory_lock(1) LOOP NULL; END LOOP;
	RETURN 0;
END $$;
CREATE FUNCTION oracle_sort() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN RETURN (SELECT sum(length(t)) FROM (SELECT x::text AS t FROM oracle_big ORDER BY md5(x::text)) s); END $$;
CREATE FUNCTION oracle_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN EXECUTE format('SELECT %s', NEW.x % 10); RETURN NEW; END $$;
CREATE TRIGGER t BEFORE UPDATE ON oracle_small FOR EACH ROW EXECUTE FUNCTION oracle_trigger()`

// TestPostgres stops every process of a server, all at the same time, and compares their stacks. Then it stops the busy
// ones at more moments.
func TestPostgres(t *testing.T) {
	tellTally(t)
	pgtest.One(t, func(t *testing.T, binDir string) {
		if testing.Short() {
			t.Skip("takes long: not with -short")
		}
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: conf, HBA: []string{
			"local all,replication all trust",
		}})
		server.Exec(t, schema)
		busy := occupy(t, server)
		kinds := compareServer(t, server)
		for _, kind := range []string{"postmaster", "backend", "walsender", "checkpointer"} {
			if !slices.Contains(kinds, kind) {
				t.Errorf("no %s among %s", kind, strings.Join(kinds, ", "))
			}
		}
		compareBusy(t, busy)
	})
}

// compareServer stops all processes of a server, compares their stacks, and lets them continue. It returns the kinds of
// the processes.
func compareServer(t *testing.T, server *pgtest.Server) (kinds []string) {
	t.Helper()
	postmaster := server.PostmasterPID()
	var subjects []subject
	seen := map[string]bool{}
	var thaws []func()
	defer func() {
		for _, thaw := range thaws {
			thaw()
		}
	}()
	stop := func(kind string, pid int) {
		thaw, ok := freeze(t, pid)
		thaws = append(thaws, thaw)
		if ok { // other processes have ended, as parallel workers and autovacuum workers do
			subjects = append(subjects, subject{name: kind, pid: pid})
			seen[kind] = true
		}
	}
	stop("postmaster", postmaster)
	for _, pid := range transientFirst(children(postmaster)) {
		stop(kindOf(pid), pid)
	}
	kinds = sortedKeys(seen)
	t.Logf("%d processes, kinds: %s", len(subjects), strings.Join(kinds, ", "))
	compare(t, subjects...)
	return kinds
}

// compareBusy stops backends at arbitrary moments, while only one of them runs.
func compareBusy(t *testing.T, busy []int) {
	t.Helper()
	thaws := map[int]func(){}
	for _, pid := range busy {
		thaw, ok := freeze(t, pid)
		if !ok {
			t.Fatalf("backend %d has ended", pid)
		}
		t.Cleanup(thaw)
		thaws[pid] = thaw
	}
	for range randomStops(t) {
		for _, pid := range busy {
			runOn(t, pid, thaws[pid], busy...)
			if _, ok := freeze(t, pid); ok {
				compare(t, subject{name: "backend", pid: pid})
			}
		}
	}
}

// transientFirst puts short-lived processes first.
func transientFirst(pids []int) []int {
	rank := func(pid int) int {
		switch kindOf(pid) {
		case "parallel worker", "autovacuum worker", unknown:
			return 0
		default:
			return 1
		}
	}
	slices.SortStableFunc(pids, func(a, b int) int { return rank(a) - rank(b) })
	return pids
}

// TestPostgresStandby compares the processes of a server in recovery.
func TestPostgresStandby(t *testing.T) {
	tellTally(t)
	pgtest.One(t, func(t *testing.T, binDir string) {
		if testing.Short() {
			t.Skip("takes long: not with -short")
		}
		server := pgtest.Start(t, binDir, pgtest.Options{Standby: true, Conf: []string{
			"primary_conninfo = 'host=/nonexistent'",
		}})
		// A backend of the start may be ending. gdb has no names in the destructors of libraries that it runs then.
		pgtest.Wait(t, "the sessions of the start have ended", func() bool {
			return !slices.ContainsFunc(children(server.PostmasterPID()), func(pid int) bool { return kindOf(pid) == "backend" })
		})
		if kinds := compareServer(t, server); !slices.Contains(kinds, "startup") {
			t.Errorf("no startup process among %s", strings.Join(kinds, ", "))
		}
	})
}

// occupy starts the sessions and returns the process ids of the sessions that are always on the CPU.
func occupy(t *testing.T, server *pgtest.Server) (busy []int) {
	t.Helper()
	holder := server.Connect(t, server.User, "postgres")
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	started := map[uint32]bool{}
	for _, s := range sessions {
		statement, replication := strings.CutPrefix(s.sql, "/")
		database := "postgres"
		if replication {
			database += " replication=database" // it is the end of a connection string
		}
		conn := server.Connect(t, server.User, database)
		pid := conn.PgConn().PID()
		if statement == "" {
			continue
		}
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		t.Cleanup(func() { cancel(); <-done })
		go func() {
			defer close(done)
			_ = conn.PgConn().Exec(ctx, statement).Close() // ends by cancel only
		}()
		started[pid] = !replication
		if strings.Contains(statement, "LOOP") || strings.HasPrefix(statement, "COPY") {
			busy = append(busy, int(pid))
		}
	}
	watch := server.Connect(t, server.User, "postgres")
	for pid, sql := range started {
		if !sql {
			continue
		}
		wait(t, fmt.Sprintf("backend %d at work", pid), func() bool {
			var active bool
			err := watch.QueryRow(t.Context(), `SELECT state = 'active' AND (wait_event IS NULL OR wait_event <> 'ClientRead')
				FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&active)
			return err == nil && active
		})
	}
	wait(t, "parallel workers", func() bool {
		return slices.ContainsFunc(children(server.PostmasterPID()), func(pid int) bool {
			return strings.Contains(title(pid), "parallel worker")
		})
	})
	return busy
}

// unknown is the kind of a process without a title.
const unknown = "unknown"

var titlePattern = regexp.MustCompile(`^postgres: (?:[^:]*: )?(.*)`)

// kindOf returns the kind of a server process, by its title.
func kindOf(pid int) string {
	m := titlePattern.FindStringSubmatch(title(pid))
	if m == nil {
		return unknown
	}
	for _, kind := range []string{
		"checkpointer", "background writer", "walwriter", "autovacuum launcher", "autovacuum worker", "archiver",
		"logical replication launcher", "logger", "stats collector", "startup", "walsender", "walreceiver", "io worker",
		"parallel worker", "slotsync worker",
	} {
		if strings.Contains(m[1], kind) {
			return kind
		}
	}
	return "backend"
}

func sortedKeys[V any](set map[string]V) []string { return slices.Sorted(maps.Keys(set)) }
