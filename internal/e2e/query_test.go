package e2e

import (
	"fmt"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// readers are roles that may ask, and their target: a query, inside a function, of a role.
const readers = `
	CREATE ROLE asked LOGIN;
	CREATE ROLE asked_heir LOGIN;        GRANT asked TO asked_heir;
	CREATE ROLE asked_stranger LOGIN;
	CREATE ROLE asked_monitor LOGIN;     GRANT pg_read_all_stats TO asked_monitor;
	GRANT EXECUTE ON FUNCTION pg_get_backtrace, pg_get_backtrace_frames
		TO asked, asked_heir, asked_stranger, asked_monitor;
	CREATE FUNCTION asked_sleeps() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN 1; END $$`

// queries checks that the text of a query is visible only to roles that see it in pg_stat_activity. The setting and
// the levels can omit it. For a server newer than all known versions, no text is shown.
func queries(t *testing.T, s *site) {
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, readers)
	const secret = "the number is 4711"
	target := s.connect(t, "asked", "postgres")
	done := target.later("SELECT asked_sleeps() /* " + secret + " */")
	s.waits(t, target.pid(), "PgSleep")
	const newestKnown = 19
	const level = "PL/pgSQL function asked_sleeps() line 1 at PERFORM"
	for _, reader := range []string{s.User, "asked", "asked_heir", "asked_stranger", "asked_monitor"} {
		c := s.connect(t, reader, "postgres")
		activity := c.text(t, "SELECT query FROM pg_stat_activity WHERE pid = $1", target.pid())
		visible := strings.Contains(activity, secret)
		for _, ask := range []string{
			ask1(target.pid()),
			fmt.Sprintf("SELECT string_agg(f::text, ' ') FROM pg_get_backtrace_frames(%d) f", target.pid()),
		} {
			got, e := c.try(t.Context(), ask)
			if strings.Contains(got+e.String(), secret) && !visible {
				t.Errorf("%s sees the query in a stack, but pg_stat_activity says %q", reader, activity)
			}
			may := reader != "asked_stranger" && reader != "asked_monitor"
			told := may && s.Major <= newestKnown
			if may != (e.level == "") || told != strings.Contains(got, secret) || told != strings.Contains(got, level) {
				t.Errorf("%s: %s: %v %s", reader, ask, e, got)
			}
		}
	}
	c := s.connect(t, "asked", "postgres")
	c.run(t, "SET pg_stat_backtrace.context = off")
	got := c.text(t, ask1(target.pid()))
	stack(t, "without context", got)
	if strings.Contains(got, secret) || strings.Contains(got, level) || strings.Contains(got, "waiting for") {
		t.Errorf("although context is off:\n%s", got)
	}
	boss.run(t, fmt.Sprintf("SELECT pg_cancel_backend(%d)", target.pid()))
	<-done
	if s.Major <= newestKnown {
		s.nestedText(t)
	}
}

// nestedText checks that the dynamic SQL of a SECURITY DEFINER function is visible to superusers only, and stored
// nowhere.
func (s *site) nestedText(t *testing.T) {
	const password = "hunter2"
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, `CREATE FUNCTION asked_rotates() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
		DECLARE s text := '`+password+`';
		BEGIN EXECUTE format('SELECT pg_sleep(600) /* ALTER ROLE x PASSWORD %L */', s); END $$;
		GRANT EXECUTE ON FUNCTION pg_get_blocking_backtraces(int), pg_backtrace_summary, pg_request_backtrace(int, boolean)
			TO asked, asked_heir;
		GRANT SELECT ON pg_stat_backtrace TO asked, asked_heir`)
	target := s.connect(t, "asked", "postgres")
	done := target.later("SELECT asked_rotates()")
	s.waits(t, target.pid(), "PgSleep")
	for _, reader := range []string{s.User, "asked", "asked_heir"} {
		c := s.connect(t, reader, "postgres")
		for _, ask := range []string{
			ask1(target.pid()),
			fmt.Sprintf("SELECT string_agg(f::text, ' ') FROM pg_get_backtrace_frames(%d) f", target.pid()),
			fmt.Sprintf("SELECT backtrace FROM pg_stat_backtrace WHERE pid = %d", target.pid()),
			fmt.Sprintf("SELECT backtrace FROM pg_get_blocking_backtraces(%d)", target.pid()),
		} {
			got := c.text(t, ask)
			if told := strings.Contains(got, password); told != (reader == s.User) || !strings.Contains(got, "SQL statement") ||
				!strings.Contains(got, "asked_rotates() line 3 at EXECUTE") {
				t.Errorf("%s: %s:\n%s", reader, ask, got)
			}
		}
		id := c.text(t, fmt.Sprintf("SELECT pg_request_backtrace(%d)::text", target.pid()))
		pgtest.Wait(t, "the result", func() bool {
			return c.text(t, "SELECT state FROM pg_backtrace_result("+id+")") == "done"
		})
		if got := c.text(t, "SELECT backtrace FROM pg_backtrace_result("+id+")"); strings.Contains(got, password) ||
			!strings.Contains(got, "SQL statement") {
			t.Errorf("%s: the table has\n%s", reader, got)
		}
	}
	boss.run(t, fmt.Sprintf("SELECT pg_cancel_backend(%d)", target.pid()))
	<-done
}
