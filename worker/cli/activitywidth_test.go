package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/table"
)

// onTerminal runs a command with a terminal as standard output, and returns the output. Like run, it repeats the command if a part is
// missing because of a time limit.
func onTerminal(t *testing.T, columns uint16, words ...string) (out string) {
	t.Helper()
	pgtest.Wait(t, fmt.Sprint(words), func() bool {
		out = onceOnTerminal(t, columns, words...)
		return !tooSlow.MatchString(out)
	})
	return out
}

func onceOnTerminal(t *testing.T, columns uint16, words ...string) string {
	t.Helper()
	x := openTerminal(t)
	x.size(t, columns, 50)
	var stderr strings.Builder
	if status := Main("test", words, x.slave, &stderr); status != exitOK {
		if tooSlow.MatchString(stderr.String()) {
			return stderr.String()
		}
		t.Fatalf("%s: status %d, %s", words, status, stderr.String())
	}
	const end = "the end of the output"
	if _, err := x.slave.WriteString(end); err != nil {
		t.Fatal(err)
	}
	out := ""
	pgtest.Wait(t, "the output", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		var whole bool
		out, whole = strings.CutSuffix(x.raw.String(), end)
		return whole
	})
	return strings.ReplaceAll(out, "\r\n", "\n")
}

// TestActivityBusyLoop has a session that uses a processor in PL/pgSQL, and a session that waits for a lock. It compares the table for
// terminals of several widths, the processor time, and the function of a plan.
func TestActivityBusyLoop(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"autovacuum = off"}})
	s.Exec(t, `CREATE TABLE t AS SELECT 1 n; CREATE FUNCTION total() RETURNS int LANGUAGE plpgsql AS $$
		BEGIN
			LOOP
			END LOOP;
		END $$`)
	busy, holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
	execute(t, holder, "SET application_name = 'an application with a long name'; BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
	go func() {
		_, _ = busy.PgConn().Exec(t.Context(), "SELECT total() /* "+strings.Repeat("ein großes Wort ", 50)+"*/").ReadAll()
	}()
	go func() { _, _ = waiter.PgConn().Exec(t.Context(), "SELECT n FROM t").ReadAll() }()
	pid := int(busy.PgConn().PID())

	pgtest.Wait(t, "the busy session in front", func() bool {
		var m moment.Moment
		if err := json.Unmarshal([]byte(activity(t, "-D", s.DataDir, "--sort", "cpu", "-f", "json")), &m); err != nil {
			t.Fatal(err)
		}
		first := m.Sessions[0]
		for i := range m.Sessions {
			if one := m.Sessions[i].CPUPercent; one != nil && (*one < 0 || *one > 100) {
				t.Errorf("process %d used %.1f %% of a processor", m.Sessions[i].PID, *one)
			}
		}
		return first.PID == pid && first.CPUPercent != nil && *first.CPUPercent > 5
	})
	pgtest.Wait(t, "the processor time as text", func() bool {
		csv := regexp.MustCompile(fmt.Sprintf(`\n%d,client backend,[^\n]*,active,[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,`, pid))
		return csv.MatchString(activity(t, "-D", s.DataDir, "-f", "csv")) &&
			regexp.MustCompile(fmt.Sprintf(`\n%d .* [0-9]+ %% .* SELECT total`, pid)).MatchString(activity(t, "-D", s.DataDir))
	})
	pgtest.Wait(t, "the function of the plan", func() bool {
		_, out, _ := run(t, "plan", strconv.Itoa(pid))
		want := fmt.Sprintf("A moment later in function total\\(\\) line [0-9]+; its stack: pg_stat_backtrace capture %d\n", pid)
		return regexp.MustCompile(want).MatchString(out)
	})

	pgtest.Wait(t, "a waiter", func() bool { return strings.Contains(activity(t, "-D", s.DataDir), "Lock:relation") })
	for _, columns := range []int{60, 80, 120, 200, 400} {
		out := onTerminal(t, uint16(columns), "activity", "-D", s.DataDir, "--sort", "state")
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		header := strings.Fields(lines[1])
		for i, line := range lines[1:] { // the first line is the title
			if table.Width(line) > columns && !strings.HasPrefix(line, "no room for ") {
				t.Errorf("%d columns: line %d has %d: %s", columns, i, table.Width(line), line)
			}
		}
		if last := header[len(header)-1]; last != "query" || strings.Contains(lines[1], "backend_type") || !strings.Contains(lines[1], "state_age") {
			t.Errorf("%d columns: header %q", columns, lines[1])
		}
		for _, want := range []string{"SELECT total()", "SELECT n FROM t\n", "checkpointer", fmt.Sprint("\n", pid, " ")} {
			if !strings.Contains(out, want) {
				t.Errorf("%d columns: no %q in\n%s", columns, want, out)
			}
		}
		if !strings.Contains(out, "…\n") {
			t.Errorf("%d columns: no cut query\n%s", columns, out)
		}
		if left := strings.Contains(out, "\nno room for "); left != (columns <= 120) && columns != 200 {
			t.Errorf("%d columns: left out: %t\n%s", columns, left, out)
		}
		if columns == 120 && (strings.Contains(lines[1], "wait_age") || !strings.Contains(lines[1], " cpu ") || !strings.Contains(lines[1], "blocked_by")) {
			t.Errorf("%d columns: header %q", columns, lines[1])
		}
	}
	if out := onTerminal(t, 120, "activity", "-D", s.DataDir, "--wide"); !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(activityHeader(), " ")) {
		t.Errorf("--wide:\n%s", out)
	}
	if out := onTerminal(t, 400, "activity", "-D", s.DataDir, "--query-width", "10"); !strings.Contains(out, "  SELECT tot...\n") {
		t.Errorf("--query-width:\n%s", out)
	}
}
