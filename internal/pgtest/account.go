package pgtest

import (
	"cmp"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

const envUser = "PGSB_TEST_USER"

// account is the operating system user that runs the server.
type account struct {
	uid, gid int
	other    bool // not the user that runs the test
}

// serverAccount returns the account with a name. An empty name means the value of PGSB_TEST_USER, or postgres. If root
// does not run the test, serverAccount ignores the name and returns the account that runs the test.
func serverAccount(t testing.TB, name string) account {
	t.Helper()
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}
	}
	name = cmp.Or(name, os.Getenv(envUser), "postgres")
	u, err := user.Lookup(name)
	if err != nil {
		t.Skipf("running as root, and PostgreSQL will not: %v; set %s", err, envUser)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err1 != nil || err2 != nil {
		t.Fatalf("user %s has the ids %s and %s", name, u.Uid, u.Gid)
	}
	return account{uid: uid, gid: gid, other: true}
}

// apply makes command run as the account, in a new session, so that ^C at the terminal ends only the test. The working directory
// is a directory that the account can enter. The environment has no variables of libpq.
func (a account) apply(command *exec.Cmd) *exec.Cmd {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.other {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	command.Dir = "/"
	command.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	return command
}

// makeRoot makes the directory that contains all files of one server.
func (s *Server) makeRoot() string {
	s.t.Helper()
	// Not t.TempDir, whose path contains the name of the test: the path of a socket must be shorter than 108 bytes.
	root, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		s.t.Fatal(err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		s.t.Fatal(err)
	}
	socket := filepath.Join(root, "socket")
	if err := os.Mkdir(socket, 0o700); err != nil {
		s.t.Fatal(err)
	}
	for _, dir := range []string{root, socket} {
		if err := os.Chown(dir, s.account.uid, s.account.gid); err != nil {
			s.t.Fatal(err)
		}
	}
	return root
}

// write makes or replaces a file that belongs to the server's user.
func (s *Server) write(file, content string) {
	s.t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Chown(file, s.account.uid, s.account.gid); err != nil {
		s.t.Fatal(err)
	}
}

// watchdogScript waits for a line on standard input. If the input ends without a line, the test process has died. The script
// then stops the server and removes the files.
const watchdogScript = `read -r line && exit 0; "$1"/pg_ctl stop -s -w -m immediate -D "$2"; rm -rf -- "$3"`

func watchdog(t testing.TB, a account, binDir, dataDir, root string) (stop func()) {
	t.Helper()
	dog := a.apply(exec.Command("/bin/sh", "-c", watchdogScript, "sh", binDir, dataDir, root))
	in, err := dog.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dog.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_, _ = io.WriteString(in, "done\n")
		_ = dog.Wait()
	}
}
