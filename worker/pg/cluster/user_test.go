package cluster_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
)

// report is the output of testdata/become.
type report struct {
	Privileges cluster.Privileges  `json:"privileges"`
	Threads    []map[string]string `json:"threads"` // lines of /proc/self/task/*/status
	Owner      uint32              `json:"owner"`   // of /proc/self/status
	Stack      int                 `json:"stack"`   // bytes captured
	Urgent     bool                `json:"urgent"`  // may have real-time priority
	Role       string              `json:"role"`    // the role according to the server's peer authentication
	Home       string              `json:"home"`
	User       string              `json:"user"`
	BackToRoot string              `json:"back_to_root"` // error of setuid(0)
}

const onlyPtrace = "0000000000080000" // 1 << CAP_SYS_PTRACE

// withSample adds CAP_PERFMON to a set of capabilities, if the worker keeps CAP_PERFMON on this host.
func withSample(t *testing.T, caps string) string {
	t.Helper()
	level, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(level)))
	set, err2 := strconv.ParseUint(caps, 16, 64)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if n > 2 {
		set |= 1 << unix.CAP_PERFMON
	}
	return fmt.Sprintf("%016x", set)
}

// TestBecomeServerUser runs the whole change from root to the server's user in a separate process, because it is
// permanent.
func TestBecomeServerUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	program := buildBecome(t)
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{
		HBA: []string{"local postgres all trust", "local template1 all peer"},
	})
	backend := strconv.Itoa(int(s.Connect(t, "postgres", "postgres").PgConn().PID()))
	for name, test := range map[string]struct {
		command []string
		caps    string
		trace   bool
	}{
		"with CAP_SYS_PTRACE": {[]string{program}, withSample(t, onlyPtrace), true},
		"without, as in most containers": {
			[]string{"setpriv", "--bounding-set=-sys_ptrace,-perfmon", "--inh-caps=-sys_ptrace,-perfmon", program},
			"0000000000000000", false,
		},
	} {
		for _, where := range []string{s.DataDir, s.DSN("nobody", "nowhere")} {
			t.Run(name+"/"+where[:5], func(t *testing.T) {
				if _, err := exec.LookPath(test.command[0]); err != nil {
					t.Skipf("%v", err)
				}
				r, pid := become(t, append(slices.Clone(test.command), where, backend))
				checkReport(t, s, r, test.caps, test.trace)
				guarded(t, s, program, pid)
			})
		}
	}
}

// TestSomebodyElse checks the error for a user that is neither root nor the server's user.
func TestSomebodyElse(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	if os.Geteuid() != 0 || err != nil {
		t.Skipf("only root can run a program as nobody (%v)", err)
	}
	uid, err1 := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(nobody.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	program := buildBecome(t)
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	command := exec.Command(program, s.DataDir, "1")
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(out), cluster.ErrWrongUser.Error()) {
		t.Errorf("%v: %s", err, out)
	}
}

// The kernel may deny the same user access to a postmaster with a capability. A sleeping process represents the
// postmaster.
func TestCapablePostmaster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a process a capability")
	}
	program := buildBecome(t)
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	capable := s.AsServerUser(exec.Command("sleep", "600"))
	capable.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_CHOWN}
	if err := capable.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = capable.Process.Kill(); _ = capable.Wait() }()

	file := filepath.Join(s.DataDir, "postmaster.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	changed := fmt.Sprintf("%d\n%s", capable.Process.Pid, rest)
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile(file, text, 0o600) }()
	out, err := s.AsServerUser(exec.Command(program, s.DataDir, "1")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), cluster.ErrNoAccess.Error()) ||
		!strings.Contains(string(out), "capabilities that this process lacks (0x1)") {
		t.Errorf("%v: %s", err, out)
	}
}

// buildBecome builds the program as the worker is built, where the server's user can execute it.
func buildBecome(t *testing.T) string {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("the program that changes its user cannot be built: %v", err)
	}
	dir, err := os.MkdirTemp("", "become") // above t.TempDir is a directory that is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "become")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/become")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

