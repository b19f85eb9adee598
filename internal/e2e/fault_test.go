package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

// defaultTimeout is the time limit of calls on servers of pgtest. A call that takes longer has ignored a shorter limit.
const defaultTimeout = 30 * time.Second

// faulty starts a server for a group of faults, with a role that has EXECUTE and no more.
func faulty(t *testing.T, shared *site, conf ...string) *site {
	t.Helper()
	s := start(t, shared.BinDir, pgtest.Options{Conf: conf})
	s.record = shared.record
	s.Exec(t, "CREATE ROLE plain LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace, pg_log_backtrace(int) TO plain")
	return s
}

// untouched checks that a process shows no traces of a capture.
func untouched(t *testing.T, pid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
	if !strings.Contains(string(status), "TracerPid:\t0\n") || strings.ContainsAny(procState(pid), "tT") {
		t.Errorf("process %d: state %s\n%.300s", pid, procState(pid), status)
	}
}

// workers checks workers that are absent, ended, restarted, killed, stopped, duplicated, or of another version.
func workers(t *testing.T, shared *site) {
	s := faulty(t, shared)
	boss, plain := s.connect(t, s.User, "postgres"), s.connect(t, "plain", "postgres")
	target := s.idle(t, "plain")
	absent := func(t *testing.T) {
		t.Helper()
		boss.fails(t, "no worker, for superusers", ask1(target))
		plain.fails(t, "no worker", ask1(target))
		untouched(t, target)
	}
	serves := func(t *testing.T) {
		t.Helper()
		stack(t, "superuser", boss.text(t, ask1(target)))
		stack(t, "plain", plain.text(t, ask1(target)))
	}
	t.Run("absent", func(t *testing.T) {
		absent(t)
		boss.hears(t, fmt.Sprintf("SELECT pg_request_backtrace(%d)::text", target), "request without a worker")
		boss.hears(t, fmt.Sprintf("SELECT pg_request_backtrace(ARRAY[%d])::text", target), "requests without a worker")
		boss.run(t, "GRANT EXECUTE ON FUNCTION pg_request_backtrace(int[], boolean) TO plain")
		plain.fails(t, "queue full without a worker", "SELECT pg_request_backtrace(array_fill(1, ARRAY[1001]))::text")
	})
	t.Run("ended in order, and restarted", func(t *testing.T) {
		for range 3 {
			w := s.work(t)
			serves(t)
			if err := w.end(syscall.SIGTERM); err != nil || exists(s.pidPath()) {
				t.Errorf("end: %v; pid file there: %v", err, exists(s.pidPath()))
			}
			absent(t)
		}
	})
	t.Run("killed before", func(t *testing.T) {
		w := s.work(t)
		_ = w.end(syscall.SIGKILL)
		if !exists(s.pidPath()) {
			t.Error("a killed worker leaves its pid file")
		}
		absent(t)
	})
	t.Run("killed during", func(t *testing.T) {
		w := s.work(t)
		old := s.spool(t)
		w.signal(t, syscall.SIGSTOP) // so that the call waits
		call := plain.later(ask1(target))
		s.waits(t, plain.pid(), "PgSleep")
		_ = w.Process.Signal(syscall.SIGKILL)
		if got := <-call; s.name(got.said) != "no worker" {
			t.Error(got.said)
		}
		_ = w.end(syscall.SIGKILL)
		absent(t)
		w = s.work(t)
		if exists(old) {
			t.Error("the next worker leaves the old spool directory")
		}
		serves(t)
		_ = w.end(syscall.SIGTERM)
	})
	t.Run("killed in the midst of captures", func(t *testing.T) {
		for range 3 {
			w := s.work(t)
			loop := boss.later(fmt.Sprintf("SELECT count(pg_get_backtrace(%d))::text FROM generate_series(1, 1000000)", target))
			pgtest.Wait(t, "captures", func() bool { return strings.Count(w.text(), `"verb":"get"`) > 20 })
			_ = w.end(syscall.SIGKILL)
			if got := <-loop; s.name(got.said) != "no worker, for superusers" {
				t.Errorf("%v %s", got.said, got.text)
			}
			untouched(t, target)
		}
		absent(t)
	})
	t.Run("a recycled PID", func(t *testing.T) { s.recycled(t, absent) })
	t.Run("has read the server's program before it is asked", func(t *testing.T) { s.learned(t) })
	t.Run("stopped", func(t *testing.T) { s.stopped(t, target) })
	t.Run("two", func(t *testing.T) {
		s.work(t)
		second := s.launch(t, s.AsServerUser(exec.Command(programs.worker, s.workerArguments(nil)...)))
		pgtest.Wait(t, "the second worker ends", second.gone)
		if err := second.end(syscall.SIGTERM); err == nil || !strings.Contains(second.text(), "another worker") {
			t.Errorf("%v: %s", err, second.text())
		}
		serves(t)
		_ = s.worker.end(syscall.SIGTERM)
	})
	t.Run("a hangup, and a log without a reader", func(t *testing.T) { s.survives(t, serves) })
	t.Run("no session of its own", func(t *testing.T) { s.blind(t, target) })
	t.Run("another version", func(t *testing.T) {
		s.ready(t, s.launch(t, s.AsServerUser(exec.Command(programs.other, s.workerArguments(nil)...))))
		boss.fails(t, "other version", ask1(target))
		plain.fails(t, "other version", "SELECT pg_log_backtrace(1)::text")
	})
}

