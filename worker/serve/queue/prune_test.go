package queue_test

import (
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// rowsOf counts the rows of a role that are left.
const rowsOf = "SELECT count(*) FROM backtrace.request WHERE caller = $1::regrole"

// TestPruneKeepsOtherRoles checks that a role that floods the table loses its own rows, in number and in size. Other
// roles must keep their few rows.
func TestPruneKeepsOtherRoles(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		run(t, c, `CREATE ROLE quiet; CREATE ROLE large; CREATE ROLE loud; CREATE ROLE old;
			CREATE FUNCTION pg_temp.add(who regrole, n int, kind text, stack text, age interval) RETURNS void
			LANGUAGE sql AS $$
				INSERT INTO backtrace.request (kind, verb, state, caller, caller_name, pid, requested_at, finished_at,
					backtrace)
				SELECT kind, 'get', 'done', who, who::text::name, 1, now() - age, now(), stack FROM generate_series(1, n)
			$$;
			ALTER TABLE backtrace.request ALTER backtrace SET STORAGE EXTERNAL;
			SELECT pg_temp.add('quiet', 3, 'queued', repeat('x', 9000), '1 hour'),
				pg_temp.add('large', 200, 'queued', repeat('y', 800000), '30 minutes'),
				pg_temp.add('old', 4, 'waiting', NULL, '8 days'),
				pg_temp.add('loud', 5000, 'waiting', NULL, '1 second')`)
		s.work(t, "PGSB_KEEP_ROWS=500")
		pgtest.Wait(t, "rows are removed", func() bool { return value[int64](t, c, rowsOf, "loud") < 5000 })
		pgtest.Wait(t, "all that is over is removed", func() bool {
			return value[int64](t, c, "SELECT count(*) FROM backtrace.request") < 500
		})
		loud, large := value[int64](t, c, rowsOf, "loud"), value[int64](t, c, rowsOf, "large")
		for role, want := range map[string]int64{"quiet": 3, "old": 0} {
			if got := value[int64](t, c, rowsOf, role); got != want {
				t.Errorf("%d rows of role %s are left, want %d", got, role, want)
			}
		}
		// A stack of 800,000 bytes counts 98 times, so two of them fit into the half that is left for each of the others.
		if large != 2 || loud < 200 || loud > 500 {
			t.Errorf("%d rows of role large and %d of role loud are left", large, loud)
		}
		if newest := value[bool](t, c, `SELECT max(id) = max(id) FILTER (WHERE caller = 'loud'::regrole)
			FROM backtrace.request`); !newest {
			t.Error("the newest row is not left")
		}
	})
}
