package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
		profiled(t, func(stdout, _ string) bool { return strings.Contains(stdout, "PostmasterMain") },
			"--format", "folded", strconv.Itoa(server.PostmasterPID()))
	})
	t.Run("ended beside", func(t *testing.T) {
		gone := zombie(t)
		profiled(t, func(stdout, stderr string) bool {
			return strings.Contains(stdout, "PostgresMain") && strings.Contains(stderr, "process "+gone+" has ended")
		}, "--format", "folded", other, gone)
		status, stdout, stderr := run(t, "profile", gone)
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
		profiled(t, func(stdout, stderr string) bool {
			var told struct{ Count int }
			err := json.Unmarshal([]byte(stdout), &told)
			return err == nil && told.Count > 0 && strings.Contains(stderr, "--mode cpu")
		}, "--running", "--stats", pid)
	})
	t.Run("interrupt", func(t *testing.T) { interruptProfile(t, other) })
}

// profiled profiles for one second, again and again until passes accepts the outputs. On a busy machine, a process that wants to work
// may get no processor in a second. It returns the standard output.
func profiled(t *testing.T, passes func(stdout, stderr string) bool, args ...string) (stdout string) {
	t.Helper()
	settles(t, func() string {
		var stderr string
		var status int
		status, stdout, stderr = run(t, append([]string{"profile", "--duration", "1s"}, args...)...)
		if status != exitOK || !passes(stdout, stderr) {
			return fmt.Sprintf("%s: status %d, %.5000q, %q", args, status, stdout, stderr)
		}
		return ""
	})
	return stdout
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
	profiled(t, func(stdout, stderr string) bool {
		data, err := os.ReadFile(file)
		if err != nil || stdout != "" {
			t.Fatalf("%v, %q, %q", err, stdout, stderr)
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
		return seen[pid] && seen[other] && strings.Contains(stderr, " of 2 processes ")
	}, "--format", "pprof", "-o", file, pid, other)
	profiled(t, func(stdout, _ string) bool {
		frames := regexp.MustCompile(`(?m)^(\d+);.*PostgresMain;`).FindAllStringSubmatch(stdout, -1)
		has := func(pid string) bool {
			return slices.ContainsFunc(frames, func(f []string) bool { return f[1] == pid })
		}
		return has(pid) && has(other)
	}, "--format", "folded", pid, other, other)
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
		root.SetArgs(append([]string{"profile", "--duration", "10m", "--output", file, pid}, args...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		return root.ExecuteContext(ctx)
	}
	if err := profile(300*time.Millisecond, "--query-id", "1"); err == nil || content(t, file) != "old" {
		t.Errorf("%v, and the file has %q", err, content(t, file))
	}
	for limit := 2 * time.Second; ; limit *= 2 { // a busy machine needs longer for the first sample
		err := profile(limit, "--mode", "wall")
		if err != nil && content(t, file) == "old" && limit < pgtest.Patience {
			continue
		}
		if err != nil || !strings.Contains(content(t, file), "PostgresMain") {
			t.Errorf("interrupted: %v, and the file has %q", err, content(t, file))
		}
		break
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
