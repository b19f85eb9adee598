package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/sampler"
	"pg_stat_backtrace/ptrace/process/procfs"
)

// TestProfile samples a process that sleeps, in each format.
func TestProfile(t *testing.T) {
	t.Parallel()
	if err := sampler.Check(); err != nil {
		status, stdout, stderr := run(t, "profile", sleeper(t))
		if status != 1 || stdout != "" || !strings.Contains(stderr, "capture --format folded") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
		t.Skip(err)
	}
	pid := sleeper(t)
	// On a busy machine there may be few samples, and one at the least.
	status, stdout, stderr := run(t, "profile", "--duration", "2s", pid)
	text := regexp.MustCompile(`^\d+ samples in 2\.\d s\n\d+ samples\n\n +SELF +TOTAL +FUNCTION\n` +
		` +\d+  100\.0 % +\d+  100\.0 %  \S*nanosleep\n( +0    0\.0 % .*\n)+\n +TOTAL +CALLS\n +\d+  100\.0 %  sleep\n( +\S+\n)* +\S*nanosleep\n$`)
	if status != 0 || !text.MatchString(stdout) || stderr != "" {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = run(t, "profile", "--duration", "2s", "--format", "folded", pid, pid)
	if status != 0 || !regexp.MustCompile(`^sleep;.*nanosleep \d+\n$`).MatchString(stdout) {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = run(t, "profile", "--duration", "2s", "--rate", "500", "--stats", pid)
	var told struct {
		Count  int     `json:"count"`
		Unwind float64 `json:"unwind_us_mean"`
	}
	if err := json.Unmarshal([]byte(stdout), &told); err != nil || status != 0 || told.Count == 0 || told.Unwind <= 0 {
		t.Errorf("status %d, %q, %q, %v", status, stdout, stderr, err)
	}
	gone := zombie(t)
	status, stdout, stderr = run(t, "profile", "--duration", "2s", "--format", "folded", pid, gone)
	if status != 0 || !strings.HasPrefix(stdout, "sleep") || !strings.Contains(stderr, "PID "+gone+" has exited") {
		t.Errorf("beside one that has ended: status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = run(t, "profile", "--duration", "300ms", "--running", pid)
	if status != 1 || stdout != "" || !strings.Contains(stderr, "no sample in ") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	// An interrupt before the first sample leaves an old file as it is.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	id, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	f := profileFlags{
		rate: 100, duration: time.Minute, maxFrames: 100, most: 10, format: "text", output: file, running: true,
	}
	if err := f.runTo(ctx, []int{id}, io.Discard, io.Discard); !errors.Is(err, errNoSample) || content(t, file) != "old" {
		t.Errorf("%v, and the file has %q", err, content(t, file))
	}
	f.running = false
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := f.runTo(ctx, []int{id}, io.Discard, io.Discard); err != nil || !strings.Contains(content(t, file), "sleep") {
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
		stat, err := procfs.ReadStat(pid)
		return err == nil && stat.State == 'Z'
	})
	return strconv.Itoa(pid)
}
