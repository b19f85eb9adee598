package places

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/store"
)

// least are the capabilities of the DaemonSet in packaging/kubernetes.
const least = "-all,+sys_ptrace,+setuid,+setgid,+setpcap,+dac_read_search,+chown,+kill"

// all is a running `worker --all`.
type all struct {
	*service
}

// serveAll starts `worker --all` as root, with the capabilities of the DaemonSet, for clusters in these directories. The workers
// record to a directory.
func serveAll(t *testing.T, recordDir string, below ...string) all {
	t.Helper()
	return serveAllWith(t, nil, recordDir, below...)
}

// serveAllWith is serveAll with more arguments.
func serveAllWith(t *testing.T, more []string, recordDir string, below ...string) all {
	t.Helper()
	words := []string{
		"--no-new-privs", "--inh-caps=-all", "--bounding-set=" + least, "--",
		program, "worker", "--all", "--log-format", "json", "--record-dir", recordDir, "--record-min-free", "1MB",
	}
	for _, dir := range below {
		words = append(words, "--below", dir)
	}
	words = append(words, more...)
	command := exec.Command("setpriv", words...)
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w := &service{Cmd: command, log: filepath.Join(t.TempDir(), "log")}
	log, err := os.OpenFile(w.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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
	return all{w}
}

// entry is a line of the log.
type entry struct {
	Message, Cluster, Reason string
	Error, Rule              string
	Worker, Postmaster       int
}

func (a all) entries() (list []entry) {
	for line := range strings.Lines(a.text()) {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil {
			list = append(list, e)
		}
	}
	return list
}

// count returns the number of lines with a message about a cluster whose directory ends so.
func (a all) count(message, dir string) (n int) {
	for _, e := range a.entries() {
		if e.Message == message && strings.HasSuffix(e.Cluster, dir) {
			n++
		}
	}
	return n
}

// worker returns the process of the newest worker of a cluster.
func (a all) worker(dir string) (pid int) {
	for _, e := range a.entries() {
		if e.Message == "started a worker" && strings.HasSuffix(e.Cluster, dir) {
			pid = e.Worker
		}
	}
	return pid
}

func alive(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(state), ") Z ")
}

func answers(t *testing.T, s *pgtest.Server) bool {
	t.Helper()
	c := s.Connect(t, s.User, "postgres")
	defer func() { _ = c.Close(t.Context()) }()
	var pid int
	const checkpointer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
	if err := c.QueryRow(t.Context(), checkpointer).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return strings.HasPrefix(ask(t, c, pid), "#0 ")
}

