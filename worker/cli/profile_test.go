package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
)

// TestProfileProcesses takes profiles of chosen processes of a server.
func TestProfileProcesses(t *testing.T) {
	server := busyServer(t, pgtest.Options{})
	idle := server.Connect(t, "postgres", "postgres")
	pid, other := strconv.Itoa(busyProcess(t, server)), strconv.Itoa(int(idle.PgConn().PID()))
	if err := clusterbpf.Check(); err != nil {
		status, stdout, stderr := run(t, "profile", pid)
		if status != 1 || stdout != "" || !strings.Contains(stderr, "capture "+pid+" --nonstop --format folded") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
		t.Skip(err)
	}
	t.Run("only chosen", func(t *testing.T) { onlyChosen(t, pid, other) })
	t.Run("postmaster", func(t *testing.T) {
		status, stdout, stderr := run(t, "profile", "--duration", "1s", "--format", "folded", strconv.Itoa(server.PostmasterPID()))
		if status != 0 || !strings.Contains(stdout, "PostmasterMain") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
	})
	t.Run("ended beside", func(t *testing.T) {
		gone := zombie(t)
		status, stdout, stderr := run(t, "profile", "--duration", "1s", "--format", "folded", other, gone)
		if status != 0 || !strings.Contains(stdout, "PostgresMain") || !strings.Contains(stderr, "process "+gone+" has ended") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
		status, stdout, stderr = run(t, "profile", gone)
		if status != 1 || stdout != "" || !strings.Contains(stderr, "process "+gone+" has ended") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
	})
	t.Run("no server process", func(t *testing.T) {
		stranger := sleeper(t)
		status, stdout, stderr := run(t, "profile", other, stranger)
		if status != 1 || stdout != "" || !strings.Contains(stderr, ") is no process of a PostgreSQL server\n") ||
			!strings.Contains(stderr, "capture --nonstop") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
	})
	t.Run("figures", func(t *testing.T) {
		status, stdout, stderr := run(t, "profile", "--duration", "1s", "--running", "--stats", pid)
		var told struct{ Count int }
		if err := json.Unmarshal([]byte(stdout), &told); err != nil || status != 0 || told.Count == 0 ||
			!strings.Contains(stderr, "--mode cpu") {
			t.Errorf("status %d, %q, %q, %v", status, stdout, stderr, err)
		}
	})
	t.Run("interrupt", func(t *testing.T) { interruptProfile(t, other) })
}

// busyProcess returns the session of a busyServer.
func busyProcess(t *testing.T, server *pgtest.Server) (pid int) {
	t.Helper()
	admin := server.Connect(t, "postgres", "postgres")
	pgtest.Wait(t, "the session works", func() bool {
		return admin.QueryRow(t.Context(), `SELECT pid FROM pg_stat_activity
			WHERE state = 'active' AND query LIKE '%generate_series%' AND pid <> pg_backend_pid()`).Scan(&pid) == nil
	})
	return pid
}

// onlyChosen expects samples of two processes only, with their labels, and the default of --group-by.
func onlyChosen(t *testing.T, pid, other string) {
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	status, stdout, stderr := run(t, "profile", "--duration", "1s", "--format", "pprof", "-o", file, pid, other)
	if status != 0 || stdout != "" {
		t.Fatalf("status %d, %q, %q", status, stdout, stderr)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pprof.Parse(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, s := range p.Sample {
		got := s.Label["pid"]
		if len(got) != 1 || !slices.Contains([]string{pid, other}, got[0]) {
			t.Errorf("a sample of %v", got)
			continue
		}
		seen[got[0]] = true
	}
	if !seen[pid] || !seen[other] || !strings.Contains(stderr, " of 2 processes ") {
		t.Errorf("samples of %v; %s", seen, stderr)
	}
	status, stdout, stderr = run(t, "profile", "--duration", "1s", "--format", "folded", pid, other, other)
	frames := regexp.MustCompile(`(?m)^(\d+);.*PostgresMain;`).FindAllStringSubmatch(stdout, -1)
	for _, want := range []string{pid, other} {
		if status != 0 || !slices.ContainsFunc(frames, func(f []string) bool { return f[1] == want }) {
			t.Errorf("status %d, no stack of %s in %q, %q", status, want, stdout, stderr)
		}
	}
}

// interruptProfile expects that an interrupt before the first sample leaves an old file as it is.
func interruptProfile(t *testing.T, pid string) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	profile := func(limit time.Duration, args ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		root := newRoot("1.2.3")
		root.SetArgs(append([]string{"profile", "--duration", "1m", "--output", file, pid}, args...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		return root.ExecuteContext(ctx)
	}
	if err := profile(300*time.Millisecond, "--query-id", "1"); err == nil || content(t, file) != "old" {
		t.Errorf("%v, and the file has %q", err, content(t, file))
	}
	if err := profile(2*time.Second, "--mode", "wall"); err != nil || !strings.Contains(content(t, file), "PostgresMain") {
		t.Errorf("interrupted: %v, and the file has %q", err, content(t, file))
	}
}

// zombie is a process that has ended, and that its parent has not asked for yet.
func zombie(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	pid := cmd.Process.Pid
	pgtest.Wait(t, "a process to end", func() bool {
		stat, err := process.ReadStat(pid)
		return err == nil && stat.State == 'Z'
	})
	return strconv.Itoa(pid)
}
