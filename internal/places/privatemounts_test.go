package places

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// withMounts is a server in a mount namespace that has the same root directory as this process, but other files at some
// paths, as with PrivateTmp=, BindPaths= and TemporaryFileSystem= of a systemd unit.
type withMounts struct {
	postmaster int
	dataDir    string // as the server names it
	dsn        string
}

// startWithMounts starts a server by a script in a new mount namespace. env are the variables of the script, which must
// execute the server. sockets is the directory of the server's socket.
func startWithMounts(t *testing.T, s *pgtest.Server, script, dataDir, sockets string, env ...string) *withMounts {
	t.Helper()
	uid, gid := s.OSUser()
	launch := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-euc", script)
	launch.Env = append(env, "PATH="+os.Getenv("PATH"), "LC_ALL=C", "D="+dataDir, "SOCKETS="+sockets,
		fmt.Sprintf("RUN=setpriv --reuid=%d --regid=%d --clear-groups --", uid, gid), fmt.Sprintf("OWNER=%d:%d", uid, gid))
	launch.Dir = "/"
	launch.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	launch.Stdout, launch.Stderr = f, f
	err = launch.Start()
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = launch.Process.Signal(syscall.SIGQUIT)
		_ = launch.Wait()
		if text, err := os.ReadFile(log); t.Failed() {
			t.Logf("%s %v", text, err)
		}
	})
	pid := launch.Process.Pid // each program of the script executes the next one
	m := &withMounts{postmaster: pid, dataDir: dataDir, dsn: fmt.Sprintf("host=/proc/%d/root%s port=%d user=%s dbname=postgres",
		pid, sockets, s.Port, s.User)}
	pgtest.Wait(t, "the server accepts connections", func() bool {
		c, err := pgx.Connect(t.Context(), m.dsn)
		if err == nil {
			_ = c.Close(t.Context())
		}
		return err == nil
	})
	return m
}

// path returns the path of the server's data directory through the server's own root directory.
func (m *withMounts) path() string { return fmt.Sprintf("/proc/%d/root%s", m.postmaster, m.dataDir) }

// isListed runs the command activity with a path of the server's data directory. It checks that it lists the processes of this
// server, and names the directory as wanted.
func (m *withMounts) isListed(t *testing.T, path, want string) {
	t.Helper()
	var answer struct {
		DataDirectory string `json:"data_directory"`
		Sessions      []struct {
			PID int `json:"pid"`
		} `json:"sessions"`
	}
	out, err := exec.Command(program, "activity", "--format", "json", "-D", path).CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &answer)
	}
	if err != nil {
		t.Errorf("activity -D %s: %v\n%s", path, err, out)
		return
	}
	if answer.DataDirectory != want || len(answer.Sessions) == 0 {
		t.Errorf("%d processes of %s, not of %s", len(answer.Sessions), answer.DataDirectory, want)
	}
	living := 0
	for _, session := range answer.Sessions {
		parent := statusNumber(session.PID, "PPid")
		if parent == 0 {
			continue // it has ended since
		}
		if living++; parent != m.postmaster {
			t.Errorf("-D %s: process %d is a child of %d, not of %d", path, session.PID, parent, m.postmaster)
		}
	}
	if living == 0 {
		t.Errorf("-D %s: none of %d processes exists", path, len(answer.Sessions))
	}
}

// answers asks by SQL for the stack of a process of the server.
func (m *withMounts) answers(t *testing.T) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), m.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	var pid int
	if err := c.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if text := ask(t, c, pid); !strings.HasPrefix(text, "#0 ") {
		t.Errorf("the answer is %s", text)
	}
}

