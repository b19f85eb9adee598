package worker

import (
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// TestCalibrationDue: plans are compared when a statement has run for some time, when no client runs one, or at last on a server
// that is always busy.
func TestCalibrationDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	session := func(kind, state, application string, age time.Duration) moment.Session {
		start := now.Add(-age)
		return moment.Session{Type: kind, State: state, Application: application, QueryStart: &start}
	}
	const client = "client backend"
	short := session(client, "active", "psql", time.Second)
	waits := short
	waits.Wait = &moment.Wait{}
	for name, c := range map[string]struct {
		sessions []moment.Session
		want     bool
		waited   time.Duration // by the worker, on a host with two processors
	}{
		"nothing runs":                   {[]moment.Session{session("checkpointer", "", "", 0), session(client, "idle", "psql", time.Hour)}, true, 0},
		"an open transaction":            {[]moment.Session{session(client, "idle in transaction", "psql", time.Hour)}, true, 0},
		"short statements":               {[]moment.Session{short, short}, false, 0},
		"a long statement":               {[]moment.Session{short, session(client, "active", "psql", longStatement)}, true, 0},
		"only a worker's own":            {[]moment.Session{session(client, "active", "pg_stat_backtrace worker", time.Second)}, true, 0},
		"a worker's, and one":            {[]moment.Session{session(client, "active", "pg_stat_backtrace worker", time.Hour), short}, false, 0},
		"a statement just now":           {[]moment.Session{session(client, "active", "psql", -time.Second)}, false, 0},
		"for long, both processors busy": {[]moment.Session{short, short}, false, patience},
		"for long, one processor busy":   {[]moment.Session{short, waits}, true, patience},
		"not yet long":                   {[]moment.Session{short, waits}, false, patience - 1},
		"for very long":                  {[]moment.Session{short, short}, true, longPatience},
	} {
		if got := calibrationDue(&moment.Moment{Time: now, Sessions: c.sessions}, c.waited, 2); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
