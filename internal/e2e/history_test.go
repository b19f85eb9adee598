package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
)

// TestHistory checks that SQL shows what the worker has recorded, to superusers and to roles that may read all
// statistics: a session that waits for another one, with its blocker.
func TestHistory(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		w := s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, "CREATE ROLE stranger LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_stats TO reader; CREATE TABLE held (a int)")
		fails := func(c *session, code, sql string) {
			t.Helper()
			_, err := c.Exec(t.Context(), sql)
			var failed *pgconn.PgError
			if !errors.As(err, &failed) || failed.Code != code {
				t.Errorf("%s: %v, want %s", sql, err, code)
			}
		}
		const all = "SELECT count(*) FROM pg_backtrace_history(now() - interval '1 hour')"
		fails(boss, "55000", all) // the worker does not record
		_ = w.end(syscall.SIGTERM)
		const token = "operator-token-0123456789"
		tokens, socket := filepath.Join(s.DataDir, "tokens"), filepath.Join(s.DataDir, "screen.sock")
		if err := os.WriteFile(tokens, []byte("operator "+token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("chown", "--reference="+s.DataDir, tokens).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		s.work(t, "--record-dir", filepath.Join(s.DataDir, "history"), "--record", "200ms", "--listen", "unix:"+socket, "--listen-token-file", tokens)
		boss.run(t, "BEGIN; LOCK TABLE held")
		waiter := s.Connect(t, s.User, "postgres")
		blocked := make(chan error, 1)
		go func() {
			_, err := waiter.Exec(t.Context(), "SELECT count(*) FROM held WHERE a = 4711")
			blocked <- err
		}()
		pids := []int{int(waiter.PgConn().PID())}
		const rows = `SELECT count(*) FILTER (WHERE blocked_by = ARRAY[$2]::int[] AND query = 'SELECT count(*) FROM held WHERE a = ?'
				AND wait_event = 'relation' AND lock <> '' AND query_age >= interval '0' AND user_name IS NOT NULL AND NOT ended),
			count(*) FILTER (WHERE pid <> $1[1])
			FROM pg_backtrace_history(now() - interval '1 hour', clock_timestamp(), $1)`
		for _, role := range []string{s.User, "reader"} {
			c := s.connect(t, role, "postgres")
			pgtest.Wait(t, "the history has the session that waits", func() bool {
				var waiting, others int
				if err := c.QueryRow(t.Context(), rows, pids, int(boss.PgConn().PID())).Scan(&waiting, &others); err != nil {
					var failed *pgconn.PgError
					if errors.As(err, &failed) && failed.Code == "55000" { // nothing is recorded yet
						return false
					}
					t.Fatal(role, err)
				}
				if others > 0 {
					t.Errorf("%s: %d rows of other sessions", role, others)
				}
				return waiting > 0
			})
		}
		checkRecorded(t, s, fails)
		checkActions(t, s, socket, token, pids[0])
		fails(s.connect(t, "stranger", "postgres"), "42501", all)
		other := s.connect(t, s.User, "postgres")
		for _, span := range []string{"NULL", "now(), now()", "now(), now() - interval '1 s'", "'infinity'"} {
			fails(other, "22023", "SELECT pg_backtrace_history("+span+")")
			fails(other, "22023", "SELECT pg_backtrace_history_summary("+span+")")
		}
		for _, span := range []string{"'-infinity', 'infinity'", "'4713-01-01 BC', '294276-12-31'"} {
			for _, function := range []string{"pg_backtrace_history", "pg_backtrace_history_summary"} {
				if n := boss.text(t, "SELECT count(*)::text FROM "+function+"("+span+")"); n == "0" {
					t.Errorf("%s(%s) has no rows", function, span)
				}
			}
		}
		for _, span := range []string{"'-infinity', '4713-01-01 BC'", "'294276-12-31', 'infinity'"} {
			boss.run(t, "SELECT pg_backtrace_history("+span+")")
		}
		fails(other, "22023", "SET pg_stat_backtrace.history = 'x'; SELECT pg_backtrace_history('infinity')")
		boss.run(t, "COMMIT")
		if err := <-blocked; err != nil {
			t.Error(err)
		}
	})
}

