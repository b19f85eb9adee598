package rlimits_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// limited returns a command under a limit, and its standard error.
func limited(t *testing.T, limit string, arguments ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, arguments...)
	cmd.Env = append(os.Environ(), setting+"="+limit)
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

// expect compares the status and the only line of a command.
func expect(t *testing.T, cmd *exec.Cmd, stderr *bytes.Buffer, want string) {
	t.Helper()
	finish(t, cmd)
	if got := stderr.String(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(got, want) ||
		strings.Count(got, "\n") != 1 {
		t.Errorf("%v, and printed %s; want %q", cmd.ProcessState, first(got), want)
	}
}

// TestFileSize writes a file that is larger than RLIMIT_FSIZE allows.
func TestFileSize(t *testing.T) {
	program := builtProgram(t)
	dir := t.TempDir()
	input, output := filepath.Join(dir, "folded"), filepath.Join(dir, "page.html")
	if err := os.WriteFile(input, []byte("main;work 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, stderr := limited(t, "fsize=100", program, "report", "--format", "html", "-o", output, input)
	expect(t, cmd, stderr, "file too large")
	if _, err := os.Stat(output); err == nil {
		t.Error("there is half a file")
	}
}

// TestProcessorTime uses more processor time than RLIMIT_CPU allows.
func TestProcessorTime(t *testing.T) {
	program := builtProgram(t)
	cmd, stderr := limited(t, "cpu=2", program, "decode")
	cmd.Stdin = endless{}
	var out bytes.Buffer
	cmd.Stdout = &out // what the program prints before the limit
	_ = cmd.Run()     // the pipe breaks, and the kernel may kill a program that does not end at once
	if !strings.Contains(stderr.String(), "RLIMIT_CPU allows 2 s") {
		t.Errorf("%v, and printed %s", cmd.ProcessState, first(stderr.String()))
	}
}

// endless is an input of compressed backtraces without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	const line = "~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV\n"
	n := 0
	for n+len(line) <= len(b) {
		n += copy(b[n:], line)
	}
	return n, nil
}

// TestNoProc runs commands where /proc is not mounted.
func TestNoProc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can unmount /proc in a namespace")
	}
	program := builtProgram(t)
	for _, command := range [][]string{
		{"capture", "1"}, {"doctor"}, {"worker"}, {"profile", "1"}, {"memory", "1"}, {"waits"}, {"trace", "f"},
	} {
		cmd, stderr := limited(t, "noproc=0", append([]string{program}, command...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		expect(t, cmd, stderr, "/proc is not mounted")
	}
}

// TestHelpWithoutRoom prints help where there is no room.
func TestHelpWithoutRoom(t *testing.T) {
	program := builtProgram(t)
	for _, command := range [][]string{{"--help"}, {"help", "capture"}, {"--version"}, {"capture", "--help"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		cmd, stderr := limited(t, "nofile=1024", append([]string{program}, command...)...)
		cmd.Stdout = full
		expect(t, cmd, stderr, "no space left on device")
		_ = full.Close()
	}
}

// TestClosedDescriptors closes each set of standard descriptors where there is no /dev/null. The only output is one
// line, if there is a descriptor for it.
func TestClosedDescriptors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root directory")
	}
	program := builtProgram(t)
	root := t.TempDir()
	if err := os.Link(program, filepath.Join(root, "program")); err != nil {
		t.Fatal(err)
	}
	const stdin, stdout, stderr = 1, 2, 4
	for set := range uint64(stdin | stdout | stderr + 1) {
		r := run(t, "closed="+strconv.FormatUint(set, 10), filepath.Join(root, "program"), "--version")
		want := result{
			status: 1, stderr: "pg_stat_backtrace: a standard descriptor is closed, and /dev/null cannot be opened\n",
		}
		if set&stderr != 0 {
			want.stderr = ""
		}
		if set == 0 {
			want = result{stdout: r.stdout}
		}
		if r != want || set == 0 && r.stdout == "" {
			t.Errorf("without descriptors %03b: status %d, printed %s%s", set, r.status, r.stdout, first(r.stderr))
		}
	}
}

// TestClosedOutput expects an error of commands without standard output, also where there is a /dev/null.
func TestClosedOutput(t *testing.T) {
	program := builtProgram(t)
	for _, command := range [][]string{
		{"--version"}, {"version"}, {"help"}, {"capture", "--help"}, {"capture", strconv.Itoa(os.Getpid())}, {"rules", "list"},
		{"completion", "bash"},
	} {
		out, err := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `exec "$@" >&-`, "sh", program}, command...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "standard output is closed") {
			t.Errorf("%v: %v, %s", command, err, out)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", `exec "$1" --version <&-`, "sh", program).Output(); err != nil || len(out) == 0 {
		t.Errorf("without standard input: %v, %s", err, out)
	}
}