// TestPrivateMounts: a server with the same root directory as the worker, and other files at some paths. -D with a path through
// /proc/PID/root leads to this server, and never to one outside that has the same path.
func TestPrivateMounts(t *testing.T) {
	needRoot(t, "unshare", "setpriv")
	bin := npm(t)
	outer := pgtest.Start(t, bin, pgtest.Options{})
	outer.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	outer.Stop("fast")
	room, sockets, copied := openDir(t, "room"), openDir(t, "sockets"), filepath.Join(openDir(t, "copy"), "data")
	uid, gid := outer.OSUser()
	if err := os.Chown(sockets, uid, gid); err != nil {
		t.Fatal(err)
	}
	run(t, "cp", "-a", outer.DataDir, copied)
	outer.Start()
	env := []string{"BIN=" + bin, "COPY=" + copied, "ROOM=" + room}
	const serve = `exec $RUN "$BIN/postgres" -D "$D" -k "$SOCKETS"`

	t.Run("another directory at the same path", func(t *testing.T) {
		m := startWithMounts(t, outer, `mount --bind "$COPY" "$D"; `+serve, outer.DataDir, sockets, env...)
		m.isListed(t, m.path(), m.path())
		outside := withMounts{postmaster: outer.PostmasterPID(), dataDir: outer.DataDir}
		outside.isListed(t, outer.DataDir, outer.DataDir)
		outside.isListed(t, outside.path(), outer.DataDir)
		w := serveAll(t, filepath.Join(openDir(t, "history"), "state"), outer.DataDir)
		for _, s := range []struct {
			name       string
			postmaster int
		}{{m.path(), m.postmaster}, {outer.DataDir, outside.postmaster}} {
			pgtest.Wait(t, "a worker that is connected to the server in "+s.name, func() bool {
				started, connected := false, false
				for _, e := range w.entries() {
					started = started || e.Message == "started a worker" && e.Cluster == s.name && e.Postmaster == s.postmaster
					connected = connected || e.Message == "connected" && e.Cluster == s.name
				}
				return started && connected
			})
		}
		m.answers(t)
	})
	t.Run("a data directory without a path outside", func(t *testing.T) {
		const script = `mount -t tmpfs none "$D"; cp -a "$COPY/." "$D"; chown $OWNER "$D"; chmod 700 "$D"; ` + serve
		m := startWithMounts(t, outer, script, room, sockets, env...)
		m.isListed(t, m.path(), m.path())
		serveBy(t, exec.Command(program, "worker", "-D", m.path()))
		m.answers(t)
	})
	t.Run("sockets and shared memory without a path outside", func(t *testing.T) {
		const script = `for d in "$SOCKETS" /dev/shm; do mount -t tmpfs none $d; chown $OWNER $d; chmod 1777 $d; done; ` + serve
		m := startWithMounts(t, outer, script, copied, sockets, env...)
		m.isListed(t, copied, copied)
		m.isListed(t, m.path(), copied)
		serveBy(t, exec.Command(program, "worker", "-D", copied))
		m.answers(t)
	})
	t.Run("a program and its debug file without a path outside", func(t *testing.T) {
		needRoot(t, "objcopy")
		tree := copyTree(t, bin)
		whole, debug := filepath.Join(tree, "bin/postgres"), filepath.Join(tree, "bin/postgres.debug")
		run(t, "objcopy", "--only-keep-debug", whole, debug)
		run(t, "objcopy", "--strip-all", "--add-gnu-debuglink="+debug, whole)
		const script = `mount -t tmpfs none "$ROOM"; cp -a "$TREE/." "$ROOM"; chmod 755 "$ROOM"
exec $RUN "$ROOM/bin/postgres" -D "$D" -k "$SOCKETS"`
		m := startWithMounts(t, outer, script, copied, sockets, append(env, "TREE="+tree)...)
		m.isListed(t, copied, copied)
		var answer struct {
			Images []struct {
				Name  string `json:"name"`
				Debug string `json:"debug_file"`
			} `json:"images"`
		}
		out, err := exec.Command(program, "symbols", "--json", strconv.Itoa(m.postmaster)).Output()
		if err == nil {
			err = json.Unmarshal(out, &answer)
		}
		if err != nil || len(answer.Images) == 0 {
			t.Fatalf("%v: %s", err, out)
		}
		if first := answer.Images[0]; first.Name != "postgres" || first.Debug != room+"/bin/postgres.debug" {
			t.Errorf("the debug file of %s is %q", first.Name, first.Debug)
		}
	})
}

