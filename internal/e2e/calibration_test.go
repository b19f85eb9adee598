package e2e

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestWorkerCalibrates: a fresh worker compares plans with EXPLAIN by itself, and keeps the result. It does not while
// connection slots are scarce. Doctor has the state.
func TestWorkerCalibrates(t *testing.T) {
	t.Parallel()
	s := &site{Server: pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"max_connections = 12", "autovacuum = off"}}), record: &record{}}
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	cache := filepath.Join(filepath.Dir(s.DataDir), "plans cache")
	work := func() *worker {
		t.Helper()
		command := s.AsServerUser(exec.Command(programs.worker, s.workerArguments([]string{"--no-calibrate=false"})...))
		command.Env = append(command.Environ(), "DEBUGINFOD_CACHE_PATH="+cache)
		w := s.launch(t, command)
		s.ready(t, w)
		s.worker = w
		return w
	}
	doctor := func() string {
		out, _ := s.AsServerUser(exec.Command(programs.worker, "doctor", "-D", s.DataDir, s.DSN(s.User, "postgres"))).
			CombinedOutput() // the status depends on the host
		return string(out)
	}
	boss := s.connect(t, s.User, "postgres")
	for range 5 { // of 9 that are not reserved; the worker has one
		s.idle(t, s.User)
	}
	w := work()
	switch text := doctor(); { // the worker begins after ten seconds
	case strings.Contains(w.text(), "plans could not be compared"):
		t.Log("a busy machine: doctor ended after the worker's attempt")
	case !strings.Contains(text, "plans:         not yet compared"):
		t.Errorf("doctor before the comparison:\n%s", text)
	}
	pgtest.Wait(t, "no slot", func() bool { return strings.Contains(w.text(), "plans could not be compared") })
	if text := doctor(); !strings.Contains(text, "no connection slot to spare") || !strings.Contains(text, "The worker tries again at ") {
		t.Errorf("doctor after the failure:\n%s\n%s", text, w.text())
	}
	if err := w.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	boss.run(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	pgtest.Wait(t, "free slots", func() bool {
		return boss.text(t, "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'") == "1"
	})
	before := len(s.Log())
	const sum = "SELECT (temp_bytes / 1024)::text FROM pg_stat_database WHERE datname = 'postgres'"
	spilled := boss.text(t, sum)
	w = work()
	pgtest.Wait(t, "a comparison", func() bool { return strings.Contains(w.text(), "plans are compared with EXPLAIN") })
	if text := doctor(); !strings.Contains(text, "ok    plans:         compared with EXPLAIN for build-id ") {
		t.Errorf("doctor after the comparison:\n%s", text)
	}
	if text := s.Log()[before:]; strings.Contains(text, "ERROR") {
		t.Errorf("the server's log:\n%s", text)
	}
	pgtest.Wait(t, "the end of the worker's sessions", func() bool {
		return boss.text(t, "SELECT count(*)::text FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query ~ 'advisory_unlock|^COMMIT$'") == "0"
	})
	t.Logf("kB in temporary files: %s, then %s", spilled, boss.text(t, sum))
	if text := boss.text(t, "SELECT xact_rollback::text FROM pg_stat_database WHERE datname = 'postgres'"); text != "0" {
		t.Errorf("%s transactions were rolled back", text)
	}
	target := s.connect(t, s.User, "postgres")
	done := make(chan error, 1)
	go func() {
		_, err := target.Exec(t.Context(), "SELECT pg_sleep(600) FROM pg_class")
		done <- err
	}()
	pgtest.Wait(t, "the statement", func() bool {
		return boss.text(t, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
	})
	plan := boss.text(t, "SELECT pg_get_running_plan($1)", target.pid())
	if !strings.Contains(plan, " on pg_class ") || strings.Contains(plan, "Unproven") {
		t.Error(plan)
	}
	// Without the result of its user, a command uses the worker's.
	command := exec.Command(programs.worker, "plan", strconv.Itoa(target.pid()))
	command.Env = append(command.Environ(), "DEBUGINFOD_CACHE_PATH="+t.TempDir())
	if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), " on pg_class ") ||
		strings.Contains(string(out), "Unproven") {
		t.Errorf("%v\n%s", err, out)
	}
	boss.text(t, "SELECT pg_cancel_backend($1)::text", target.pid())
	<-done
}