// checkRecorded checks the functions for sums, recorded stacks and incidents, and that they need the rights to read all
// statistics, not only EXECUTE.
func checkRecorded(t *testing.T, s *site, fails func(c *session, code, sql string)) {
	t.Helper()
	boss, reader := s.connect(t, s.User, "postgres"), s.connect(t, "reader", "postgres")
	for bucket, unit := range map[string]string{"1 s": "second", "1 minute": "minute", "1 hour": "hour"} {
		if n := reader.text(t, fmt.Sprintf(`SELECT (count(*) > 0 AND bool_and(samples > 0 AND active_seconds > 0
				AND time = date_trunc('%[1]s', time)))::text
			FROM pg_backtrace_history_summary(now() - interval '1 hour', clock_timestamp(), '%[2]s')
			WHERE wait_event = 'relation' AND (query = 'SELECT count(*) FROM held WHERE a = ?' OR '%[2]s' <> '1 s')`, unit, bucket)); n != "true" {
			t.Errorf("the sums of %s have no row of the session that waits", bucket)
		}
	}
	pgtest.Wait(t, "a recorded stack", func() bool {
		var found bool
		err := reader.QueryRow(t.Context(), `SELECT coalesce(bool_or(pg_backtrace_stack(stack_id) ~ '^#0 +\S+'), false)
			FROM (SELECT DISTINCT stack_id FROM pg_backtrace_history(now() - interval '1 hour', clock_timestamp())
				WHERE stack_id IS NOT NULL LIMIT 3) x`).Scan(&found)
		if err != nil {
			t.Fatal(err)
		}
		return found
	})
	if text := reader.text(t, "SELECT (pg_backtrace_stack(1) IS NULL)::text"); text != "true" {
		t.Error("an unknown stack has frames")
	}
	for _, span := range []string{"NULL", "now(), now()", "now() - interval '1 h', now(), '1 ms'", "now() - interval '1 h', now(), NULL"} {
		fails(reader, "22023", "SELECT pg_backtrace_history_summary("+span+")")
	}
	writeIncident(t, s)
	if text := reader.text(t, `SELECT concat_ws(' ', i.id, i.rule, i.cause, extract(epoch FROM i.time)::int, i.file ~ '/20260102.*[.]html$',
			pg_backtrace_incident(i.id) #>> '{sessions,0,query}') FROM pg_backtrace_incidents i
			WHERE i.time < '2026-02-01'`); text != // on a slow machine the rules may have found the session that waits
		"20260102T030405Z-lock_wait-0001 lock_wait process 7, transaction since 2026-01-02 03:03:20 UTC 1767323045 t SELECT 'a'" {
		t.Error("the incidents are", text)
	}
	for _, id := range []string{"x", "../x", "", strings.Repeat("9", 5000), "20260102T030405Z-lock_wait-0001.json", "é"} {
		fails(reader, "42704", "SELECT pg_backtrace_incident('"+id+"')")
	}
	checkToFile(t, s, boss, fails)
	boss.run(t, `CREATE ROLE executor LOGIN; GRANT SELECT ON pg_backtrace_incidents TO executor; DO $$BEGIN
		EXECUTE (SELECT string_agg('GRANT EXECUTE ON FUNCTION ' || oid::regprocedure || ' TO executor', ';') FROM pg_proc
			WHERE proname ~ '^pg_backtrace_(history|stack|incident)'); END$$`)
	stranger, executor := s.connect(t, "stranger", "postgres"), s.connect(t, "executor", "postgres")
	for _, call := range []string{
		"count(*) FROM pg_backtrace_history(now() - interval '1 h')", "count(*) FROM pg_backtrace_history_summary(now() - interval '1 h')",
		"pg_backtrace_stack(1)", "count(*) FROM pg_backtrace_incidents()", "count(*) FROM pg_backtrace_incidents",
		"pg_backtrace_incident('x')",
	} {
		fails(stranger, "42501", "SELECT "+call)
		fails(executor, "42501", "SELECT "+call)
	}
}

