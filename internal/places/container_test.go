package places

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/pg/cluster"
)

// service is a worker's process.
type service struct {
	*exec.Cmd

	log string // path
}

func (w *service) text() string {
	data, err := os.ReadFile(w.log)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// serve starts a worker as root with the arguments given, and waits until it is ready and connected.
func (s *elsewhere) serve(t *testing.T, arguments ...string) *service {
	t.Helper()
	return serveBy(t, exec.Command(program, append([]string{"worker"}, arguments...)...))
}

// serveBy starts a worker by a command, and waits likewise.
func serveBy(t *testing.T, command *exec.Cmd) *service {
	t.Helper()
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w := &service{Cmd: command, log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(w.log)
	if err != nil {
		t.Fatal(err)
	}
	w.Stdout, w.Stderr = log, log
	err = w.Start()
	_ = log.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Process.Signal(syscall.SIGTERM)
		_ = w.Wait()
		if t.Failed() {
			t.Log(w.text())
		}
	})
	pgtest.Wait(t, "the worker is ready", func() bool {
		return strings.Contains(w.text(), `"ready"`) && strings.Contains(w.text(), `"connected"`)
	})
	return w
}

func ask(t *testing.T, c *pgx.Conn, pid int) string {
	t.Helper()
	var answer string
	if err := c.QueryRow(t.Context(), "SELECT coalesce(pg_get_backtrace($1), 'NULL')", pid).Scan(&answer); err != nil {
		return err.Error()
	}
	return answer
}

const (
	ownProc = "mount -t proc none /proc; "
	plainly = `$RUN "$TREE/bin/postgres" -D "$FILES/data"`
)

// containers are ways to separate a server from the worker.
var containers = map[string]struct {
	script     string
	namespaces []string
	outside    bool
}{
	"PID namespace":                    {ownProc + "exec " + plainly, []string{"--pid", "--fork"}, true},
	"PID namespace, not its first one": {ownProc + plainly, withTime("--pid", "--fork"), true},
	"PID namespace and root directory": {pivot, []string{"--pid", "--fork", "--ipc", "--net", "--uts"}, true},
	"shared PID namespace, other root": {pivot, withTime(), false},
}

// withTime adds a time namespace if the kernel supports it. In the namespace, processes appear to have started a day
// later.
func withTime(namespaces ...string) []string {
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		return namespaces
	}
	return append(namespaces, "--time", "--boottime", "86400", "--monotonic", "86400")
}

// A worker outside of the server's namespaces serves it by the process ids of SQL.
func TestContainer(t *testing.T) {
	t.Parallel()
	for name, container := range containers {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait most of the time
			each(t, func(t *testing.T, binDir string) {
				s := startElsewhere(t, binDir, container.script, container.namespaces...)
				s.Exec(t, "CREATE EXTENSION pg_stat_backtrace; CREATE ROLE plain LOGIN; "+
					"GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain")
				dir := fmt.Sprintf("/proc/%d/root%s", s.postmaster, s.dataDir)
				w := s.serve(t, "-D", dir, fmt.Sprintf("user=%s dbname=postgres sslmode=disable", s.User))
				s.answers(t)
				s.hostPIDs(t, dir, container.outside)
				if container.outside {
					s.killed(t, w)
				}
			})
		})
	}
}

// answers requests processes one by one, by their ids in the server's namespace, and then all processes.
func (s *elsewhere) answers(t *testing.T) {
	boss := s.Connect(t, s.User, "postgres")
	plain, other := s.Connect(t, "plain", "postgres"), s.Connect(t, "plain", "postgres")
	target := sleeper(t, s.Server)
	for _, c := range []*pgx.Conn{boss, plain} {
		own := int(other.PgConn().PID())
		if got := ask(t, c, own); !strings.Contains(got, " in PostgresMain+0x") {
			t.Errorf("process %d: %s", own, got)
		}
	}
	got := ask(t, boss, target)
	for _, name := range []string{" in exec_stmt_block+0x", "PL/pgSQL function sleeps()", "waiting for Timeout: PgSleep"} {
		if !strings.Contains(got, name) {
			t.Errorf("no %q in %s", name, got)
		}
	}
	if got := ask(t, plain, target); !strings.Contains(got, "42501") {
		t.Errorf("a superuser's process: %s", got)
	}
	postmaster := statusNumber(s.postmaster, "NSpid")
	if got := ask(t, boss, postmaster); !strings.Contains(got, "42501") {
		t.Errorf("the postmaster, %d: %s", postmaster, got)
	}
	// Ids that are processes here, and not there.
	if strangers := []int{s.postmaster, os.Getpid(), s.here(t, target)}; postmaster != s.postmaster {
		for _, pid := range strangers {
			if got := ask(t, boss, pid); got != "NULL" {
				t.Errorf("process %d: %s", pid, got)
			}
		}
	}
	var planned int
	err := boss.QueryRow(t.Context(), "SELECT (pg_get_running_plan($1::int, 'json')::json ->> 'pid')::int", target).Scan(&planned)
	if err != nil || planned != target {
		t.Errorf("the plan of process %d is that of %d: %v", target, planned, err)
	}
	var queued int64
	if err := boss.QueryRow(t.Context(), "SELECT pg_request_backtrace($1::int)", target).Scan(&queued); err != nil {
		t.Fatal(err)
	}
	var state, message string
	pgtest.Wait(t, "the queued request is answered", func() bool {
		err := boss.QueryRow(t.Context(), "SELECT state, coalesce(message, '') FROM pg_backtrace_result($1)", queued).
			Scan(&state, &message)
		if err != nil {
			t.Fatal(err)
		}
		return state != "queued"
	})
	if state != "done" {
		t.Errorf("the queued request is %s: %s", state, message)
	}
	var processes, stacks int
	for range 10 { // a process may end between the two lists
		err := boss.QueryRow(t.Context(), `SELECT count(*), count(b.backtrace) FROM pg_stat_activity a
			LEFT JOIN pg_stat_backtrace b USING (pid) WHERE a.pid <> pg_backend_pid()`).Scan(&processes, &stacks)
		if err != nil {
			t.Fatal(err)
		}
		if stacks == processes {
			break
		}
	}
	if processes < 6 || stacks != processes {
		t.Errorf("%d processes, %d stacks", processes, stacks)
	}
}

