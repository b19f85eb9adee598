package ptrace

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestDumping captures a crashed process while it writes its core file to a slow program. The process must not be
// stopped, its stack must be read without a stop, and the core file must be complete. The test must be enabled
// explicitly, because the kernel has one setting for all core files.
func TestDumping(t *testing.T) {
	if os.Getenv("PGSB_TEST_CORES") == "" {
		t.Skip("PGSB_TEST_CORES is not set: it changes kernel.core_pattern while it runs")
	}
	core, goOn := slowCores(t)
	cmd := startTarget(t, "heavy", "8").Cmd // a pipe takes up to 1 MB at once, where pages have 64 KB
	untilState(t, cmd.Process.Pid, 'S')
	if err := cmd.Process.Signal(syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	dumping := func() bool {
		stat, err := process.ReadStat(cmd.Process.Pid)
		return err == nil && stat.Dumping() && stat.State == 'S'
	}
	until(t, "it feeds its core file to the program", dumping)
	target := anyTarget(cmd.Process.Pid)
	for _, o := range []snapshot.Options{{}, {AllThreads: true}} {
		if _, err := Capture(t.Context(), target, o); !errors.Is(err, ErrDumping) {
			t.Errorf("%+v: %v", o, err)
		}
		snap, err := observe.Observe(t.Context(), target, o)
		if err != nil || snap.Engine != snapshot.EngineBlocked || len(snap.Threads[0].Stack.Data) == 0 {
			t.Errorf("%+v: %+v, %v", o, snap, err)
		}
	}
	another := process.Target{PID: target.PID, StartTime: 1, UID: -1}
	if _, err := Capture(t.Context(), another, snapshot.Options{Deadline: patience}); !errors.Is(err, process.ErrRecycled) {
		t.Errorf("another process than that one: %v", err)
	}
	checkDetached(t, target.PID)
	if !dumping() {
		t.Error("it does not feed it any more")
	}
	goOn()
	_ = cmd.Wait()
	until(t, "the core file is there", func() bool { _, err := os.Stat(core); return err == nil })
	checkCore(t, core)
}

// slowCores makes the kernel write core files, for the duration of the test, to a program that reads them only after
// goOn is called. They then go to the file core.
func slowCores(t *testing.T) (core string, goOn func()) {
	t.Helper()
	const setting = "/proc/sys/kernel/core_pattern"
	dir := t.TempDir()
	gate, script := filepath.Join(dir, "gate"), filepath.Join(dir, "take")
	core = filepath.Join(dir, "core")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	text := "#!/bin/sh\nread line < " + gate + "\ncat > " + core + ".part && mv " + core + ".part " + core + "\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(setting)
	if err == nil {
		err = os.WriteFile(setting, []byte("|"+script), 0)
	}
	if err != nil {
		t.Skipf("where core files go may not be changed: %v", err)
	}
	open := false
	goOn = func() {
		if open {
			return
		}
		open = true
		f, err := os.OpenFile(gate, os.O_RDWR, 0) // it does not wait for a reader
		if err == nil {
			t.Cleanup(func() { _ = f.Close() })
			_, err = f.WriteString("\n")
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		goOn()
		if err := os.WriteFile(setting, before, 0); err != nil {
			t.Error(err)
		}
	})
	return core, goOn
}

// checkCore verifies that a core file contains everything that its headers declare.
func checkCore(t *testing.T, name string) {
	t.Helper()
	f, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Off+p.Filesz > uint64(info.Size()) {
			t.Errorf("%d bytes at %d of %d", p.Filesz, p.Off, info.Size())
		}
	}
	if len(f.Progs) < 5 {
		t.Errorf("%d segments", len(f.Progs))
	}
}