// One process serves a server of this root directory and one in a container. Each has its own worker: a worker that
// hangs or dies affects no other, and a worker follows the end and the new start of its server.
func TestAll(t *testing.T) {
	needRoot(t, "unshare", "setpriv")
	bins := pgtest.BinDirs(t)
	bin := bins[0]
	outer := pgtest.Start(t, bin, pgtest.Options{})
	inner := startElsewhere(t, bin, pivot, "--pid", "--fork", "--ipc", "--net", "--uts")
	for _, s := range []*pgtest.Server{outer, inner.Server} {
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	}
	public, err := os.MkdirTemp("", "history") // other users cannot reach the files of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(public) })
	if err := os.Chmod(public, 0o755); err != nil { // so that the workers reach their folders
		t.Fatal(err)
	}
	history := filepath.Join(public, "state")
	w := serveAll(t, history, outer.DataDir, "/srv/pg")
	for _, s := range []*pgtest.Server{outer, inner.Server} {
		pgtest.Wait(t, "an answer of "+s.DataDir, func() bool { return answers(t, s) })
	}
	own, its := w.worker(outer.DataDir), w.worker("/srv/pg/data")
	if own == its || own == 0 || its == 0 {
		t.Fatalf("workers %d and %d", own, its)
	}
	if uid, _ := outer.OSUser(); statusNumber(own, "Uid") != uid {
		t.Errorf("the worker runs as user id %d, the server as %d", statusNumber(own, "Uid"), uid)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", own))
	if data := regexp.MustCompile(`Max data size +1073741824 +1073741824 `); err == nil && !data.Match(limits) {
		t.Errorf("a worker may take all memory:\n%s", limits)
	}
	if core := regexp.MustCompile(`Max core file size +[01] +[01] `); err != nil || !core.Match(limits) {
		t.Errorf("the owner of a cluster could get a core file of its worker: %s %v", limits, err)
	}

	t.Run("the history of both servers", func(t *testing.T) {
		for _, pid := range []int{own, its} {
			uid := statusNumber(pid, "Uid")
			folder := filepath.Join(history, fmt.Sprint(store.UserFolder, uid))
			var st unix.Stat_t
			if err := unix.Lstat(folder, &st); err != nil || int(st.Uid) != uid || st.Mode != unix.S_IFDIR|0o700 {
				t.Errorf("%s: user %d, mode %o, %v", folder, st.Uid, st.Mode, err)
			}
		}
		for _, s := range []*pgtest.Server{outer, inner.Server} {
			pgtest.Wait(t, "a sweep of "+s.DataDir, func() bool { return recorded(t, history, s) })
		}
	})

	t.Run("a worker that stands still", func(t *testing.T) {
		_ = syscall.Kill(own, syscall.SIGSTOP)
		if !answers(t, inner.Server) {
			t.Error("the other server has no answer")
		}
		_ = syscall.Kill(own, syscall.SIGCONT)
		pgtest.Wait(t, "an answer", func() bool { return answers(t, outer) })
	})
	t.Run("a worker that dies", func(t *testing.T) {
		_ = syscall.Kill(its, syscall.SIGKILL)
		pgtest.Wait(t, "a new worker", func() bool { return w.worker("/srv/pg/data") != its })
		pgtest.Wait(t, "an answer", func() bool { return answers(t, inner.Server) })
		if w.worker(outer.DataDir) != own {
			t.Error("the other worker was started anew, too")
		}
	})
	t.Run("a server that ends and comes back", func(t *testing.T) {
		outer.Stop("fast")
		pgtest.Wait(t, "the end of the worker", func() bool { return !alive(own) })
		outer.Start()
		pgtest.Wait(t, "a new worker", func() bool { return w.worker(outer.DataDir) != own })
		pgtest.Wait(t, "an answer", func() bool { return answers(t, outer) })
	})
	t.Run("a cluster that has a worker", func(t *testing.T) {
		second := serveAll(t, history, outer.DataDir)
		pgtest.Wait(t, "the second one sees the first", func() bool {
			return second.count("no worker for this process", outer.DataDir) == 1
		})
		if n := second.count("started a worker", outer.DataDir); n != 0 {
			t.Errorf("%d workers were started for a cluster that has one", n)
		}
	})
	t.Run("the supervisor is killed", func(t *testing.T) {
		own, its := w.worker(outer.DataDir), w.worker("/srv/pg/data")
		_ = w.Process.Kill()
		pgtest.Wait(t, "the end of the workers", func() bool { return !alive(own) && !alive(its) })
	})
}

// recorded reports whether a folder below a directory has the history of a server.
func recorded(t *testing.T, dir string, s *pgtest.Server) bool {
	t.Helper()
	var id string
	c := s.Connect(t, s.User, "postgres")
	defer func() { _ = c.Close(t.Context()) }()
	if err := c.QueryRow(t.Context(), "SELECT system_identifier::text FROM pg_control_system()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(filepath.Join(dir, store.UserFolder+"*"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, folder := range folders {
		r, err := store.OpenReader(folder, id)
		if err != nil {
			continue
		}
		now := time.Now()
		if err := r.Sweeps(t.Context(), now.Add(-time.Hour), now.Add(time.Minute), func(store.SweepInfo) error { found++; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	return found > 0
}
