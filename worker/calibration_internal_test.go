package worker

import (
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// TestCalibrationDue: plans are compared when a statement has run for some time, or when no client runs one.
func TestCalibrationDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	session := func(kind, state, application string, age time.Duration) moment.Session {
		start := now.Add(-age)
		return moment.Session{Type: kind, State: state, Application: application, QueryStart: &start}
	}
	const client = "client backend"
	short := session(client, "active", "psql", time.Second)
	for name, c := range map[string]struct {
		sessions []moment.Session
		want     bool
	}{
		"nothing runs":         {[]moment.Session{session("checkpointer", "", "", 0), session(client, "idle", "psql", time.Hour)}, true},
		"an open transaction":  {[]moment.Session{session(client, "idle in transaction", "psql", time.Hour)}, true},
		"short statements":     {[]moment.Session{short, short}, false},
		"a long statement":     {[]moment.Session{short, session(client, "active", "psql", longStatement)}, true},
		"only a worker's own":  {[]moment.Session{session(client, "active", "pg_stat_backtrace worker", time.Second)}, true},
		"a worker's, and one":  {[]moment.Session{session(client, "active", "pg_stat_backtrace worker", time.Hour), short}, false},
		"a statement just now": {[]moment.Session{session(client, "active", "psql", -time.Second)}, false},
	} {
		if got := calibrationDue(&moment.Moment{Time: now, Sessions: c.sessions}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
