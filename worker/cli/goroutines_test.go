package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/host"
)

// waiterVariable makes the test binary a Go program that waits.
const waiterVariable = "CLI_TEST_WAITER"

func TestMain(m *testing.M) {
	if words := os.Getenv(topVariable); words != "" {
		args := strings.Split(words, "\n")
		if os.Args[0] == "pg_stat_backtrace" { // a command that the screen runs
			args = os.Args[1:]
		}
		if args[0] == panicsWord {
			host.InjectPanic(func(string) { go panic("injected") })
			args = args[1:]
		}
		os.Exit(Main("test", args, os.Stdout, os.Stderr))
	}
	if os.Getenv(waiterVariable) != "" {
		go waitForEver()
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	if pid, err := strconv.Atoi(os.Getenv(plansVariable)); err == nil {
		readPlansForEver(pid)
	}
	os.Exit(pgtest.Run(m))
}

//go:noinline
func waitForEver() { select {} }

// waiter is a Go program to capture: this test.
func waiter(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), waiterVariable+"=1")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = input.Close(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(cmd.Process.Pid)
}

func TestCaptureGoroutines(t *testing.T) {
	t.Parallel()
	pid := waiter(t)
	status, stdout, stderr := run(t, "capture", "--goroutines", pid)
	for deadline := time.Now().Add(3 * time.Minute); status == 0 && time.Now().Before(deadline) &&
		!strings.Contains(stdout, " [select (no cases)]"); { // it has said ready before it waits
		status, stdout, stderr = run(t, "capture", "--goroutines", pid)
	}
	if status != 0 || !strings.HasPrefix(stdout, "process "+pid+", stopped for ") ||
		!strings.Contains(stdout, "\nGoroutine 1 [") || !strings.Contains(stdout, " [select (no cases)]") ||
		!strings.Contains(stdout, "cli.waitForEver+0x") {
		t.Errorf("status %d, %s, %q", status, stdout, stderr)
	}
	status, stdout, stderr = run(t, "capture", "--goroutines", "--format", "json", pid)
	var parsed struct {
		PauseUS    float64 `json:"pause_us"`
		GoVersion  string  `json:"go_version"`
		Goroutines []struct {
			ID     uint64            `json:"id"`
			State  string            `json:"state"`
			Frames []json.RawMessage `json:"frames"`
		} `json:"goroutines"`
	}
	if err := json.Unmarshal([]byte(stdout), &parsed); err != nil || status != 0 || parsed.PauseUS <= 0 ||
		!strings.HasPrefix(parsed.GoVersion, "go1.") || len(parsed.Goroutines) < 4 || parsed.Goroutines[0].ID != 1 {
		t.Errorf("status %d, %v, %s, %q", status, err, stdout, stderr)
	}
	status, stdout, stderr = run(t, "capture", "--goroutines", sleeper(t))
	if status != 1 || stdout != "" || !strings.Contains(stderr, "it runs no Go program or library") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	status, _, stderr = run(t, "capture", "--goroutines", "--threads", pid)
	if status != 2 || !strings.Contains(stderr, "--goroutines") {
		t.Errorf("status %d, %q", status, stderr)
	}
}
