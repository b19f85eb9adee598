package archcheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

// envProgram names the program to test where there is no Go to build it: in a virtual machine.
const envProgram = "PGSB_ARCH_PROGRAM"

// program is the worker's program, in a directory that the servers' user can enter.
var program string

func TestMain(m *testing.M) {
	program = os.Getenv(envProgram)
	os.Exit(pgtest.RunWithProgram(m, &program))
}

// work starts a worker for the server, by the command if it is not nil, and waits until it serves.
func work(t *testing.T, s *pgtest.Server, command *exec.Cmd) {
	t.Helper()
	if command == nil {
		command = s.AsServerUser(exec.Command(program))
	}
	workWith(t, s, command)
}

// workWith starts a worker with more options. The result returns its log.
func workWith(t *testing.T, s *pgtest.Server, command *exec.Cmd, options ...string) func() string {
	t.Helper()
	command.Args = append(command.Args, "worker", "-D", s.DataDir, "--log-format", "json")
	command.Args = append(append(command.Args, options...), s.DSN(s.User, "postgres"))
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	var log output
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	wait(t, "the worker is connected", func() bool { return strings.Contains(log.String(), `"connected"`) })
	return log.String
}

// report prints a result where scripts/check-arch.sh looks for it.
func report(t *testing.T, r Result) {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	r.Machine, r.Kernel = unix.ByteSliceToString(name.Machine[:]), unix.ByteSliceToString(name.Release[:])
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s%s\n", Marker, line)
}

// text returns the content of a small file, or "" if the file does not exist.
func text(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// wait is pgtest.Wait for an emulated machine, which may take its time.
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Minute); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
