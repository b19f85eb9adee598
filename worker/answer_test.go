package worker

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/pgcluster"
	"pg_stat_backtrace/worker/spool"
	"pg_stat_backtrace/worker/sqlerror"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	o, err := settings(map[string]string{"max_frames": "7", "timeout": "1500"})
	if err != nil || o.MaxFrames != 7 || o.Deadline != 1500*time.Millisecond {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := settings(nil); err != nil || o.MaxFrames != 0 || o.Deadline != 0 {
		t.Errorf("no settings: %+v, %v", o, err)
	}
	for name, values := range map[string][]string{
		"max_frames": {"0", "-1", "65537", "x", "", "1e3", "99999999999999999999"},
		"timeout":    {"0", "100000", "3s"},
	} {
		for _, value := range values {
			_, err := settings(map[string]string{name: value})
			var f *sqlerror.Fault
			if !errors.As(err, &f) || f.SQLState != sqlerror.InvalidParameterValue ||
				!strings.Contains(f.Message, "pg_stat_backtrace."+name) {
				t.Errorf("%s = %q: %v", name, value, err)
			}
		}
	}
}

// TestAnswer: what only another release's extension asks for is refused.
func TestAnswer(t *testing.T) {
	t.Parallel()
	a := new(Worker).answer(t.Context(), spool.Request{Verb: "tomorrow"})
	if a.Level != "ERROR" || a.SQLState != sqlerror.NotInPrerequisiteState ||
		a.Message != `the pg_stat_backtrace worker cannot "tomorrow"` || !strings.Contains(a.Hint, "same release") {
		t.Errorf("%+v", a)
	}
}

// TestRefusal: of a process that has ended meanwhile, or is about to, it is not said that it runs for no role.
func TestRefusal(t *testing.T) {
	t.Parallel()
	unlisted := authz.Decide(authz.Caller{OID: 10}, 1, authz.Facts{CallerExists: true})
	auxiliary := authz.Decide(authz.Caller{OID: 10}, 1, authz.Facts{CallerExists: true, Found: true})
	start := func() (*exec.Cmd, ptrace.Target) {
		c := exec.CommandContext(t.Context(), "sleep", "100")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		held, err := ptrace.Hold(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(held.Release)
		return c, ptrace.Target{PID: c.Process.Pid, Held: held}
	}
	stays, living := start()
	ends, ending := start()
	for _, tt := range []struct {
		name   string
		err    error
		target ptrace.Target
	}{
		{"allowed", nil, ending},
		{"an auxiliary process", auxiliary, ending},
		{"one that lives", unlisted, living},
		{"one that is not held", unlisted, ptrace.Target{PID: ending.PID}},
	} {
		if got := refusal(tt.err, tt.target); !errors.Is(got, tt.err) || errors.Is(got, ptrace.ErrExited) {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	answer := make(chan error)
	go func() { answer <- refusal(unlisted, ending) }()
	_ = ends.Process.Kill()
	if err := <-answer; !errors.Is(err, ptrace.ErrExited) || failure(ending.PID, err).SQLState != "55000" {
		t.Errorf("one that ends: %v", err)
	}
	_ = ends.Wait()
	if err := refusal(auxiliary, ending); errors.Is(err, ptrace.ErrExited) {
		t.Errorf("an auxiliary process that has ended: %v", err)
	}
	_ = stays.Process.Kill()
	_ = stays.Wait()
}

func TestFailure(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err            error
		level, state   string
		message, other string
	}{
		{
			fmt.Errorf("%w: %w", errNoProcess, pgcluster.ErrNotMember), "WARNING", "01000",
			"PID 4711 is not a PostgreSQL server process", "",
		},
		{postmaster(4711), "ERROR", "42501", "the postmaster, process 4711", "No connection is accepted"},
		{
			&authz.Denied{SQLState: "42501", Message: "permission denied", Detail: "D.", Hint: "H."}, "ERROR", "42501",
			"permission denied", "D.",
		},
		{fmt.Errorf("x: %w", ptrace.ErrExited), "ERROR", "55000", "process with PID 4711 has exited", ""},
		{errors.New("surprise in /a/file"), "ERROR", "XX000", "could not capture process with PID 4711", ""},
		{fmt.Errorf("%w: %w", errNoServer, pgcluster.ErrNotRunning), "ERROR", "55000", "the server is shutting down", ""},
	}
	for _, tt := range tests {
		a := failure(4711, tt.err)
		if a.Level != tt.level || a.SQLState != tt.state || !strings.Contains(a.Message, tt.message) ||
			!strings.Contains(a.Detail, tt.other) {
			t.Errorf("%v: %+v", tt.err, a)
		}
		if strings.Contains(a.Message+a.Detail+a.Hint, "/a/file") {
			t.Errorf("the answer tells of files: %+v", a)
		}
	}
}

func TestFatal(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		pgcluster.ErrNotDataDir, pgcluster.ErrWrongUser, pgcluster.ErrNoAccess, &pgcluster.WrongClusterError{},
	} {
		if !fatal(fmt.Errorf("x: %w", err)) {
			t.Errorf("%v is waited for", err)
		}
	}
	for _, err := range []error{pgcluster.ErrNotRunning, pgcluster.ErrNoServer, errors.New("connection refused")} {
		if fatal(err) {
			t.Errorf("%v is not waited for", err)
		}
	}
}
