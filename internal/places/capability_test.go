package places

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
)

// capabilities are the useful capabilities, "" for none.
var capabilities = []string{"", "sys_ptrace", "perfmon", "checkpoint_restore", "sys_admin", bpfAndPerfmon}

// bpfAndPerfmon are two capabilities that are useful only together.
const bpfAndPerfmon = "bpf,+perfmon"

// with is the command that runs another command as a user with one capability, without a way to gain more.
func with(uid, gid int, capability string) []string {
	set := "-all"
	if capability != "" {
		set += ",+" + capability
	}
	return []string{
		"setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", gid), "--clear-groups",
		"--inh-caps=" + set, "--ambient-caps=" + set, "--bounding-set=" + set, "--no-new-privs",
	}
}

// feature is a line of the table "Capabilities" in doc/worker.md.
type feature struct {
	name   string
	uid    int      // user that asks; the group is the server's
	enough []string // each of these capabilities alone is enough; "": works without capabilities
	// command is the command to run. The feature works if it succeeds and prints the text.
	command []string
	prints  string
	busy    bool // the command's last argument is added: a process that is always on a processor
}

// Which capability each feature needs: every feature with every capability alone; half of the pairs in make check.
func TestCapabilities(t *testing.T) {
	needRoot(t, "setpriv")
	tree := copyTree(t, npm(t))
	s := pgtest.Start(t, filepath.Join(tree, "bin"), pgtest.Options{})
	uid, gid := s.OSUser()
	const stranger = 65534
	pid := strconv.Itoa(sleeper(t, s))
	locked := unreadable(t, s)
	capture := []string{program, "capture", "--timeout", "1m"} // a busy host reads symbols slowly
	// plpgsql.so is gone: its own functions have names in the file alone.
	if err := os.RemoveAll(filepath.Join(tree, "lib", "postgresql")); err != nil {
		t.Fatal(err)
	}
	all := capabilities
	features := []feature{
		{"stop, same user", uid, all, append(capture, pid), "PostmasterMain+0x", false},
		{"blocked, same user", uid, all, append(capture, "--nonstop", pid), "PostmasterMain+0x", false},
		{"another user's process", stranger, []string{"sys_ptrace"}, append(capture, pid), "PostmasterMain+0x", false},
		{"a process that is not dumpable", uid, []string{"sys_ptrace"}, append(capture, locked), "nanosleep", false},
		{
			"all names of a deleted library", uid, []string{"checkpoint_restore", "sys_admin"},
			append(capture, pid), "exec_stmt_block+0x", false,
		},
		{"the kernel's stack", uid, []string{"sys_admin"}, []string{"cat", "/proc/self/stack"}, "proc_pid_stack+0x", false},
	}
	if level := paranoid(t); level <= 2 {
		features = append(features, feature{
			"running, same user, paranoid <= 2", uid, all, append(capture, "--nonstop", "--format", "json"),
			`"engine":"running"`, true,
		})
	} else {
		t.Logf("kernel.perf_event_paranoid is %d: the engine running is tried with CAP_PERFMON only", level)
		features = append(features, feature{
			"running, same user, paranoid > 2", uid, []string{"perfmon", "sys_admin", bpfAndPerfmon},
			append(capture, "--nonstop", "--format", "json"), `"engine":"running"`, true,
		})
	}
	// As root it works if the kernel is new enough, and reports an error otherwise.
	profile := []string{program, "profile", "--duration", "2s", "--stats", pid}
	if out, err := exec.Command(profile[0], profile[1:]...).CombinedOutput(); err != nil {
		t.Logf("the command profile is not tried: %v: %s", err, out)
	} else {
		features = append(features, feature{
			"sampled without a stop, same user", uid, []string{"sys_admin", bpfAndPerfmon}, profile, `"count":`, false,
		})
	}
	selected := figure.Share(t, 2)
	for i, f := range features {
		t.Run(f.name, func(t *testing.T) {
			if f.busy { // only while it is needed
				f.command = append(f.command, target(t, s, "sh", "-c", "while :; do :; done"))
			}
			for k, capability := range capabilities {
				if selected(i + k) {
					f.try(t, gid, capability)
				}
			}
		})
	}
}

func (f feature) try(t *testing.T, gid int, capability string) {
	t.Helper()
	want := false
	for _, enough := range f.enough {
		want = want || enough == capability
	}
	command := append(with(f.uid, gid, capability), f.command...)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if works := err == nil && strings.Contains(string(out), f.prints); works != want {
		t.Errorf("%s with %q: works %v, want %v: %v\n%s", f.name, capability, works, want, err, out)
	} else {
		t.Logf("%-36s %-20q %v", f.name, capability, works)
	}
}

// npm returns the programs of a server that is in one tree.
func npm(t *testing.T) string {
	t.Helper()
	for _, dir := range pgtest.BinDirs(t) {
		if _, err := os.Stat(filepath.Join(dir, "../share/postgresql/extension")); err == nil {
			return dir
		}
	}
	t.Skip("no server in one tree")
	return ""
}

// target starts a process as the server's user.
func target(t *testing.T, s *pgtest.Server, command ...string) (pid string) {
	t.Helper()
	c := s.AsServerUser(exec.Command(command[0], command[1:]...))
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return strconv.Itoa(c.Process.Pid)
}

// unreadable starts a process whose program its user may execute but not read, which makes it undumpable.
func unreadable(t *testing.T, s *pgtest.Server) (pid string) {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(openDir(t, "unreadable"), "sleep")
	run(t, "install", "-m", "711", sleep, copied)
	pid = target(t, s, copied, "600")
	pgtest.Wait(t, "it sleeps", func() bool {
		data, err := os.ReadFile("/proc/" + pid + "/wchan")
		return err == nil && strings.Contains(string(data), "nanosleep")
	})
	return pid
}

func paranoid(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		t.Skip(err)
	}
	level, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return level
}
