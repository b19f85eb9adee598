package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// hears runs a query that must succeed, and checks that the client receives the conditions, each with at most one
// line of context.
func (c *session) hears(t *testing.T, sql string, want ...string) {
	t.Helper()
	c.told()
	c.text(t, sql)
	var heard []string
	for _, n := range c.told() {
		c.site.note(n)
		oneLine(t, n)
		if name := c.site.name(n); name != "progress" { // a summary on a slow machine reports progress
			heard = append(heard, name)
		}
	}
	if got := strings.Join(heard, ", "); got != strings.Join(want, ", ") {
		t.Errorf("%s: told %q, want %q", sql, got, want)
	}
}

// requests checks the texts of the calls that do not wait, and of the summary.
func requests(t *testing.T, s *site) {
	s.Exec(t, `CREATE ROLE asker LOGIN;
		GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean), pg_request_backtrace(int[], boolean) TO asker`)
	boss, asker := s.connect(t, s.User, "postgres"), s.connect(t, "asker", "postgres")
	target := s.idle(t, s.User)
	many := func(n string) string { return "SELECT pg_request_backtrace(array_fill(1, ARRAY[" + n + "]))::text" }

	boss.hears(t, "SELECT pg_request_backtrace(0)::text", "no process")
	boss.hears(t, "SELECT pg_request_backtrace(ARRAY[-1, 0])::text", "no process", "no process")
	boss.fails(t, "too many in one request", many("10001"))
	asker.fails(t, "queue full", many("1001"))
	asker.run(t, "BEGIN READ ONLY")
	asker.fails(t, "read-only", many("1"))
	asker.run(t, "ROLLBACK; SET pg_stat_backtrace.max_frames = '"+strings.Repeat("1", 1000)+"'")
	asker.fails(t, "long settings", many("1"))
	boss.run(t, "SET pg_stat_backtrace.context = '"+strings.Repeat("x", 50_000)+"'")
	boss.fails(t, "long settings", "SELECT pg_get_backtrace(1)")
	boss.run(t, "RESET pg_stat_backtrace.context")
	asker.fails(t, "denied function",
		"SELECT backtrace.enqueue(10, 'request', '{1}', false)::text")

	summary := func(arguments string) string {
		return "SELECT max(count)::text FROM pg_backtrace_summary(" + arguments + ")"
	}
	boss.fails(t, "no such samples", summary("0"))
	boss.fails(t, "no such interval", summary("1, '2 hours'"))
	boss.hears(t, summary("2, '0', '{1}'"), "some not taken")
	boss.hears(t, summary(fmt.Sprintf("2, '0', ARRAY[%d]", target)))
	boss.told()
	boss.text(t, summary(fmt.Sprintf("4, '1 s', ARRAY[%d]", target)))
	heard := boss.told()
	for _, n := range heard {
		boss.site.note(n)
		oneLine(t, n)
	}
	if len(heard) == 0 || boss.site.name(heard[0]) != "progress" {
		t.Errorf("told of a summary that lasts seconds: %v", heard)
	}
}
