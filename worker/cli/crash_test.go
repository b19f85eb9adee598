package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker"
)

// panicsWord, before the words in topVariable, makes the test's program panic in a goroutine at the first call of host.Catch.
const panicsWord = "panics"

// ownProgram returns a command that runs the test's program with a command line. Its standard input stays open until the
// test ends.
func ownProgram(t *testing.T, errors io.Writer, words ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), topVariable+"="+strings.Join(words, "\n"))
	cmd.Stderr = errors
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// allowCores sets no hard limit of core files for children of this process, so that writesNoCore notices the limit that a worker sets
// for itself at its start.
func allowCores(t *testing.T) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &before); err != nil {
		t.Fatal(err)
	}
	if before.Max > 1 {
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: before.Cur, Max: unix.RLIM_INFINITY}); err != nil {
		t.Skipf("this process may not raise its limit of core files, which is %d bytes: %v", before.Max, err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_CORE, &before) })
}

// writesNoCore reports whether the hard limit of a process's core file is 0 or 1 bytes.
func writesNoCore(pid int) bool {
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	return err == nil && regexp.MustCompile(`Max core file size +[01] +[01] `).Match(limits)
}

// TestCrashedWorkerIsStartedAgain: a service manager starts a worker again unless its status is 2. So a worker ends by SIGABRT
// after a crash, and writes no core file.
func TestCrashedWorkerIsStartedAgain(t *testing.T) {
	allowCores(t)
	s := pgtest.Start(t, pgtest.BinDirs(t)[0], pgtest.Options{})
	history := filepath.Join(filepath.Dir(s.DataDir), "history")
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte("incidents: {cooldown: 10m}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := []string{"worker", "-D", s.DataDir, "--log-format", "json", "--record-dir", history, "--record-min-free", "1MB"}
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		words  []string
	}{
		{"a panic", 0, append([]string{panicsWord}, one...)},
		{"SIGQUIT", unix.SIGQUIT, one},
		{"a fault", unix.SIGSEGV, one},
		{"SIGQUIT of a worker of --all", unix.SIGQUIT, append(one[:len(one):len(one)], "--supervised")},
		{"SIGQUIT of --all", unix.SIGQUIT, []string{"worker", "--all", "--below", history, "--record-dir", history}},
		{"SIGQUIT of the helper for commands", unix.SIGQUIT, []string{"rules", worker.CommandHelper, file}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			cmd := ownProgram(t, &log, c.words...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if c.signal != 0 {
				pgtest.Wait(t, "the limit of core files", func() bool { return writesNoCore(cmd.Process.Pid) })
				_ = cmd.Process.Signal(c.signal)
			}
			_ = cmd.Wait()
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !ok || !status.Signaled() || status.Signal() != unix.SIGABRT || status.CoreDump() {
				t.Errorf("%v\n%s", cmd.ProcessState, log.String())
			}
		})
	}
}

// TestQuitIsQuiet: SIGQUIT (Ctrl-\) ends a command like SIGINT, without a dump of goroutines.
func TestQuitIsQuiet(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDirs(t)[0], pgtest.Options{})
	results := map[string]bool{}
	for _, signal := range []syscall.Signal{unix.SIGINT, unix.SIGQUIT} {
		var log bytes.Buffer
		cmd := ownProgram(t, &log, "top", "-D", s.DataDir, "--batch", "-n", "0")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		_ = cmd.Process.Signal(signal)
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait()
		said := regexp.MustCompile(`(?m)^.*: reading the server of .*\n`).ReplaceAllString(log.String(), "") // on a busy machine
		results[fmt.Sprint(cmd.ProcessState, "\n", said)] = true
	}
	if len(results) != 1 {
		t.Errorf("%v", results)
	}
}