// survives checks a worker whose terminal is closed, and one whose log has lost its reader.
func (s *site) survives(t *testing.T, serves func(*testing.T)) {
	w := s.work(t)
	w.signal(t, syscall.SIGHUP)
	serves(t)
	if err := w.end(syscall.SIGTERM); err != nil {
		t.Errorf("after a hangup: %v", err)
	}
	r, log, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := s.AsServerUser(exec.Command(programs.worker, s.workerArguments(nil)...))
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	w = &worker{Cmd: command}
	defer func() { _ = w.end(syscall.SIGKILL) }()
	_ = log.Close()
	for lines := bufio.NewScanner(r); ; { // without a session it does not answer other roles
		if !lines.Scan() {
			t.Fatal("the worker has no session: ", lines.Err())
		}
		if strings.Contains(lines.Text(), `"connected"`) {
			break
		}
	}
	pgtest.Wait(t, "the worker serves", func() bool {
		lines := s.pidFile()
		return len(lines) > 1 && lines[1] == strconv.Itoa(command.Process.Pid)
	})
	_ = r.Close()
	for range 3 {
		serves(t)
	}
	if err := w.end(syscall.SIGTERM); err != nil {
		t.Errorf("without a reader of its log: %v", err)
	}
}

// blind checks a worker that cannot log in. It answers superusers, and gives other roles the reason in an error.
func (s *site) blind(t *testing.T, target int) {
	arguments := []string{"worker", "-D", s.DataDir, s.DSN("nobody", "postgres")}
	w := s.launch(t, s.AsServerUser(exec.Command(programs.worker, arguments...)))
	pgtest.Wait(t, "the worker serves", func() bool {
		return exists(s.pidPath()) && strings.Contains(w.text(), `"ready"`)
	})
	boss, plain := s.connect(t, s.User, "postgres"), s.connect(t, "plain", "postgres")
	stack(t, "superuser", boss.text(t, ask1(target)))
	plain.fails(t, "unchecked", ask1(target))
	_ = w.end(syscall.SIGTERM)
}

// learned checks that a worker holds open the files for reading stacks before the first request.
func (s *site) learned(t *testing.T) {
	w := s.work(t)
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.PostmasterPID()))
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the worker has the server's program", func() bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.Process.Pid))
		return slices.ContainsFunc(files, func(file string) bool {
			to, _ := os.Readlink(file)
			return to == program
		})
	})
	untouched(t, s.PostmasterPID())
	_ = w.end(syscall.SIGTERM)
}

