package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/moment"
)

// activity runs the command and returns its output.
func activity(t *testing.T, arguments ...string) string {
	t.Helper()
	return succeeds(t, append([]string{"activity"}, arguments...)...)
}

func execute(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// TestActivityLockChain has a session that is idle in a transaction block a second one, which blocks a third one, while
// all connections are in use.
func TestActivityLockChain(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
			"max_connections = 5", "superuser_reserved_connections = 0", "max_wal_senders = 0", "autovacuum = off",
		}})
		s.Exec(t, "CREATE TABLE t AS SELECT 1 n; CREATE TABLE u AS SELECT 1 n")
		var c [3]*pgx.Conn
		var pids [3]int
		for i := range c {
			c[i] = s.Connect(t, s.User, "postgres")
			pids[i] = int(c[i].PgConn().PID())
		}
		var database, relation uint32
		if err := c[0].QueryRow(t.Context(), "SELECT d.oid, 't'::regclass::oid FROM pg_database d WHERE datname = current_database()").
			Scan(&database, &relation); err != nil {
			t.Fatal(err)
		}
		execute(t, c[0], "SET application_name = 'the root'; BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
		execute(t, c[1], "BEGIN; LOCK TABLE u IN ACCESS EXCLUSIVE MODE")
		go func() { _, _ = c[1].PgConn().Exec(t.Context(), "SELECT n FROM t").ReadAll() }()
		go func() { _, _ = c[2].PgConn().Exec(t.Context(), "SELECT n\n FROM u").ReadAll() }()
		fill(t, s)

		var m moment.Moment
		byPID := map[int]*moment.Session{}
		pgtest.Wait(t, "two waiters", func() bool {
			m = moment.Moment{}
			clear(byPID)
			if err := json.Unmarshal([]byte(activity(t, "-D", s.DataDir, "--format", "json")), &m); err != nil {
				t.Fatal(err)
			}
			for i := range m.Sessions {
				byPID[m.Sessions[i].PID] = &m.Sessions[i]
			}
			waits := func(s *moment.Session) bool { // the server notes the begin of a wait a moment after the wait
				return s != nil && len(s.Blockers) > 0 && s.Blockers[0].Since != nil
			}
			return waits(byPID[pids[1]]) && waits(byPID[pids[2]])
		})
		b := byPID[pids[1]].Blockers[0]
		object := fmt.Sprintf("%d/%d", database, relation)
		if b.PID != pids[0] || b.Lock != "relation" || b.Object != object || b.Relation != "t" || b.Mode != "AccessShareLock" ||
			b.Held != "AccessExclusiveLock" || b.Queued || b.Since == nil {
			t.Errorf("blocker %+v, want process %d and relation %s", b, pids[0], object)
		}
		if b := byPID[pids[2]].Blockers[0]; b.PID != pids[1] {
			t.Errorf("blocker %+v, want process %d", b, pids[1])
		}
		if byPID[pids[0]].Blockers != nil {
			t.Errorf("the root has blockers: %+v", byPID[pids[0]])
		}
		if len(m.Blocking) != 1 || m.Blocking[0].PID != pids[0] || len(m.Blocking[0].Blocked) != 1 ||
			len(m.Blocking[0].Blocked[0].Blocked) != 1 || m.Blocking[0].Blocked[0].Blocked[0].PID != pids[2] {
			t.Errorf("blocking: %+v", m.Blocking)
		}
		pgtest.Wait(t, "phrases in JSON", func() bool {
			m := moment.Moment{}
			if err := json.Unmarshal([]byte(activity(t, "-D", s.DataDir, "--format", "json")), &m); err != nil {
				t.Fatal(err)
			}
			phrase := map[int]string{}
			for i := range m.Sessions {
				phrase[m.Sessions[i].PID] = m.Sessions[i].Phrase
			}
			return phrase[pids[0]] == "waits for the next statement of the client" && regexp.MustCompile(fmt.Sprintf(
				`^waits for the lock AccessShareLock on t, held by %d \(idle in transaction for [0-9a-z. ]+\)$`,
				pids[0])).MatchString(phrase[pids[1]])
		})
		age := `(?:[0-9]+ ms|[0-9]+(?:\.[0-9])? s|[0-9]+ min(?: [0-9]+ s)?)`
		want := regexp.MustCompile(fmt.Sprintf(`^.*: [0-9]+ processes at .*
%[1]d postgres@postgres the root idle in transaction, transaction %[2]s, state %[2]s
  SET application_name = 'the root'; BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE
    %[3]d postgres@postgres active, transaction %[2]s, state %[2]s
      waits for relation t AccessShareLock, %[2]s
      SELECT n FROM t
        %[4]d postgres@postgres active, transaction %[2]s, state %[2]s
          waits for relation u AccessShareLock, %[2]s
          SELECT n FROM u
$`, pids[0], age, pids[1], pids[2]))
		settles(t, func() string {
			if tree := activity(t, "-D", s.DataDir, "--tree", "--no-phrases"); !want.MatchString(tree) {
				return fmt.Sprintf("tree:\n%s\nwant\n%s", tree, want)
			}
			return ""
		})
		if tree := activity(t, "-D", s.DataDir, "--tree"); strings.Contains(tree, "waits for the lock") || strings.Contains(tree, "waits for a lock") {
			t.Errorf("a phrase that repeats the wait:\n%s", tree)
		}
		title, _, _ := strings.Cut(activity(t, "-D", s.DataDir), "\n")
		if !strings.HasSuffix(title, ", 5 of 5 connection slots in use") {
			t.Errorf("title %q", title)
		}
		if one := activity(t, strconv.Itoa(pids[0])); strings.Contains(one, "slots") {
			t.Errorf("the slots of one process:\n%s", one)
		}
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^%d +client backend +postgres +postgres .* Lock:relation +%s +%d +SELECT n FROM t *$`,
			pids[1], age, pids[0]))
		settles(t, func() string {
			if text := activity(t, "-D", s.DataDir); !line.MatchString(text) {
				return fmt.Sprintf("text:\n%s\nwant %s", text, line)
			}
			return ""
		})
	})
}

// fill uses all connections of a server.
func fill(t *testing.T, s *pgtest.Server) {
	t.Helper()
	const most = 20
	made := 0
	full := regexp.MustCompile(`, (\d+) of (\d+) connection slots in use\n`)
	pgtest.Wait(t, "all slots in use", func() bool { // a session that has ended gives its slot back later
		c, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
		if err == nil {
			if made++; made > most {
				t.Fatal("the server still accepts connections")
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			return false
		}
		if !strings.Contains(err.Error(), "53300") {
			t.Fatal(err)
		}
		found := full.FindStringSubmatch(activity(t, "-D", s.DataDir, "--no-phrases"))
		return found != nil && found[1] == found[2]
	})
}

// TestActivityQueue has three sessions wait behind a fourth one, which waits too. The session that waits for the longest time comes first.
func TestActivityQueue(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{TCP: true, Conf: []string{"autovacuum = off"}})
		s.Exec(t, "CREATE TABLE t AS SELECT 1 n")
		var c [5]*pgx.Conn
		for i := range c {
			c[i] = s.Connect(t, s.User, "postgres")
		}
		var err error
		if c[0], err = pgx.Connect(t.Context(), s.TCP(s.User, "postgres")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c[0].Close(context.Background()) })
		pid := func(i int) int { return int(c[i].PgConn().PID()) }
		execute(t, c[0], "BEGIN; SELECT n FROM t")
		for _, wait := range []struct {
			session int
			sql     string
		}{{1, "ALTER TABLE t ADD COLUMN c int"}, {3, "SELECT 3 FROM t"}, {4, "SELECT 4 FROM t"}, {2, "SELECT 2 FROM t"}} {
			go func() { _, _ = c[wait.session].PgConn().Exec(t.Context(), wait.sql).ReadAll() }()
			since := regexp.MustCompile(`waits for relation t [^\n]*, [0-9][^\n]*\n +` + regexp.QuoteMeta(wait.sql) + "\n")
			pgtest.Wait(t, wait.sql, func() bool { return since.MatchString(activity(t, "-D", s.DataDir, "--tree", "--no-phrases")) })
		}
		const behind = "(?s).*waits for relation t AccessShareLock, behind the waiting %[2]d, "
		want := regexp.MustCompile(fmt.Sprintf("(?s)\n%[1]d [^\n]*, client 127.0.0.1\n.*\n    %[2]d .*\n        %[4]d "+behind+".*\n        %[5]d "+behind+
			".*\n        %[3]d "+behind, pid(0), pid(1), pid(2), pid(3), pid(4)))
		settles(t, func() string {
			if tree := activity(t, "-D", s.DataDir, "--tree"); !want.MatchString(tree) {
				return fmt.Sprintf("tree:\n%s\nwant %s", tree, want)
			}
			return ""
		})
		phrase := fmt.Sprintf(",\"waits for the lock AccessShareLock on t, behind the waiting %d\",", pid(1))
		pgtest.Wait(t, "three phrases", func() bool { return strings.Count(activity(t, "-D", s.DataDir, "-f", "csv"), phrase) == 3 })
	})
}

// TestActivityStandby reads a standby in which a session waits for an advisory lock.
func TestActivityStandby(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Standby: true})
	holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
	execute(t, holder, "SELECT pg_advisory_lock(7)")
	go func() { _, _ = waiter.PgConn().Exec(t.Context(), "SELECT pg_advisory_lock(7)").ReadAll() }()
	tree := ""
	pgtest.Wait(t, "the waiter", func() bool {
		tree = activity(t, "-D", s.DataDir, "--tree")
		return strings.Contains(tree, fmt.Sprintf("\n%d ", holder.PgConn().PID())) &&
			strings.Contains(tree, fmt.Sprintf("\n    %d ", waiter.PgConn().PID())) &&
			strings.Contains(tree, "waits for advisory lock 7 ExclusiveLock")
	})
}

// TestActivityChoosesServer runs the command without -D while two servers run. The error lists both.
func TestActivityChoosesServer(t *testing.T) {
	first := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	second := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	for _, candidates := range [][]string{{first.DataDir}, {first.DataDir, second.DataDir}, nil} {
		dir, err := console.ChooseServer(candidates, 0)
		switch {
		case len(candidates) == 1:
			if dir != first.DataDir || err != nil {
				t.Errorf("%q, %v", dir, err)
			}
		case err == nil:
			t.Errorf("%q is chosen among %q", dir, candidates)
		}
	}
	var stdout, stderr strings.Builder
	status := Main("test", []string{"activity"}, &stdout, &stderr)
	if status == exitOK || !strings.Contains(stderr.String(), "-D "+first.DataDir+"\n") ||
		!strings.Contains(stderr.String(), "Choose one with -D") || !strings.Contains(stderr.String()+"\n", "-D "+second.DataDir+"\n") {
		t.Errorf("status %d, %q", status, stderr.String())
	}
	if _, err := console.ChooseServer([]string{first.DataDir}, 1); err == nil {
		t.Error("a server is chosen though another one could not be examined")
	}
}

// TestActivityMissing expects each format to say what could not be read: without it, unreadable locks look like no blockers.
func TestActivityMissing(t *testing.T) {
	t.Parallel()
	m := &moment.Moment{Time: time.Now(), Missing: []string{"locks: the table changed"}}
	for _, f := range []activityFlags{{format: "text"}, {format: "text", tree: true}, {format: "json"}, {format: "csv"}} {
		var out, errOut strings.Builder
		if err := f.print(&out, &errOut, m); err != nil || !strings.Contains(out.String()+errOut.String(), m.Missing[0]) {
			t.Errorf("%s, tree %v: %v, %q, %q", f.format, f.tree, err, out.String(), errOut.String())
		}
		if lines := strings.Count(out.String(), "\n"); f.format == "csv" && lines != 1 {
			t.Errorf("csv has %d lines: %q", lines, out.String())
		}
	}
}

// TestActivityAges expects no age for a time in the future. A second later is within the accuracy of what the two clocks read.
func TestActivityAges(t *testing.T) {
	t.Parallel()
	m := &moment.Moment{Time: time.Unix(1_800_000_000, 0)}
	for ahead, want := range map[time.Duration][2]string{
		-2 * time.Second: {"2.0 s", "2.0"}, 0: {"0 ms", "0.0"}, time.Second: {"0 ms", "0.0"}, 1001 * time.Millisecond: {"", ""},
		time.Hour: {"", ""},
	} {
		at := m.Time.Add(ahead)
		if got := [2]string{ageOf(m, &at), secondsSince(m, &at)}; got != want {
			t.Errorf("%s ahead: %q, want %q", ahead, got, want)
		}
	}
}
