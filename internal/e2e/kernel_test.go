package e2e

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// refusals: the kernel does not let the process be traced, or stopped; the answer says which of its rules it is.
//
//nolint:funlen // one story
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
		e := c.fails(t, "traced", ask1(target.pid()))
		if !strings.Contains(e.detail, "(self)") {
			t.Errorf("the tracer has another name: %v", e)
		}
		end()
		works(t, target)
	})
	t.Run("asleep in the kernel", func(t *testing.T) {
		needPreload(t)
		target := s.connect(t, "plain", "postgres")
		signal(t, target.pid(), signalInKernel)
		pgtest.Wait(t, "state D", func() bool { return procState(target.pid()) == "D" })
		c.run(t, "SET pg_stat_backtrace.timeout = 300")
		began := time.Now()
		c.fails(t, "in the kernel", ask1(target.pid()))
		if took := time.Since(began); took < 250*time.Millisecond || took > 3*time.Second {
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
	t.Run("a filter of the worker's system calls", func(t *testing.T) {
		arguments := append([]string{programs.worker}, s.workerArguments(nil)...)
		command := s.AsServerUser(exec.Command(programs.self, arguments...))
		command.Env = append(command.Env, envHelper+"="+helperFilter)
		w := s.launch(t, command)
		s.ready(t, w)
		target := s.connect(t, "plain", "postgres")
		c.fails(t, "seccomp", ask1(target.pid()))
		if got := target.text(t, "SELECT 'works'"); got != "works" {
			t.Error(got)
		}
		_ = w.end(syscall.SIGTERM)
	})
}

// trace has another process trace one until end is called.
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
