package places

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
)

// elsewhere is a server in separate namespaces.
type elsewhere struct {
	*pgtest.Server

	postmaster int    // its id in this process's PID namespace
	dataDir    string // as the server names it
}

// The ways to set a server apart. Each is a shell script that runs in a new mount namespace, as root. $TREE is the
// installation, $FILES the server's files and $ROOM an empty directory. $RUN runs a command as the server's user.
const (
	overlay = `mount -t tmpfs none "$ROOM"; mkdir "$ROOM/up" "$ROOM/work" "$ROOM/all"; chmod 755 "$ROOM"
mount -t overlay none -o "lowerdir=$TREE,upperdir=$ROOM/up,workdir=$ROOM/work" "$ROOM/all"
touch "$ROOM/all/bin/postgres"
exec $RUN "$ROOM/all/bin/postgres" -D "$FILES/data"`
	// A root directory with only the files that a server needs, at other paths than outside.
	room = `mount -t tmpfs none "$ROOM"; chmod 755 "$ROOM"; cd "$ROOM"
mkdir opt opt/pg srv srv/pg tmp proc dev old etc
for d in usr bin lib lib64; do [ -e /$d ] && { mkdir $d; mount --rbind /$d $d; }; done
cp /etc/passwd /etc/group etc
mount --bind "$TREE" opt/pg; mount --bind "$FILES" srv/pg; mount --rbind /dev dev; mount -t proc none proc
mount -t tmpfs none dev/shm; chmod 1777 dev/shm tmp
`
	pivot = room + `pivot_root . old; umount -l old; rmdir old
exec $RUN /opt/pg/bin/postgres -D /srv/pg/data -k /srv/pg/socket`
	jail = room + `exec chroot "$ROOM" $RUN /opt/pg/bin/postgres -D /srv/pg/data -k /srv/pg/socket`
)

// startElsewhere starts a server by one of the scripts, in new namespaces given as arguments of unshare(1).
func startElsewhere(t *testing.T, binDir, script string, namespaces ...string) *elsewhere {
	t.Helper()
	needRoot(t, "unshare", "setpriv")
	tree := copyTree(t, binDir)
	s := &elsewhere{Server: pgtest.Start(t, filepath.Join(tree, "bin"), pgtest.Options{Stopped: true})}
	uid, gid := s.OSUser()
	s.dataDir = s.DataDir
	if strings.Contains(script, "/srv/pg") {
		s.dataDir = "/srv/pg/data"
	}
	arguments := append([]string{"-m", "--propagation", "private"}, namespaces...)
	launch := exec.Command("unshare", append(arguments, "sh", "-euc", script)...)
	launch.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TREE=" + tree, "FILES=" + filepath.Dir(s.DataDir),
		"ROOM=" + openDir(t, "room"),
		fmt.Sprintf("RUN=setpriv --reuid=%d --regid=%d --clear-groups --", uid, gid),
	}
	launch.Dir = "/"
	launch.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	launch.Stdout, launch.Stderr = log, log
	err = launch.Start()
	_ = log.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.postmaster != 0 {
			_ = syscall.Kill(s.postmaster, syscall.SIGQUIT)
		} else {
			_ = launch.Process.Kill()
		}
		_ = launch.Wait()
	})
	pgtest.Wait(t, "the server accepts connections\n"+s.Log(), func() bool {
		c, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
		if err != nil {
			return false
		}
		_ = c.Close(t.Context())
		return true
	})
	s.postmaster = s.findPostmaster(t)
	return s
}

// findPostmaster finds the process that works in the data directory and has no parent there.
func (s *elsewhere) findPostmaster(t *testing.T) int {
	t.Helper()
	inside := func(pid int) bool {
		a, err1 := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
		b, err2 := os.Stat(s.DataDir)
		return errors.Join(err1, err2) == nil && os.SameFile(a, b)
	}
	for _, pid := range processes(t) {
		if inside(pid) && !inside(statusNumber(pid, "PPid")) {
			return pid
		}
	}
	t.Fatal("there is no postmaster")
	return 0
}

func processes(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// statusNumber returns the last number of a line of /proc/PID/status: for NSpid the id in the process's own namespace.
func statusNumber(pid int, key string) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			fields := strings.Fields(value)
			n, _ := strconv.Atoi(fields[len(fields)-1])
			return n
		}
	}
	return 0
}

// here returns the id of a server process in this process's PID namespace.
func (s *elsewhere) here(t *testing.T, pid int) int {
	t.Helper()
	for _, p := range processes(t) {
		if statusNumber(p, "PPid") == s.postmaster && statusNumber(p, "NSpid") == pid {
			return p
		}
	}
	t.Fatalf("no child of %d is process %d of the server", s.postmaster, pid)
	return 0
}

// TestFilesElsewhere captures processes from the command line. This process cannot open their files by any path.
func TestFilesElsewhere(t *testing.T) {
	selected := figure.Share(t, 3)
	for i, way := range []struct{ name, script string }{{"overlay", overlay}, {"pivot_root", pivot}, {"chroot", jail}} {
		if !selected(i) {
			continue
		}
		t.Run(way.name, func(t *testing.T) {
			each(t, func(t *testing.T, binDir string) {
				s := startElsewhere(t, binDir, way.script)
				pid := s.here(t, sleeper(t, s.Server))
				root := stack(t, s.Server, pid, "nice", "-n0")
				complete(t, "by root", root)
				same(t, "by the server's user", stack(t, s.Server, pid), root, false)
			})
		})
	}
}