// become starts the program and returns its report; it runs until the test ends.
func become(t *testing.T, command []string) (r report, pid int) {
	program := exec.Command(command[0], command[1:]...)
	program.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"}
	program.Stderr = os.Stderr
	in, err1 := program.StdinPipe()
	out, err2 := program.StdoutPipe()
	if err := errors.Join(err1, err2, program.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = program.Wait()
	})
	text, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("no report: %v", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r, program.Process.Pid
}

// privileges returns the report of a process with these capabilities. CAP_PERFMON is bit 38.
func privileges(uid, gid int, caps string, trace bool) cluster.Privileges {
	return cluster.Privileges{
		UID: uid, GID: gid, Changed: true, Trace: trace, Sample: caps[6] == '4',
	}
}

// mayRaise reports whether root may have real-time priority given to others: containers' roots often may not.
func mayRaise() bool {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &limit); err == nil && limit.Max > 0 {
		return true
	}
	own, err := process.ReadStatus(os.Getpid())
	return err == nil && own.CapEff&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func checkReport(t *testing.T, s *pgtest.Server, r report, caps string, trace bool) {
	uid, gid := s.OSUser()
	if want := privileges(uid, gid, caps, trace); r.Privileges != want {
		t.Errorf("%+v, want %+v", r.Privileges, want)
	}
	if want := mayRaise(); r.Urgent != want {
		t.Errorf("it may have real-time priority: %t, want %t", r.Urgent, want)
	}
	const none = "0000000000000000"
	want := map[string]string{
		"Uid": fmt.Sprintf("%d %d %d %d", uid, uid, uid, uid), "Gid": fmt.Sprintf("%d %d %d %d", gid, gid, gid, gid),
		"Groups": strconv.Itoa(gid), "CapPrm": caps, "CapEff": caps, "CapInh": none, "CapBnd": none, "CapAmb": none,
		"NoNewPrivs": "1",
	}
	if len(r.Threads) < 10 {
		t.Errorf("only %d threads", len(r.Threads))
	}
	for i, thread := range r.Threads {
		for name, value := range want {
			if thread[name] != value {
				t.Errorf("thread %d: %s is %s, want %s", i, name, thread[name], value)
			}
		}
	}
	if r.Stack == 0 || r.Role != "postgres" || r.BackToRoot == "" {
		t.Errorf("%d bytes of stack, role %q, back to root: %q", r.Stack, r.Role, r.BackToRoot)
	}
	if (r.Owner != 0) != trace { // its files in /proc belong to root when it is not dumpable
		t.Errorf("/proc/self/status belongs to user %d", r.Owner)
	}
	if r.User != "postgres" || r.Home == "/root" {
		t.Errorf("PGUSER %q, HOME %q", r.User, r.Home)
	}
}

// guarded checks that other processes of the server's user cannot trace the worker and so use the rights that it has
// kept.
func guarded(t *testing.T, s *pgtest.Server, program string, pid int) {
	out, err := s.AsServerUser(exec.Command(program, "trace", strconv.Itoa(pid))).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "not permitted to trace") {
		t.Errorf("the server's user traces the worker: %s%v", out, err)
	}
}

func TestBecomeServerUserRefused(t *testing.T) {
	other := os.Geteuid() + 1
	for name, uid := range map[string]int{"the server is root's": 0, "no user": -1, "another's": other} {
		if uid == other && os.Geteuid() == 0 {
			continue // root can become any user, and this process must stay root
		}
		if _, err := cluster.BecomeServerUser(cluster.Cluster{UID: uid}); !errors.Is(err, cluster.ErrWrongUser) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyPtraceIsTheBit(t *testing.T) {
	if got := fmt.Sprintf("%016x", 1<<unix.CAP_SYS_PTRACE); got != onlyPtrace {
		t.Errorf("%s, want %s", got, onlyPtrace)
	}
}