// hostPIDs checks that the commands say which process ids are the server's and which are this host's.
func (s *elsewhere) hostPIDs(t *testing.T, dir string, outside bool) {
	t.Helper()
	s.Exec(t, "CREATE TABLE locked ()")
	holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
	if _, err := holder.PgConn().Exec(t.Context(), "BEGIN; LOCK locked").ReadAll(); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = waiter.PgConn().Exec(t.Context(), "SELECT FROM locked").ReadAll() }()
	pgtest.Wait(t, "the lock", func() bool {
		waits := false
		err := holder.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted").Scan(&waits)
		return err == nil && waits
	})
	own, blocked := int(holder.PgConn().PID()), int(waiter.PgConn().PID())
	here, there := s.here(t, own), s.here(t, blocked)
	print := func(arguments ...string) string {
		out, err := exec.Command(program, arguments...).CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v\n%s", arguments, err, out)
		}
		return regexp.MustCompile(" +").ReplaceAllString(string(out), " ")
	}
	const note = "The server has other process ids than this host"
	wants := map[string][]string{
		print("activity", "-D", dir):                  {note, "host_pid", fmt.Sprintf("\n%d %d client", own, here), fmt.Sprintf("\n%d %d client", blocked, there)},
		print("activity", "-D", dir, "--tree"):        {note, fmt.Sprintf("%d (host_pid %d) postgres@postgres", own, here), fmt.Sprintf("%d (host_pid %d)", blocked, there)},
		print("capture", strconv.Itoa(there)):         {fmt.Sprintf("held by %d (host_pid %d) (idle", own, here)},
		print("memory", "-D", dir):                    {fmt.Sprintf("%d (host_pid %d)", own, here)},
		print("top", "-D", dir, "--batch", "-n", "1"): {"own process ids"},
	}
	// Without -D, the process id also chooses the server, so it is this host's.
	if text := print("top", "--batch", "-n", "1", "--pid", strconv.Itoa(there)); !strings.Contains(text, "SELECT FROM locked") {
		t.Errorf("top --pid %d does not show the session:\n%s", there, text)
	}
	s.incident(t, dir)
	for text, parts := range wants {
		for _, part := range parts {
			if strings.Contains(text, part) != outside {
				t.Errorf("%q: expected %t in\n%s", part, outside, text)
			}
		}
	}
}

// incident checks that an incident has memory contexts, and stacks in its profile. Without CAP_BPF, the profile is by samples.
func (s *elsewhere) incident(t *testing.T, dir string) {
	file := filepath.Join(t.TempDir(), "incident.json")
	run(t, "setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin", program, "incident", "take", "-D", dir, "-o", file, "--profile", "2s")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var i incident.Incident
	if err := json.Unmarshal(text, &i); err != nil {
		t.Fatal(err)
	}
	if len(i.Memory) == 0 || len(i.Plans) == 0 {
		t.Errorf("%d processes with memory, %d with plans", len(i.Memory), len(i.Plans))
	}
	for _, m := range i.Memory {
		if m.Contexts == 0 {
			t.Errorf("memory of %d: %s", m.PID, m.Error)
		}
	}
	for _, p := range i.Plans {
		if strings.Contains(p.Error, cluster.ErrNotMember.Error()) {
			t.Errorf("plan of %d: %s", p.PID, p.Error)
		}
	}
	if p := i.Profile; p.Method != incident.BySamples || !slices.ContainsFunc(p.Stacks, func(s incident.ProfileStack) bool { return len(s.Frames) > 0 }) {
		t.Errorf("profile: %+v", p)
	}
}

// killed checks that the server notices the end of a worker that it cannot see.
func (s *elsewhere) killed(t *testing.T, w *service) {
	boss := s.Connect(t, s.User, "postgres")
	served := func(want bool) {
		t.Helper()
		var got bool
		if err := boss.QueryRow(t.Context(), "SELECT backtrace.served()").Scan(&got); err != nil || got != want {
			t.Errorf("a worker serves: %v, %v; want %v", got, err, want)
		}
	}
	served(true)
	if err := w.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(pgtest.Patience); ; {
		began := time.Now()
		got := ask(t, boss, 1<<30)
		if strings.Contains(got, "is not running") && time.Since(began) < time.Second {
			served(false)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", time.Since(began), got)
		}
	}
}
