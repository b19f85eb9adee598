package e2e

import (
	"bufio"
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// refusals checks targets that the kernel does not allow to trace or to stop. The answer must name the kernel's rule.
func refusals(t *testing.T, shared *site) {
	s := start(t, shared.BinDir, pgtest.Options{Env: preloaded()})
	s.record = shared.record
	s.Exec(t, "CREATE ROLE plain LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain")
	s.work(t)
	c := s.connect(t, "plain", "postgres")
	works := func(t *testing.T, x *session) {
		t.Helper()
		untouched(t, x.pid())
		if got := x.text(t, "SELECT 'works'"); got != "works" {
			t.Error(got)
		}
		stack(t, "again", c.text(t, ask1(x.pid())))
	}
	t.Run("another tracer", func(t *testing.T) {
		target := s.connect(t, "plain", "postgres")
		end := s.trace(t, target.pid())
		unstopped(t, "traced by process", "(self)", c.text(t, ask1(target.pid())))
		end()
		works(t, target)
	})
	t.Run("asleep in the kernel", func(t *testing.T) {
		needPreload(t)
		target := s.connect(t, "plain", "postgres")
		signal(t, target.pid(), signalInKernel)
		pgtest.Wait(t, "state D", func() bool { return procState(target.pid()) == "D" })
		c.run(t, "SET pg_stat_backtrace.timeout = 300")
		var got string
		var took time.Duration
		pgtest.Wait(t, "an answer in time", func() bool { // beside hundreds of other callers it may take longer
			began := time.Now()
			answer, e := c.try(t.Context(), ask1(target.pid()))
			got, took = answer, time.Since(began)
			return e.level == ""
		})
		unstopped(t, "in uninterruptible sleep", "[in kernel: ", got)
		if took < 250*time.Millisecond || took > defaultTimeout {
			t.Errorf("a timeout of 300 ms: %v", took)
		}
		c.run(t, "RESET pg_stat_backtrace.timeout")
		for _, child := range children(target.pid()) {
			signal(t, child, syscall.SIGKILL)
		}
		works(t, target)
	})
	t.Run("undumpable", func(t *testing.T) {
		needPreload(t)
		target := s.connect(t, "plain", "postgres")
		signal(t, target.pid(), signalUndumpable)
		pgtest.Wait(t, "the refusal", func() bool {
			_, e := c.try(t.Context(), ask1(target.pid()))
			return e.level != ""
		})
		c.fails(t, "undumpable", ask1(target.pid()))
		if got := target.text(t, "SELECT 'works'"); got != "works" {
			t.Error(got)
		}
	})
	_ = s.worker.end(syscall.SIGTERM)
	t.Run("a filter of the worker's system calls", func(t *testing.T) { s.filtered(t, c) })
}

// unstopped checks an answer about a process that could not be stopped. It must contain the stack and the reason.
func unstopped(t *testing.T, reason, more, got string) {
	t.Helper()
	stack(t, reason, got)
	first, _, _ := strings.Cut(got, "\n")
	if !strings.Contains(first, "[not stopped: "+reason) || !strings.Contains(first, more) {
		t.Errorf("the first line contains neither %q nor %q: %s", reason, more, first)
	}
}

// filtered checks a worker that may not trace or sample. It reads sleeping processes without a stop, and cannot read
// running processes.
func (s *site) filtered(t *testing.T, c *session) {
	arguments := append([]string{programs.worker}, s.workerArguments(nil)...)
	command := s.AsServerUser(exec.Command(programs.self, arguments...))
	command.Env = append(command.Env, envHelper+"="+helperFilter)
	w := s.launch(t, command)
	s.ready(t, w)
	target := s.connect(t, "plain", "postgres")
	pgtest.Wait(t, "an answer about a process that sleeps", func() bool { // which it may not do yet, after it has connected
		_, e := c.try(t.Context(), ask1(target.pid()))
		return e.level == ""
	})
	stack(t, "asleep, by default", c.text(t, ask1(target.pid())))
	c.run(t, "SET pg_stat_backtrace.threads = on")
	c.fails(t, "seccomp", ask1(target.pid()))
	c.run(t, "RESET pg_stat_backtrace.threads")

	c.run(t, "SET pg_stat_backtrace.nonstop = on")
	got := c.text(t, ask1(target.pid()))
	stack(t, "asleep", got)
	if !strings.Contains(got, "[not stopped, engine blocked]") {
		t.Errorf("asked for no stop:\n%s", got)
	}
	c.run(t, "SET pg_stat_backtrace.timeout = 500")
	busy := target.later("SELECT count(*)::text FROM generate_series(1, 1000000000000)")
	pgtest.Wait(t, "state R", func() bool { return procState(target.pid()) == "R" })
	pgtest.Wait(t, "a moment when it does not sleep", func() bool { // it may write to its temporary file
		_, e := c.try(t.Context(), ask1(target.pid()))
		return s.name(e) == "no sampling"
	})
	c.run(t, "RESET pg_stat_backtrace.nonstop")
	end := s.trace(t, target.pid())
	pgtest.Wait(t, "the same of a traced process", func() bool {
		_, e := c.try(t.Context(), ask1(target.pid()))
		return s.name(e) == "traced"
	})
	end()
	c.run(t, "RESET pg_stat_backtrace.timeout")

	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	if err := target.PgConn().CancelRequest(ctx); err != nil {
		t.Fatal(err)
	}
	if got := <-busy; s.name(got.said) != "canceled by user" {
		t.Error(got.said)
	}
	if got := target.text(t, "SELECT 'works'"); got != "works" {
		t.Error(got)
	}
	_ = w.end(syscall.SIGTERM)
}

// trace makes another process trace a process until end is called.
func (s *site) trace(t *testing.T, pid int) (end func()) {
	t.Helper()
	command := s.AsServerUser(exec.Command(programs.self, strconv.Itoa(pid)))
	command.Env = append(command.Env, envHelper+"="+helperTracer)
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "<nil>\n" {
		t.Fatalf("the tracer says %q, %v", line, err)
	}
	return func() {
		_ = in.Close()
		_ = command.Wait()
	}
}
