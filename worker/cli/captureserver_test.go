package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// TestCaptureServer has two sessions wait for a table that a session holds, which is idle in its transaction. Both have the
// same stack, with different queries.
func TestCaptureServer(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Lend(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		s.Exec(t, "CREATE TABLE t AS SELECT 1 n")
		var c [3]*pgx.Conn
		var pids [3]int
		for i := range c {
			c[i] = s.Connect(t, s.User, "postgres")
			pids[i] = int(c[i].PgConn().PID())
		}
		execute(t, c[0], "BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
		for i := 1; i < len(c); i++ {
			go func() { _, _ = c[i].PgConn().Exec(t.Context(), fmt.Sprintf("SELECT %d FROM t", i)).ReadAll() }()
		}
		first, second := min(pids[1], pids[2]), max(pids[1], pids[2])
		query := map[int]int{pids[1]: 1, pids[2]: 2}
		phrase := fmt.Sprintf("waits for the lock AccessShareLock on t, held by %d \\(idle in transaction for [0-9a-z. ]+\\)",
			pids[0])
		process := func(pid int) string {
			return fmt.Sprintf(`process %d \(postgres: .*SELECT waiting\), database postgres, user postgres, active, [0-9:.]+`, pid)
		}
		capture := func(format string) string {
			status, stdout, stderr := run(t, "capture", "-D", s.DataDir, "--format", format)
			if status != exitOK {
				t.Fatalf("status %d, %s", status, stderr)
			}
			return stdout
		}
		brief := regexp.MustCompile(fmt.Sprintf(
			"(?m)^2 processes: %[1]d, %[2]d\n%[3]s\n  query: SELECT %[5]d FROM t\n%[4]s\n  query: SELECT %[6]d FROM t\n"+
				"  %[7]s\n  wait: Lock: relation\n(  [^:\n]+\n)+  PostgresMain\n",
			first, second, process(first), process(second), query[first], query[second], phrase))
		one := func(pid int) string {
			_, stdout, _ := run(t, "capture", strconv.Itoa(pid))
			return stdout
		}
		pgtest.Wait(t, "the holder of the lock for which one process waits", func() bool {
			return regexp.MustCompile(fmt.Sprintf("^process %d, .*\n%s\n#0 ", pids[1], phrase)).MatchString(one(pids[1]))
		})
		idle := regexp.MustCompile(fmt.Sprintf("^process %d, database postgres, user %s, idle in transaction, [0-9:.]+, .*\nwaits for the next statement of the client\n#0 ",
			pids[0], s.User))
		settles(t, func() string {
			if got := one(pids[0]); !idle.MatchString(got) {
				return fmt.Sprintf("%s\nwant %s", got, idle)
			}
			return ""
		})
		var out string
		pgtest.Wait(t, "two processes with one stack", func() bool {
			out = capture("brief")
			return brief.MatchString(out)
		})
		for _, never := range []string{"0x", "epoll_wait", "between", " _start", "\x1b"} {
			if strings.Contains(out, never) {
				t.Errorf("%q is in\n%s", never, out)
			}
		}
		text := regexp.MustCompile(fmt.Sprintf(
			"(?m)^2 processes: %d, %d\n%s, (?:not stopped|stopped for [0-9.]+ us)\n  query: .*\n%s, (?:not stopped|stopped for [0-9.]+ us)\n  query: .*\n%s\n#0 ",
			first, second, process(first), process(second), phrase))
		settles(t, func() string {
			if out := capture("text"); !text.MatchString(out) {
				return fmt.Sprintf("text:\n%s\nwant %s", out, text)
			}
			return ""
		})
		settles(t, func() string { return waitersInJSON(t, capture("json"), pids[1:], s.User, regexp.MustCompile(phrase)) })
	})
}

// waitersInJSON returns how the processes of pids differ from sessions that wait with this phrase.
func waitersInJSON(t *testing.T, text string, pids []int, user string, phrase *regexp.Regexp) (differs string) {
	t.Helper()
	found := 0
	for line := range strings.Lines(text) {
		var p struct {
			PID         int
			Time, Title string
			Type        string `json:"backend_type"`
			Database    string
			User, State string
			Phrase      struct{ Text string }
		}
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatal(err)
		}
		if p.Time == "" || p.Title == "" {
			t.Errorf("no time or title: %s", line)
		}
		if !slices.Contains(pids, p.PID) {
			continue
		}
		found++
		if p.Type != "client backend" || p.Database != "postgres" || p.User != user || p.State != "active" || !phrase.MatchString(p.Phrase.Text) {
			differs = fmt.Sprintf("%+v", p)
		}
	}
	if found != len(pids) {
		return fmt.Sprintf("%d waiters in JSON", found)
	}
	return differs
}
