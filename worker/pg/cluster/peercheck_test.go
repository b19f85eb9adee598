package cluster_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

const secret = "s3cret"

// impostor is a process that asks for passwords in clear text on a unix socket.
type impostor struct {
	dir string

	mu sync.Mutex
	// hangsUp means that it closes the connection after the answer to its request.
	hangsUp bool
	heard   []byte
	asked   int
	closed  int
}

// listenAs starts an impostor of another user.
func listenAs(t *testing.T, uid int, dirMode os.FileMode) *impostor {
	t.Helper()
	dir, err := os.MkdirTemp("", "peer") // its name is too long for a socket's
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, dirMode); err != nil {
		t.Fatal(err)
	}
	i := &impostor{dir: dir}
	listener, err := listenOn(filepath.Join(dir, ".s.PGSQL.5432"), uid)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { i.ask(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
		_ = os.RemoveAll(dir)
	})
	return i
}

// listenOn listens with the credentials of a user. The kernel records the credentials at listen().
func listenOn(path string, uid int) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: this thread ends as another user's
		fd, e := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err = errors.Join(e, unix.Bind(fd, &unix.SockaddrUnix{Name: path})); err != nil {
			return
		}
		keep := ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
			err = errno
			return
		}
		if err = unix.Listen(fd, 10); err != nil {
			return
		}
		f := os.NewFile(uintptr(fd), path)
		l, err = net.FileListener(f)
		_ = f.Close()
	}()
	<-done
	return l, err
}

// ask requests a password in clear text, and keeps all data that the client sends.
func (i *impostor) ask(client net.Conn) {
	defer client.Close()
	i.mu.Lock()
	i.asked++
	i.mu.Unlock()
	buf := make([]byte, 4096)
	for first := true; ; first = false {
		_ = client.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := client.Read(buf)
		i.mu.Lock()
		i.heard = append(i.heard, buf[:n]...)
		enough := i.hangsUp && !first
		i.mu.Unlock()
		if err != nil || enough {
			if err == nil || errors.Is(err, io.EOF) {
				i.mu.Lock()
				i.closed++
				i.mu.Unlock()
			}
			return
		}
		if first {
			request := binary.BigEndian.AppendUint32([]byte{'R'}, 8)
			_, _ = client.Write(binary.BigEndian.AppendUint32(request, 3))
		}
	}
}

func (i *impostor) hangUp() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hangsUp = true
}

// said waits until a client has connected and disconnected, and returns the data that the client has sent.
func (i *impostor) said(t *testing.T) string {
	t.Helper()
	pgtest.Wait(t, "a client has come and gone", func() bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.closed > 0
	})
	i.mu.Lock()
	defer i.mu.Unlock()
	return string(i.heard)
}

func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a socket of another user is made by root only")
	}
}

// TestImpostorHearsNothing checks that a process of another user on the server's socket gets no data, not even the
// user name.
func TestImpostorHearsNothing(t *testing.T) {
	root(t)
	t.Setenv("PGPASSWORD", secret)
	i := listenAs(t, 65534, 0o755)
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	c := byDataDir(t, server)
	s := supervise(t, cluster.ConnOptions{ConnString: "host=" + i.dir + " user=postgres", Cluster: &c})
	if err := s.await(t, false).Err; !errors.Is(err, cluster.ErrImpostor) {
		t.Error(err)
	}
	if said := i.said(t); said != "" {
		t.Errorf("it has heard %q", said)
	}
}

// TestContainerGetsNoPassword: a server below another root gets no password from the password file, and none in clear
// text. It does not matter where the password comes from.
func TestContainerGetsNoPassword(t *testing.T) {
	root(t)
	passfile := filepath.Join(t.TempDir(), "pgpass")
	if err := os.WriteFile(passfile, []byte("*:*:*:*:"+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		format string
		env    [2]string
		root   string
		gets   bool
	}{
		"password file": {"host=%s user=u", [2]string{"PGPASSFILE", passfile}, "container", false},
		"password file, URI": {
			"postgres:///d?host=%s&user=u", [2]string{"PGPASSFILE", passfile}, "container", false,
		},
		"password file of the string":  {"host=%s user=u passfile=" + passfile, [2]string{"PGUSER", ""}, "container", false},
		"environment":                  {"host=%s user=u", [2]string{"PGPASSWORD", secret}, "container", false},
		"connection string":            {"host=%s user=u password=" + secret, [2]string{"PGUSER", ""}, "container", false},
		"a server of this root":        {"host=%s user=u", [2]string{"PGPASSFILE", passfile}, "", true},
		"a server of this root, by it": {"host=%s user=u password=" + secret, [2]string{"PGUSER", ""}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			test.root = strings.ReplaceAll(test.root, "container", "/proc/1/root")
			t.Setenv(test.env[0], test.env[1])
			i := listenAs(t, 0, 0o755)
			i.hangUp()
			c := cluster.Cluster{UID: 0, Root: test.root, PostmasterPID: 1}
			s := supervise(t, cluster.ConnOptions{
				ConnString: fmt.Sprintf(test.format, i.dir), Cluster: &c, MinBackoff: time.Hour, MaxBackoff: time.Hour,
				ConnectTimeout: time.Minute,
			})
			s.await(t, false)
			if got := strings.Contains(i.said(t), secret); got != test.gets {
				t.Errorf("it has heard the password: %v", got)
			}
		})
	}
}