// checkActions starts the actions of the incident screen, as its page does.
func checkActions(t *testing.T, s *site, socket, token string, pid int) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	post := func(action, body string, status int) map[string]any {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/screen/"+action, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != status {
			t.Fatalf("%s: %d %s, %v", action, answer.StatusCode, text, err)
		}
		members := map[string]any{}
		_ = json.Unmarshal(text, &members)
		return members
	}
	if x := post("capture", fmt.Sprintf(`{"pid": %d}`, pid), 200); x["stack"] == nil || x["session"] == nil {
		t.Error("a capture has", x)
	}
	post("capture", `{"pid": 2147483647}`, 404)
	x := post("incident", `{"note": "slow since noon"}`, 200)
	file, _ := x["file"].(string)
	page, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(page), "slow since noon") || !strings.Contains(fmt.Sprint(x["command"]), fmt.Sprint(x["id"])) {
		t.Errorf("an incident: %v, %v", x, err)
	}
	for _, want := range []string{`"note":"slow since noon"`, `"action":"incident"`, fmt.Sprintf(`"pid":%d`, pid), `"status":404`, `"token_sha256"`} {
		pgtest.Wait(t, "the log of the worker has "+want, func() bool { return strings.Contains(s.worker.text(), want) })
	}
	if strings.Contains(s.worker.text(), token) {
		t.Error("the log has the token")
	}
}

// writeIncident writes an incident as the worker does.
func writeIncident(t *testing.T, s *site) {
	t.Helper()
	clusters, err := store.Clusters(filepath.Join(s.DataDir, "history"))
	if err != nil {
		t.Fatal(err)
	}
	dir := incident.DirOf(filepath.Join(s.DataDir, "history"), clusters[0])
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := incident.Dir{Path: dir}
	_, err = d.Write(&incident.Incident{
		Schema: incident.Schema, ID: "20260102T030405Z-lock_wait-0001", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Reason:   rules.Finding{Rule: "lock_wait", Cause: "process 7 of 1767322800000000, transaction of 1767323000000000", Summary: "waits"},
		Sessions: []incident.Session{{PID: 1, Query: "SELECT 'a'"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chown", "-R", "--reference="+s.DataDir, dir).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
}

// checkToFile checks the function that writes a stack to a file: the right to see the stack, the path and the mode.
func checkToFile(t *testing.T, s *site, boss *session, fails func(c *session, code, sql string)) {
	t.Helper()
	boss.run(t, "CREATE ROLE writer LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace_to_file(int, text) TO writer")
	writer, own, stranger := s.connect(t, "writer", "postgres"), s.connect(t, "writer", "postgres"), s.connect(t, "stranger", "postgres")
	call := func(c *session, path string) string {
		return fmt.Sprintf("SELECT pg_get_backtrace_to_file(%d, '%s')", c.PgConn().PID(), path)
	}
	const path = "case_7/stack.txt"
	if got := writer.text(t, call(own, path)); got != path {
		t.Errorf("the path is %q", got)
	}
	files, err := filepath.Glob(filepath.Join(s.DataDir, "history", "*", "incidents", path))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	if st, serr := os.Stat(files[0]); err != nil || serr != nil || st.Mode() != 0o600 || !strings.Contains(string(text), "\n#0 ") {
		t.Error(err, serr, string(text))
	}
	fails(writer, "58P02", call(own, path))
	for _, bad := range []string{"../x.txt", "/tmp/x.txt", "x.json", "", strings.Repeat("a", 70000) + ".txt", "20260102T030405Z-lock_wait-0001.html"} {
		fails(writer, "22023", call(own, bad))
	}
	fails(writer, "42501", call(boss, "other.txt"))
	fails(stranger, "42501", call(own, "other.txt"))
	fails(writer, "55000", call(writer, "other.txt"))
	if files, _ := filepath.Glob(filepath.Join(filepath.Dir(files[0]), "..", "other.txt")); len(files) > 0 {
		t.Error("a refused call wrote a file")
	}
	for i := range 750 { // a quarter of the 1000 places stays for superusers
		if err := os.WriteFile(filepath.Join(filepath.Dir(files[0]), fmt.Sprint(i, ".txt")), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fails(writer, "53400", call(own, "full.txt"))
	if got := boss.text(t, call(own, "full.txt")); got != "full.txt" {
		t.Errorf("the path of a superuser's file is %q", got)
	}
}