// recycled checks a killed worker whose pid file names a process that now is another one.
func (s *site) recycled(t *testing.T, absent func(*testing.T)) {
	w := s.work(t)
	_ = w.end(syscall.SIGKILL)
	lines := s.pidFile()
	other := s.AsServerUser(exec.Command("/bin/sleep", "600"))
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	lines[1] = strconv.Itoa(other.Process.Pid)
	if err := os.WriteFile(s.pidPath(), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	absent(t)
	next := s.work(t)
	stack(t, "the next worker takes over", s.connect(t, "plain", "postgres").text(t, ask1(s.idle(t, "plain"))))
	_ = next.end(syscall.SIGTERM)
}

// stopped checks a worker under SIGSTOP. The call must return at its deadline, and at once when it is cancelled.
func (s *site) stopped(t *testing.T, target int) {
	w := s.work(t)
	w.signal(t, syscall.SIGSTOP)
	c := s.connect(t, "plain", "postgres")
	c.run(t, "SET pg_stat_backtrace.timeout = 300")
	began := time.Now()
	c.fails(t, "no answer", ask1(target))
	if took := time.Since(began); took < 1300*time.Millisecond || took > defaultTimeout {
		t.Errorf("a deadline of 0.3 s and 1 s for the worker: %v", took)
	}
	c.run(t, "RESET pg_stat_backtrace.timeout")
	hurried := s.connect(t, "plain", "postgres") // on a busy machine, RESET may take longer than this limit
	hurried.run(t, "SET statement_timeout = 200")
	if _, e := hurried.try(t.Context(), ask1(target)); s.name(e) != "canceled by timeout" {
		t.Error(e)
	}
	call := c.later(ask1(target))
	s.waits(t, c.pid(), "PgSleep")
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	if err := c.PgConn().CancelRequest(ctx); err != nil {
		t.Fatal(err)
	}
	got := <-call
	if s.name(got.said) != "canceled by user" {
		t.Error(got.said)
	}
	if i := strings.LastIndex(got.where, "\nPL/pgSQL function public."); i >= 0 &&
		strings.Contains(got.where[:i], "PL/pgSQL function backtrace.") {
		got.where = got.where[i+1:] // it came while the call did not sleep but look for its answer
	}
	oneLine(t, got.said)
	victim := s.connect(t, "plain", "postgres")
	lost := victim.later(ask1(target))
	s.waits(t, victim.pid(), "PgSleep")
	s.Exec(t, fmt.Sprintf("SELECT pg_terminate_backend(%d)", victim.pid()))
	if got := <-lost; got.state != "57P01" {
		t.Errorf("terminated: %v", got.said)
	}
	handle := c.text(t, fmt.Sprintf("SELECT backtrace.ask(0, 'get', ARRAY[%d])::text", target))
	w.signal(t, syscall.SIGCONT)
	stack(t, "it continues", c.text(t, ask1(target)))
	s.useless(t, handle, c)
	pgtest.Wait(t, "no request is left in the spool", func() bool { // (lost answers go after 30 s)
		left, _ := filepath.Glob(s.spool(t) + "/*.req")
		return len(left) == 0
	})
	untouched(t, target)
	_ = w.end(syscall.SIGTERM)
}

// useless checks that a waiting call of the inner function gets its answer only in the same statement of the same
// session. Anywhere else it is an ordinary request, here about a process that does not belong to the server.
func (s *site) useless(t *testing.T, handle string, c *session) {
	t.Helper()
	if !strings.HasPrefix(handle, "{wait,") {
		t.Fatalf("no worker has answered, and the call says %s", handle)
	}
	pgtest.Wait(t, "its answer is there", func() bool {
		answers, _ := filepath.Glob(s.spool(t) + "/*.rep")
		return slices.ContainsFunc(answers, func(path string) bool {
			answer, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(answer), "PostgresMain")
		})
	})
	const again = "SELECT backtrace.ask(0, 'get', '{1}', $1::text[])::text"
	ordinary := regexp.MustCompile(`^\{(wait|WARNING|ERROR,55000),`)
	for name, c := range map[string]*session{
		"a later statement": c, "another session": s.connect(t, "plain", "postgres"),
		"a superuser": s.connect(t, s.User, "postgres"),
	} {
		got := c.text(t, again, handle)
		if strings.Contains(got, "PostgresMain") || !ordinary.MatchString(got) {
			t.Errorf("in %s: %s", name, got)
		}
		for _, forged := range []string{
			`{wait,-Infinity,-Infinity,0,00000000-0000-0000-0000-000000000000,x}`, `{wait,NaN,NaN,NaN}`, `{wait,1e300}`,
			`{wait,NULL,NULL,NULL,NULL,NULL}`, `{NULL}`, `{wait,0,0,Infinity}`,
		} {
			if got := c.text(t, again, forged); !ordinary.MatchString(got) {
				t.Errorf("in %s, with %s: %s", name, forged, got)
			}
		}
		for _, forged := range []string{`{wait,0,0,0,../../../etc/passwd,x}`, `{wait,x}`} {
			if got, e := c.try(t.Context(), again, forged); e.state != "22P02" {
				t.Errorf("in %s, with %s: %s %v", name, forged, got, e)
			}
		}
	}
}

