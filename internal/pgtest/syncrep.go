package pgtest

import (
	"sync/atomic"
	"testing"
)

// RequireStandby makes commits wait for the synchronous standby of this name. The setting takes effect only when the
// checkpointer has changed shared memory, maybe long after sessions have read the setting. So RequireStandby returns
// when a commit has waited. Until then, the standby must not confirm commits with this value of synchronous_commit.
func (s *Server) RequireStandby(t testing.TB, name, synchronousCommit string) {
	t.Helper()
	control, session := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + name + "'", "SELECT pg_reload_conf()"} {
		if _, err := control.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var waited atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := session.Exec(t.Context(), "SET synchronous_commit = "+synchronousCommit)
		for err == nil && !waited.Load() {
			_, err = session.Exec(t.Context(), "SELECT lo_create(0)")
		}
	}()
	pid := session.PgConn().PID()
	Wait(t, "a commit that waits for the standby", func() bool {
		var waits bool
		err := control.QueryRow(t.Context(), "SELECT wait_event IS NOT DISTINCT FROM 'SyncRep' FROM pg_stat_activity WHERE pid = $1",
			pid).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
	waited.Store(true)
	if _, err := control.Exec(t.Context(), "SELECT pg_cancel_backend($1)", pid); err != nil {
		t.Fatal(err)
	}
	<-ended
}
