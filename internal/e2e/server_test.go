package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
)

// servers checks events of the server while the worker continues. (Promotion is in the group of hot standby.)
func servers(t *testing.T, shared *site) {
	s := faulty(t, shared, "restart_after_crash = on", "max_connections = 20")
	w := s.work(t)
	answers := func(t *testing.T) {
		t.Helper()
		target := s.idle(t, "plain")
		stack(t, "superuser", s.connect(t, s.User, "postgres").text(t, ask1(target)))
		plain := s.connect(t, "plain", "postgres")
		pgtest.Wait(t, "the worker has a session again", func() bool {
			got, e := plain.try(t.Context(), ask1(target))
			if e.level != "" && s.name(e) != "unchecked" {
				t.Errorf("meanwhile: %v", e)
			}
			return frame.MatchString(got)
		})
	}
	t.Run("restarted smart, which waits for all sessions to end", func(t *testing.T) {
		answers(t)
		s.leave(t)
		s.Restart("smart")
		answers(t)
	})
	for _, mode := range []string{"fast", "immediate"} {
		t.Run("restarted "+mode, func(t *testing.T) {
			old := s.idle(t, "plain")
			s.Restart(mode)
			answers(t)
			s.connect(t, s.User, "postgres").warns(t, "no process", "NULL", ask1(old))
		})
	}
	t.Run("crashed, and restarted by its postmaster", func(t *testing.T) {
		postmaster, victim, before := s.PostmasterPID(), s.idle(t, "plain"), len(s.Log())
		signal(t, victim, syscall.SIGKILL)
		pgtest.Wait(t, "the server is there again", func() bool {
			if !strings.Contains(s.Log()[before:], "database system is ready to accept connections") {
				return false
			}
			c, err := pgxConnect(t, s.DSN(s.User, "postgres"))
			if err != nil {
				return false
			}
			defer func() { _ = c.Close(t.Context()) }()
			var up bool
			return c.QueryRow(t.Context(), "SELECT true").Scan(&up) == nil
		})
		if s.PostmasterPID() != postmaster {
			t.Error("this was another kind of restart")
		}
		answers(t)
	})
	t.Run("postmaster killed", func(t *testing.T) {
		s.Kill()
		s.Start()
		answers(t)
	})
	t.Run("its data directory moved", func(t *testing.T) {
		old := s.DataDir
		s.Stop("fast")
		s.DataDir = old + " moved"
		if err := os.Rename(old, s.DataDir); err != nil {
			t.Fatal(err)
		}
		s.Start()
		target := s.idle(t, "plain")
		s.connect(t, s.User, "postgres").fails(t, "no worker, for superusers", ask1(target))
		s.connect(t, "plain", "postgres").fails(t, "no worker", ask1(target))
		// (The lock file has moved along, and the first worker holds its lock until it has noticed.)
		pgtest.Wait(t, "the first worker notices", func() bool { return strings.Contains(w.text(), "the spool is lost") })
		next := s.work(t)
		answers(t)
		_ = next.end(syscall.SIGTERM)
		s.Stop("fast")
		if err := os.Rename(s.DataDir, old); err != nil {
			t.Fatal(err)
		}
		s.DataDir = old
		s.Start()
		// The first worker has waited for its directory to come back.
		c, other := s.connect(t, s.User, "postgres"), s.idle(t, "plain")
		pgtest.Wait(t, "the first worker serves again", func() bool {
			got, _ := c.try(t.Context(), ask1(other))
			return frame.MatchString(got)
		})
		answers(t)
	})
	if w.gone() {
		t.Error("the worker has not outlived all of it")
	}
	t.Run("all connection slots taken", func(t *testing.T) {
		_ = w.end(syscall.SIGTERM)
		s.Exec(t, "CREATE ROLE spare LOGIN REPLICATION")
		target, plain := s.idle(t, "plain"), s.connect(t, "plain", "postgres")
		pgtest.Wait(t, "no slot is free", func() bool {
			_, err := pgxConnect(t, s.DSN(s.User, "postgres"))
			return err != nil && strings.Contains(err.Error(), "53300")
		})
		s.launch(t, s.AsServerUser(exec.Command(programs.worker, s.workerArguments([]string{"--fallback-connection", "user=spare"})...)))
		pgtest.Wait(t, "an ordinary role gets a stack", func() bool {
			got, _ := plain.try(t.Context(), ask1(target))
			return frame.MatchString(got)
		})
		s.Stop("fast") // a WAL sender does not delay it
	})
}

// fakeTime is where Debian has the library of package libfaketime.
const fakeTime = "/usr/lib/*/faketime/libfaketime.so.1"

