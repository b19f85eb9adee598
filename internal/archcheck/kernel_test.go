package archcheck

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

// missingTypes is the reason that every command gives on a kernel without type information.
const missingTypes = "has no type information: /sys/kernel/btf/vmlinux is missing"

// otherArchitecture is the reason of commands that are for x86_64 only.
const otherArchitecture = "architecture " + runtime.GOARCH

// without runs the program where the kernel's type information is hidden, as if the kernel had been built without it.
// It returns the output.
func without(t *testing.T, arguments ...string) (out string, err error) {
	t.Helper()
	command := hiding(program, arguments...)
	text, err := command.CombinedOutput()
	return string(text), err
}

// hiding is a command in a private mount namespace, in which /sys/kernel/btf is empty.
func hiding(name string, arguments ...string) *exec.Cmd {
	const script = `mount -t tmpfs none /sys/kernel/btf && exec "$@"`
	command := exec.Command("sh", append([]string{"-c", script, "sh", name}, arguments...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return command
}

// needTypes skips a test that hides the type information.
func needTypes(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can hide the kernel's type information")
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skipf("this kernel has no type information to hide: %v", err)
	}
}

// TestNoTypeInformation: on a kernel without type information, commands that can do without programs in the kernel do,
// and the others name the missing file.
func TestNoTypeInformation(t *testing.T) {
	needTypes(t)
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, `CREATE EXTENSION pg_stat_backtrace`)
	pid := strconv.Itoa(s.PostmasterPID())
	for _, c := range []struct {
		name      string
		arguments []string
		works     bool
		want      string
	}{
		{"waits", []string{"waits", "-D", s.DataDir, "--duration", "1s"}, true, "Method sampled (polling)"},
		{"waits exact", []string{"waits", "-D", s.DataDir, "--duration", "1s", "--method", "exact"}, false, ""},
		{"waits blocked", []string{"waits", "-D", s.DataDir, "--duration", "1s", "--method", "blocked"}, false, ""},
		{"profile", []string{"profile", "--duration", "1s", pid}, false, "capture " + pid + " --nonstop"},
		{"profile of a server", []string{"profile", "-D", s.DataDir, "--duration", "1s"}, false, "capture -D " + s.DataDir},
		{"trace", []string{"trace", "XLogFlush", "-D", s.DataDir, "--duration", "1s"}, false, ""},
		{"allocations", []string{"memory", "--allocations", "--duration", "1s", pid}, false, ""},
		{"doctor", []string{"doctor", "-D", s.DataDir}, true, "sampled by polling (no measurable cost)\n"},
	} {
		out, err := without(t, c.arguments...)
		works := err == nil || c.name == "doctor" // which reports that there is no worker
		reason := missingTypes
		switch c.name {
		case "profile", "profile of a server", "allocations":
			if runtime.GOARCH != "amd64" {
				reason = otherArchitecture
			}
		}
		if works != c.works || !strings.Contains(out, reason) || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v, wanted %q and %q:\n%s", c.name, err, c.want, reason, out)
		}
		if reason == missingTypes && (strings.Contains(out, "or later") || strings.Contains(out, "CO-RE")) {
			t.Errorf("%s blames the kernel's release, or does not word the error:\n%s", c.name, out)
		}
		t.Logf("%s: %s", c.name, firstWith(out, reason))
	}
}

// firstWith returns the first line that has a text.
func firstWith(out, text string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, text) {
			return strings.TrimSpace(line)
		}
	}
	return "-"
}

// TestWorkerWithoutTypeInformation: a worker on a kernel without type information samples wait events, and logs why.
func TestWorkerWithoutTypeInformation(t *testing.T) {
	needTypes(t)
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, `CREATE EXTENSION pg_stat_backtrace`)
	command := hiding(program)
	log := workWith(t, s, command, "--wait-event-capture", "stats")
	asks := s.Connect(t, s.User, "postgres")
	var methods string
	wait(t, "the worker has figures", func() bool {
		if err := asks.QueryRow(t.Context(), `SELECT coalesce(string_agg(DISTINCT method, ','), '')
			FROM pg_stat_wait_event_timing`).Scan(&methods); err != nil && !strings.Contains(err.Error(), "was not answered in time") {
			t.Fatal(err) // on a busy machine the start of the timing can take longer than the worker lets callers wait
		}
		return methods != ""
	})
	if methods != "sampled" {
		t.Errorf("methods %q", methods)
	}
	if !strings.Contains(log(), missingTypes) {
		t.Errorf("the log does not say what is missing:\n%s", log())
	}
}

// TestOldKernel: where the kernel is too old for a command, the command names the release that it takes.
func TestOldKernel(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	pid := strconv.Itoa(s.PostmasterPID())
	for _, c := range []struct {
		arguments []string
		minor     int // of Linux 6
	}{
		{[]string{"trace", "--duration", "100ms", "XLogFlush", pid}, 6},
		{[]string{"trace", "--duration", "100ms", "XLogFlush", "-D", s.DataDir}, 6},
		{[]string{"profile", "--duration", "100ms", pid}, 10},
		{[]string{"profile", "--duration", "100ms", "-D", s.DataDir}, 10},
		{[]string{"memory", "--allocations", "--duration", "100ms", pid}, 6},
	} {
		if major > 6 || major == 6 && minor >= c.minor {
			t.Logf("%s: this kernel is new enough", c.arguments[0])
			continue
		}
		out, err := exec.Command(program, c.arguments...).CombinedOutput()
		want := fmt.Sprintf("takes Linux 6.%d or later", c.minor)
		if runtime.GOARCH != "amd64" && c.arguments[0] != "trace" {
			want = otherArchitecture
		}
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, wanted %q:\n%s", c.arguments[0], err, want, out)
		} else {
			t.Logf("%s: %s", c.arguments[0], firstWith(string(out), want))
		}
	}
}
