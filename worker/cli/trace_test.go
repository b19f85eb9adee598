package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/process"
)

func TestTraceRefuses(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	for arguments, want := range map[string]string{
		"":                                  "name a function, or a static probe with --usdt",
		"XLogFlush -D /tmp 1":               "give either -D or process ids, not both",
		"XLogFlush --format xml 1":          "--format must be one of",
		"XLogFlush --duration 0 1":          "--duration must be more than 0",
		"XLogFlush --max-stacks 0 1":        "--max-stacks must be at least 1",
		"XLogFlush --max-frames 0 1":        "--max-frames must be from 1",
		"XLogFlush --top 0 1":               "--top must be at least 1",
		"XLogFlush --count --format html 1": "--count gives no stacks",
		"XLogFlush --max-overhead 101% 1":   "--max-overhead: \"101%\" is not a share from 0% to 100%",
		"XLogFlush --args x 1":              "--args: \"x\" is not the number of an argument",
		"XLogFlush --when arg1 1":           "--when: condition \"arg1\"",
		"XLogFlush -D /nonexistent":         "/nonexistent",
		"XLogFlush 4194304":                 "there is no process 4194304",
		"XLogFlush " + pid:                  "no function of that name is known in the processes",
		"libnone:f " + pid:                  "no process has loaded libnone",
		"--usdt no_such_probe " + pid:       "the processes have no static probes",
		"libc:strlen " + pid:                "IFUNC",
	} {
		status, stdout, stderr := run(t, append([]string{"trace"}, strings.Fields(arguments)...)...)
		if status == exitOK || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("trace %s: status %d, %q; want %q", arguments, status, stderr, want)
		}
	}
}

// reader is a shell that reads a file some 20 times a second.
func reader(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while sleep 0.05; do read x < /proc/version; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pgtest.Wait(t, "the C library", func() bool {
		maps, err := process.Maps(cmd.Process.Pid)
		return err == nil && slices.ContainsFunc(maps, func(m process.Mapping) bool {
			return m.Perms&process.Exec != 0 && strings.Contains(m.Path, "libc.so")
		})
	})
	return strconv.Itoa(cmd.Process.Pid)
}

// TestTraceFormats traces a function of the C library in each format.
func TestTraceFormats(t *testing.T) {
	t.Parallel()
	_, err := probe.Calibrate()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, probe.ErrUnsupported) {
		status, stdout, stderr := run(t, "trace", "libc:read", sleeper(t))
		if status != exitFailed || stdout != "" || stderr == "" {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
		t.Skip(err)
	}
	pid := reader(t)
	trace := func(passes func(stdout string) bool, arguments ...string) {
		t.Helper()
		for duration := time.Second; ; duration *= 2 { // on a busy machine, the shell may not read in a second
			all := append([]string{"trace", "libc:read", pid, "--duration", duration.String(), "--max-overhead", "0"}, arguments...)
			status, stdout, stderr := run(t, all...)
			if status != exitOK || !strings.Contains(stderr, "libc:read: each call will cost its process about") {
				t.Fatalf("trace %v: status %d, %q", arguments, status, stderr)
			}
			if passes(stdout) {
				return
			}
			if duration > time.Minute {
				t.Errorf("trace %v: %.5000s", arguments, stdout)
				return
			}
		}
	}
	trace(regexp.MustCompile(`(?s)^read \(libc\S*\): \d+ hits in \d.*hits +stacks.*\d+ +arg1=\d+\n.*FUNCTION\n.* \S*read\n.*CALLS\n.* \S*read\n`).
		MatchString, "--args", "1:d")
	trace(regexp.MustCompile(`(?m)^\S.*;\S*read\S* \d+$`).MatchString, "--format", "folded")
	trace(func(stdout string) bool {
		p, err := pprof.ParseData([]byte(stdout))
		return err == nil && len(p.Sample) > 0 && p.Sample[0].Label["pid"][0] == pid && p.Sample[0].Value[0] > 0
	}, "--format", "pprof")
	trace(func(stdout string) bool {
		return strings.HasPrefix(stdout, "<!DOCTYPE html>") && strings.Contains(stdout, "libc:read")
	}, "--format", "html")
	trace(func(stdout string) bool { return checkTraceJSON(t, stdout, pid) }, "--format", "json", "--when", "arg1:d!=-7", "--latency")
	trace(func(stdout string) bool {
		return !strings.Contains(stdout, "#0") && strings.Contains(stdout, " hits in ")
	}, "--count")
}

// checkTraceJSON: a line for each hit, and one with the sums. It returns false if the trace has no hit that has returned.
func checkTraceJSON(t *testing.T, text, pid string) bool {
	t.Helper()
	lines := bytes.Split(bytes.TrimSpace([]byte(text)), []byte("\n"))
	for i, line := range lines {
		if i == len(lines)-1 {
			var sums struct {
				Totals []struct {
					Hits, Stacks, Lost, SampledOut, Returns uint64
				}
			}
			if err := json.Unmarshal(line, &sums); err != nil || len(sums.Totals) != 2 ||
				sums.Totals[0].Hits != sums.Totals[0].Stacks+sums.Totals[0].Lost+sums.Totals[0].SampledOut ||
				sums.Totals[0].Stacks != uint64(len(lines)-1) {
				t.Fatalf("%v: %s", err, line)
			}
			return sums.Totals[0].Stacks > 0 && sums.Totals[1].Returns > 0
		}
		var hit struct {
			ProbeID    string
			PID        int
			StackTrace []string
			Argdata    []string
		}
		if err := json.Unmarshal(line, &hit); err != nil || hit.ProbeID != "libc:read" || strconv.Itoa(hit.PID) != pid ||
			len(hit.StackTrace) == 0 || hit.Argdata == nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	return false
}