// clocks sets the server's clock back while the worker serves, between calls and during one.
func clocks(t *testing.T, shared *site) {
	found, _ := filepath.Glob(fakeTime)
	if len(found) == 0 {
		t.Skipf("no %s, which gives a server a clock of its own (package libfaketime)", fakeTime)
	}
	clock := filepath.Join(t.TempDir(), "clock")
	set := func(offset string) { // at once: a process that reads an empty file is ended by the library
		t.Helper()
		if err := os.WriteFile(clock+".new", []byte(offset+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(clock+".new", clock); err != nil {
			t.Fatal(err)
		}
	}
	for dir := filepath.Dir(clock); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // the server's user is to read it
			t.Fatal(err)
		}
	}
	set("+0")
	s := start(t, shared.BinDir, pgtest.Options{Env: []string{
		"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + clock, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1",
	}})
	s.record = shared.record
	s.Exec(t, "CREATE ROLE plain LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain")
	w := s.work(t)
	c, target := s.connect(t, "plain", "postgres"), s.idle(t, "plain")
	now := func() time.Time {
		var at time.Time
		if err := c.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, offset := range []time.Duration{0, -time.Hour, time.Hour, -48 * time.Hour, 0} {
		set(fmt.Sprintf("%+d", int(offset.Seconds())))
		if d := time.Until(now()) - offset; d > time.Minute || d < -time.Minute {
			t.Fatalf("the server's clock is not what it was set to: %v", d)
		}
		stack(t, "set by "+offset.String(), c.text(t, ask1(target)))
	}
	// During a call. pg_sleep() uses the wall clock: the call may last longer by the amount by which the clock was
	// set back.
	w.signal(t, syscall.SIGSTOP)
	c.run(t, "SET pg_stat_backtrace.timeout = 2000") // enough for a look at the caller from a new session
	call := c.later(ask1(target))
	s.waits(t, c.pid(), "PgSleep")
	set("-2")
	got := <-call
	if s.name(got.said) != "no answer" || got.took < 2*time.Second || got.took > defaultTimeout {
		t.Errorf("set back by 2 s: %v after %v", got.said, got.took)
	}
	w.signal(t, syscall.SIGCONT)
	stack(t, "afterwards", c.text(t, ask1(target)))
}

// crowds keeps two versions from having hundreds of sessions at the same time.
var crowds sync.Mutex

// crowd makes many calls at the same time. Each gets an answer, or an error that there are too many.
func crowd(t *testing.T, shared *site) {
	crowds.Lock()
	defer crowds.Unlock()
	callers := pgtest.Extent(50, 1000) // 1000 take a minute
	s := faulty(t, shared, fmt.Sprint("max_connections = ", callers+20), "autovacuum = off")
	s.work(t)
	sessions := make([]*session, callers)
	var wait sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range sessions {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			c, err := pgxConnect(t, s.DSN("plain", "postgres"))
			if err != nil {
				t.Errorf("session %d: %v", i, err)
				return
			}
			sessions[i] = &session{Conn: c, site: s}
			_, _ = c.Exec(t.Context(), "SET pg_stat_backtrace.timeout = 99999") // for a machine that has other things to do
		})
	}
	wait.Wait()
	if t.Failed() {
		return
	}
	for name, target := range map[string]func(i int) int{
		"one target":    func(int) int { return s.idle(t, "plain") },
		"one another's": func(i int) int { return sessions[(i+1)%callers].pid() },
	} {
		t.Run(name, func(t *testing.T) {
			first := target(0)
			calls := make([]<-chan outcome, callers)
			for i, c := range sessions {
				pid := first
				if name != "one target" {
					pid = target(i)
				}
				calls[i] = c.later(ask1(pid))
			}
			answered, wrong, worst := 0, 0, outcome{}
			for _, call := range calls {
				switch o := <-call; {
				case frame.MatchString(o.text):
					answered++
				case o.state != "53400":
					wrong, worst = wrong+1, o
				}
			}
			figure.Printf(t, "%d of %d answered, the others told that there are too many", answered, callers)
			if answered == 0 || wrong > 0 {
				t.Errorf("%d were told something else, like %v after %v", wrong, worst.said, worst.took)
			}
		})
	}
	for _, c := range sessions {
		_ = c.Close(t.Context())
	}
}

// leave ends all sessions except the worker's.
func (s *site) leave(t *testing.T) {
	t.Helper()
	c, err := pgxConnect(t, s.DSN(s.User, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	const others = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name NOT LIKE 'pg_stat_backtrace%'`
	var n int
	if err := c.QueryRow(t.Context(), others).Scan(&n); err != nil {
		t.Fatal(err)
	}
}
