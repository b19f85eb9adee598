package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// fakeProc is a folder that stands for /proc, with the links of some processes.
type fakeProc struct {
	*testing.T

	dir string
}

// shows adds a process with its program and directory.
func (f fakeProc) shows(pid int, exe, cwd string) {
	f.Helper()
	dir := filepath.Join(f.dir, strconv.Itoa(pid))
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink(exe, filepath.Join(dir, "exe")),
		os.Symlink(cwd, filepath.Join(dir, "cwd"))); err != nil {
		f.Fatal(err)
	}
}

// newest sets the newest process id.
func (f fakeProc) newest(pid int) {
	f.Helper()
	text := fmt.Sprintf("0.00 0.01 0.05 1/100 %d\n", pid)
	if err := os.WriteFile(filepath.Join(f.dir, "loadavg"), []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

// child starts a process that does nothing.
func child(t *testing.T) int {
	t.Helper()
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	return command.Process.Pid
}

// TestLooksAtNewProcessesOnly: a look examines new processes, young ones that may run another program now, and none if
// no process was started. All processes are examined now and then.
func TestLooksAtNewProcessesOnly(t *testing.T) {
	t.Parallel()
	f := fakeProc{t, t.TempDir()}
	old, young := child(t), child(t)
	if young < old {
		t.Skip("process ids have just begun anew")
	}
	s := newScanner(Config{Proc: f.dir, Interval: time.Second}.withDefaults())
	now := time.Unix(1000, 0)
	look := func(wait time.Duration, examined bool, candidates int) {
		t.Helper()
		now = now.Add(wait)
		s.nextLook = time.Time{} // whatever the last look has cost on a crowded host
		got, err := s.look(now)
		if err != nil || got != examined || len(s.found) != candidates {
			t.Errorf("looked: %v, not %v; %d candidates, not %d: %v", got, examined, len(s.found), candidates, err)
		}
	}
	f.newest(old)
	f.shows(old, "/usr/bin/sleep", "/data/old")
	look(0, true, 0)
	s.nextFull = now.Add(time.Minute)
	look(time.Second, false, 0)
	f.newest(young)
	f.shows(young, "/usr/bin/sh", "/data/young")
	look(time.Second, true, 0)
	exe := filepath.Join(f.dir, strconv.Itoa(young), "exe")
	if err := errors.Join(os.Remove(exe), os.Symlink("/usr/bin/postgres", exe)); err != nil {
		t.Fatal(err)
	}
	look(time.Second, true, 1)
	look(youngLooks*time.Second, true, 1)
	look(time.Second, false, 1)
	exe = filepath.Join(f.dir, strconv.Itoa(old), "exe")
	if err := errors.Join(os.Remove(exe), os.Symlink("/usr/bin/postgres", exe)); err != nil {
		t.Fatal(err)
	}
	look(time.Second, false, 1)
	look(time.Minute, true, 2)
	if err := os.RemoveAll(filepath.Join(f.dir, strconv.Itoa(old))); err != nil {
		t.Fatal(err)
	}
	look(time.Minute, true, 1)
	s.forget(young)
	if len(s.found) != 0 || s.ofUser[os.Geteuid()] != 0 {
		t.Errorf("%v, %v", s.found, s.ofUser)
	}
}

// TestCandidatesAreBounded: of a user with very many processes some are left out, of other users none.
func TestCandidatesAreBounded(t *testing.T) {
	t.Parallel()
	s := newScanner(Config{}.withDefaults())
	const impostor, postgres = 1000, 26
	for pid := range 100_000 {
		s.add(Process{PID: pid, Account: impostor})
	}
	if n := len(s.found); n != maxCandidatesOfUser || s.left != 100_000-n {
		t.Errorf("%d candidates, %d left out", n, s.left)
	}
	for account := range 1000 {
		for pid := range 20 {
			s.add(Process{PID: 1_000_000 + 100*account + pid, Account: 10_000 + account})
		}
	}
	if n := len(s.found); n > maxCandidates {
		t.Errorf("%d candidates of many accounts", n)
	}
	s = newScanner(Config{}.withDefaults())
	for pid := range 100_000 {
		s.add(Process{PID: pid, Account: impostor})
	}
	s.add(Process{PID: 4711 << 10, Account: postgres})
	if s.ofUser[postgres] != 1 {
		t.Error("a server of another user is left out")
	}
}

func TestIsServerName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"postgres": true, "postmaster": true, ".postgres-wrapped": true, ".postgres-wrapp": true,
		"postgres_exporter": false, "bash": false, "ld-linux-x86-64.so.2": false,
	} {
		if got := isServerName(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestServerOfAnyName: a server whose program has another name gets a worker, and its children get none. Here the
// dynamic loader is the program.
func TestServerOfAnyName(t *testing.T) {
	loaders, err := filepath.Glob("/lib*/ld-linux*.so.*")
	if err != nil || len(loaders) == 0 {
		t.Skip("no dynamic loader: ", err)
	}
	bin := pgtest.BinDir(t)
	s := pgtest.Start(t, bin, pgtest.Options{Stopped: true})
	postgres := filepath.Join(bin, "postgres")
	server := s.AsServerUser(exec.Command(loaders[0], "--argv0", postgres, postgres, "-D", s.DataDir))
	server.Dir = "/"
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Signal(os.Interrupt); _ = server.Wait() })
	log, _ := serve(t, Config{Below: []string{s.DataDir}}, untilEOF...)
	pgtest.Wait(t, "a worker", func() bool { return log.count("started a worker") == 1 })
	pgtest.Wait(t, "children", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", server.Process.Pid))
		return err == nil && len(children) > 0
	})
	found, _, err := scan(Config{Below: []string{s.DataDir}})
	if err != nil || len(found) != 1 || !found[0].Unnamed || found[0].PID != server.Process.Pid {
		t.Errorf("%+v, %v", found, err)
	}
	if n := log.count("no worker for this process"); n != 0 {
		t.Errorf("%d lines about other processes", n)
	}
}

// TestWatch: the end of a process is noticed without a look.
func TestWatch(t *testing.T) {
	t.Parallel()
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	stat, err := process.ReadStat(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	s := newSupervisor(Config{Log: zerolog.Nop()})
	k := key{stat.PID, stat.StartTime}
	end := s.watch(t.Context(), k)
	if end == nil {
		t.Skip("the kernel has no descriptors of processes")
	}
	defer end()
	select {
	case e := <-s.events:
		t.Fatalf("%+v", e)
	default:
	}
	_ = command.Process.Kill()
	select {
	case e := <-s.events:
		if !e.left || e.key != k {
			t.Errorf("%+v", e)
		}
	case <-time.After(time.Minute):
		t.Error("the end was not noticed")
	}
	_ = command.Wait()
	if !hasEnded(k) {
		t.Error("the process has not ended")
	}
}