// spools checks a worker whose directory is removed, moved, not writable, or full.
func spools(t *testing.T, shared *site) {
	s := faulty(t, shared)
	boss, plain := s.connect(t, s.User, "postgres"), s.connect(t, "plain", "postgres")
	target := s.idle(t, "plain")
	s.work(t)
	works := func(t *testing.T) {
		t.Helper()
		pgtest.Wait(t, "the worker serves again", func() bool {
			got, e := plain.try(t.Context(), ask1(target))
			if e.level != "" && s.name(e) != "not now" && s.name(e) != "no answer" {
				t.Errorf("meanwhile: %v", e)
			}
			return e.level == "" && frame.MatchString(got)
		})
		stack(t, "again", boss.text(t, ask1(target)))
	}
	t.Run("removed", func(t *testing.T) {
		if err := os.RemoveAll(s.spool(t)); err != nil {
			t.Fatal(err)
		}
		works(t)
	})
	t.Run("moved", func(t *testing.T) {
		path := s.spool(t)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(path + ".away") }()
		works(t)
	})
	t.Run("gone while the worker is stopped", func(t *testing.T) {
		path := s.spool(t)
		s.worker.signal(t, syscall.SIGSTOP)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		plain.fails(t, "not now", ask1(target))
		boss.fails(t, "not now", ask1(target))
		_ = os.RemoveAll(path + ".away")
		s.worker.signal(t, syscall.SIGCONT)
		works(t)
	})
	t.Run("not writable", func(t *testing.T) { s.unwritable(t, plain, target); works(t) })
	t.Run("pid file removed", func(t *testing.T) {
		s.worker.signal(t, syscall.SIGSTOP) // it would write the file again
		if err := os.Remove(s.pidPath()); err != nil {
			t.Fatal(err)
		}
		plain.fails(t, "no worker", ask1(target))
		s.worker.signal(t, syscall.SIGCONT)
		pgtest.Wait(t, "the worker writes it again", func() bool { return exists(s.pidPath()) })
		works(t)
	})
	_ = s.worker.end(syscall.SIGTERM)
	t.Run("full", func(t *testing.T) { s.full(t, target) })
	t.Run("read-only", func(t *testing.T) { s.readOnly(t, target) })
}

// unwritable checks a directory whose mode forbids writing. A running worker notices this at once. A request that
// discovers it first fails with PostgreSQL's own error, which names a link. From 17 on, it gives the same error as
// later requests. Before 17, PL/pgSQL cannot catch an error in parallel mode.
func (s *site) unwritable(t *testing.T, plain *session, target int) {
	path := s.spool(t)
	s.worker.signal(t, syscall.SIGSTOP)
	if err := os.Chmod(path, 0o500); err != nil {
		t.Fatal(err)
	}
	got, e := plain.try(t.Context(), ask1(target))
	if s.Major >= 17 && s.name(e) != "not now" || e.level == "" {
		t.Errorf("%v %s", e, got)
	}
	if strings.Contains(e.String()+e.where, path) {
		t.Errorf("the error contains the path: %v", e)
	}
	s.worker.signal(t, syscall.SIGCONT)
	pgtest.Wait(t, "the worker makes a new directory", func() bool { return exists(s.pidPath()) && s.spool(t) != path })
	_ = os.RemoveAll(path)
}

// mount makes a small file system for the server's user; only root can. It is unmounted with the test.
func (s *site) mount(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root, who alone may mount a file system to fill up")
	}
	dir, err := os.MkdirTemp(programs.dir, "fs") // the server's user cannot enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	uid, gid := s.OSUser()
	options := fmt.Sprintf("size=%s,mode=0700,uid=%d,gid=%d", size, uid, gid)
	if err := unix.Mount("pg_stat_backtrace", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no right to mount a file system to fill up: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func (s *site) full(t *testing.T, target int) {
	fs := s.mount(t, "512k")
	w := s.work(t, "--spool-dir", fs)
	c, plain := s.connect(t, s.User, "postgres"), s.connect(t, "plain", "postgres")
	stack(t, "a small spool", c.text(t, ask1(target)))
	w.signal(t, syscall.SIGSTOP) // fills up before the worker notices
	fill, err := os.Create(fs + "/fill")
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	_ = fill.Close()
	call := c.later(ask1(target)) // whatever its result, it ends
	w.signal(t, syscall.SIGCONT)
	pgtest.Wait(t, "calls are told", func() bool {
		_, e := plain.try(t.Context(), ask1(target))
		return s.name(e) == "not now"
	})
	<-call
	plain.fails(t, "not now", ask1(target))
	if err := os.Remove(fs + "/fill"); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "there is room again", func() bool {
		got, _ := plain.try(t.Context(), ask1(target))
		return frame.MatchString(got)
	})
	_ = w.end(syscall.SIGTERM)
}

func (s *site) readOnly(t *testing.T, target int) {
	fs := s.mount(t, "1m")
	w := s.work(t, "--spool-dir", fs)
	plain := s.connect(t, "plain", "postgres")
	stack(t, "to begin with", plain.text(t, ask1(target)))
	pgtest.Wait(t, "no process is writing", func() bool {
		err := unix.Mount("", fs, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		if err != nil && !errors.Is(err, unix.EBUSY) { // busy: a process has a file open for writing
			t.Fatal(err)
		}
		return err == nil
	})
	pgtest.Wait(t, "calls fail", func() bool {
		_, e := plain.try(t.Context(), ask1(target))
		return e.level != ""
	})
	if _, e := plain.try(t.Context(), ask1(target)); e.level == "" {
		t.Error("a call succeeds")
	}
	if err := unix.Mount("", fs, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "it can be written again", func() bool {
		got, _ := plain.try(t.Context(), ask1(target))
		return frame.MatchString(got)
	})
	_ = w.end(syscall.SIGTERM)
}