// arguments returns the command line of the worker's process; "": it has ended.
func (w *service) arguments() string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", w.Process.Pid))
	return string(text)
}

// TestReplacedDataDirectory: a worker as the systemd unit starts it, which may write only below the data directory that was there
// at its start. When another directory takes its place, only a new process can write there, so the worker ends.
func TestReplacedDataDirectory(t *testing.T) {
	needRoot(t, "unshare")
	s := pgtest.Start(t, npm(t), pgtest.Options{})
	const script = `mount --bind "$P" "$P"; mount --bind "$D" "$D"; mount -o remount,bind,ro "$P"; exec "$PROGRAM" worker -D "$D"`
	unit := exec.Command("unshare", "-m", "sh", "-euc", script)
	unit.Env = append(os.Environ(), "P="+filepath.Dir(s.DataDir), "D="+s.DataDir, "PROGRAM="+program)
	w := serveBy(t, unit)
	s.Stop("fast")
	if err := os.Rename(s.DataDir, s.DataDir+".old"); err != nil {
		t.Fatal(err)
	}
	run(t, "cp", "-a", s.DataDir+".old", s.DataDir)
	s.Start()
	pgtest.Wait(t, "the worker ends", func() bool { return len(w.arguments()) == 0 })
	if text := w.text(); !strings.Contains(text, "read-only file system") {
		t.Errorf("it ended for another reason:\n%s", text)
	}
}

// TestFullSharedMemory: a worker as the systemd unit starts it, to which the temporary directory is read-only. While /dev/shm is full,
// it refuses calls and does everything else. It answers again as soon as there is room.
func TestFullSharedMemory(t *testing.T) {
	needRoot(t, "unshare", "setpriv", "nsenter")
	s := pgtest.Start(t, npm(t), pgtest.Options{})
	if strings.HasPrefix(s.DataDir, "/dev/shm/") {
		t.Skip("the server's files are in /dev/shm")
	}
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	s.Stop("fast")
	sockets := openDir(t, "sockets")
	uid, gid := s.OSUser()
	if err := os.Chown(sockets, uid, gid); err != nil {
		t.Fatal(err)
	}
	const script = `mount -t tmpfs -o size=8m none /dev/shm; chmod 1777 /dev/shm; mount --bind "$T" "$T"
for d in "$D" "$SOCKETS"; do mount --bind "$d" "$d"; done; mount -o remount,bind,ro "$T"; cd "$D"
exec $RUN "$BIN/postgres" -D "$D" -k "$SOCKETS"`
	m := startWithMounts(t, s, script, s.DataDir, sockets, "BIN="+s.BinDir, "T="+os.TempDir())
	w := serveBy(t, exec.Command("nsenter", "-m", "-t", strconv.Itoa(m.postmaster), program, "worker", "-D", s.DataDir))
	m.answers(t)
	c, err := pgx.Connect(t.Context(), m.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	filler := fmt.Sprintf("/proc/%d/root/dev/shm/filler", m.postmaster)
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); err == nil {
		t.Fatal("/dev/shm is not full")
	}
	var since time.Time
	pgtest.Wait(t, "calls are refused", func() bool {
		refused := strings.Contains(ask(t, c, m.postmaster), "takes no requests at the moment")
		if refused && since.IsZero() {
			since = time.Now()
		}
		return refused && time.Since(since) > 5*time.Second || len(w.arguments()) == 0 // the worker looks for room every two seconds
	})
	if len(w.arguments()) == 0 {
		t.Fatal("the worker has ended")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "calls are accepted again", func() bool {
		return strings.Contains(ask(t, c, m.postmaster), "42501") // the answer about the postmaster
	})
	if text := w.text(); strings.Contains(text, "the spool is lost") {
		t.Errorf("the worker gave its spool up:\n%s", text)
	}
}