// TestForeignServerGetsNoPassword: a server that may belong to any user gets a password in clear text only if
// require_auth names this method. It does not matter where the password comes from.
func TestForeignServerGetsNoPassword(t *testing.T) {
	root(t)
	passfile := filepath.Join(t.TempDir(), "pgpass")
	service := filepath.Join(t.TempDir(), "pg_service.conf")
	if err := errors.Join(os.WriteFile(passfile, []byte("*:*:*:*:"+secret+"\n"), 0o600),
		os.WriteFile(service, []byte("[s]\npassword="+secret+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		words string
		env   map[string]string
		gets  bool
	}{
		"connection string":        {"password=" + secret, nil, false},
		"environment":              {"", map[string]string{"PGPASSWORD": secret}, false},
		"password file":            {"", map[string]string{"PGPASSFILE": passfile}, false},
		"service":                  {"", map[string]string{"PGSERVICE": "s", "PGSERVICEFILE": service}, false},
		"another method excluded":  {"require_auth=!none password=" + secret, nil, false},
		"MD5 excluded":             {"require_auth=!md5 password=" + secret, nil, false},
		"excluded by environment":  {"password=" + secret, map[string]string{"PGREQUIREAUTH": " !none , !gss"}, false},
		"another method":           {"require_auth=md5,scram-sha-256 password=" + secret, nil, false},
		"named in the string":      {"require_auth=password password=" + secret, nil, true},
		"named in the environment": {"password=" + secret, map[string]string{"PGREQUIREAUTH": "md5,password"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range test.env {
				t.Setenv(variable, value)
			}
			i := listenAs(t, 0, 0o755)
			i.hangUp()
			c := cluster.Cluster{UID: 0, PostmasterPID: 1}
			o := cluster.ConnOptions{
				ConnString: "host=" + i.dir + " user=u " + test.words, Cluster: &c, Foreign: true,
				MinBackoff: time.Hour, MaxBackoff: time.Hour, ConnectTimeout: time.Minute,
			}
			err := supervise(t, o).await(t, false).Err
			if got := strings.Contains(i.said(t), secret); got != test.gets {
				t.Errorf("the main session: it has heard the password: %v", got)
			}
			if advised := strings.Contains(err.Error(), "require_auth=md5"); advised != strings.Contains(err.Error(), `"!`) {
				t.Error(err)
			}
			i = listenAs(t, 0, 0o755)
			i.hangUp()
			o.ConnString = "host=" + i.dir + " user=u " + test.words
			config, err := cluster.SessionConfig(o, "other")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), o.ConnectTimeout)
			defer cancel()
			if conn, err := pgx.ConnectConfig(ctx, config); err == nil {
				t.Error("connected", conn.Close(ctx))
			}
			if got := strings.Contains(i.said(t), secret); got != test.gets {
				t.Errorf("another session: it has heard the password: %v", got)
			}
		})
	}
}

// TestRootTrustsNoOpenDirectory: root becomes the user of the server that it finds. So root must not search for a
// server in a directory where every user can create a socket.
func TestRootTrustsNoOpenDirectory(t *testing.T) {
	root(t)
	for mode, want := range map[os.FileMode]bool{0o1777 | os.ModeSticky: true, 0o777: true, 0o775: false, 0o755: false} {
		i := listenAs(t, 65534, mode)
		_, err := cluster.Find(context.Background(), cluster.Options{ConnString: "host=" + i.dir})
		if err == nil || errors.Is(err, cluster.ErrUnsafeSocket) != want {
			t.Errorf("%v: %v", mode, err)
		}
		i.mu.Lock()
		if want && i.asked > 0 {
			t.Errorf("%v: connected to", mode)
		}
		i.mu.Unlock()
	}
}
