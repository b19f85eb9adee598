package pgtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = 3 * time.Minute
	stopTimeout  = 2 * time.Minute
	logTail      = 8 << 10 // bytes of the server log shown when a test failed
)

// Options say how a server differs from the default. The zero value is the default: no TCP, trust authentication, a C locale with
// UTF8, no fsync, and a superuser named postgres.
type Options struct {
	// InitDB are further arguments of initdb, such as "--encoding=LATIN1". They take precedence over the defaults.
	InitDB []string
	// Conf are lines that are added to postgresql.conf. They take precedence over the defaults.
	Conf []string
	// HBA are lines that replace pg_hba.conf. The default is trust for all users and connections.
	HBA []string
	// Env are further variables ("NAME=value") of the server's environment.
	Env []string
	// Account is the operating system user of the server when the test runs as root; empty: the user named by PGSB_TEST_USER.
	Account string
	// TCP makes the server listen on 127.0.0.1 in addition to the Unix socket.
	TCP bool
	// Standby makes the server a hot standby that waits for more WAL for ever. The data directory is initialised,
	// started and stopped once, and then started in recovery.
	Standby bool
	// Prepare, if not nil, is called with a connection string before a server with Standby becomes a standby.
	Prepare func(dsn string)
	// Stopped leaves the server down; the test calls Start.
	Stopped bool
}

// Server is a running (or, after Stop, stopped) throw-away server.
type Server struct {
	BinDir    string // directory of its programs
	DataDir   string // absolute, without symbolic links
	SocketDir string // unix_socket_directories
	Port      int    // part of the socket's name, and the TCP port if Options.TCP is set
	Major     int    // 14, 15 ...
	LogFile   string // all that the server has logged since the first start
	User      string // database superuser: postgres

	t          testing.TB
	account    account
	root       string // directory with all files of the server
	template   string // the template of the data directory; see copyTemplate; empty: none
	env        []string
	files      []string      // only of a server of Lend: the result of entries when Lend had started the server
	lent       int           // only of a server of Lend: process id of its postmaster when the test began
	postmaster *os.Process   // the current postmaster
	done       chan struct{} // closed when the current postmaster has ended; nil before the first start
	stop       func()        // ends the watchdog
}

// Start makes a data directory with the programs in binDir and starts a server on it. At the end of the test, the server is
// stopped at once and its files are removed. If the test process dies first, a small watchdog process does this.
func Start(t testing.TB, binDir string, o Options) *Server {
	t.Helper()
	s := newServer(t, binDir, o)
	t.Cleanup(s.end)
	s.initDB(o)
	switch {
	case o.Stopped:
	case o.Standby:
		s.Start()
		if o.Prepare != nil {
			o.Prepare(s.DSN(s.User, "postgres"))
		}
		s.Stop("fast")
		s.write(filepath.Join(s.DataDir, "standby.signal"), "")
		s.Start()
	default:
		s.Start()
	}
	return s
}

// newServer makes the folder of a server, and the watchdog that removes it if the test process dies.
func newServer(t testing.TB, binDir string, o Options) *Server {
	t.Helper()
	s := &Server{BinDir: binDir, Major: Major(t, binDir), User: "postgres", t: t, account: serverAccount(t, o.Account), env: o.Env}
	s.root = s.makeRoot()
	s.DataDir, s.SocketDir = filepath.Join(s.root, "data"), filepath.Join(s.root, "socket")
	s.LogFile = filepath.Join(s.root, "log")
	s.Port = FreePort(t)
	s.stop = watchdog(t, s.account, binDir, s.DataDir, s.root)
	return s
}

// Start starts the stopped server and returns when it accepts connections.
func (s *Server) Start() {
	s.t.Helper()
	s.launch()
	deadline := time.Now().Add(startTimeout)
	for !s.ready() {
		select {
		case <-s.done:
			s.t.Fatalf("the server in %s ended while starting:\n%s", s.DataDir, s.Log())
		default:
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the server in %s accepts no connection:\n%s", s.DataDir, s.Log())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Stop stops the server in the given mode of pg_ctl (smart, fast, immediate) and returns when it is gone.
func (s *Server) Stop(mode string) {
	s.t.Helper()
	if err := s.stopBy(map[string]syscall.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}[mode]); err != nil {
		s.t.Fatalf("%v\n%s", err, s.Log())
	}
}

// stopBy sends the signal of a mode to the postmaster, as pg_ctl does, and waits until the postmaster has ended.
func (s *Server) stopBy(signal syscall.Signal) error {
	if err := s.postmaster.Signal(signal); err != nil {
		return fmt.Errorf("stopping the server: %w", err)
	}
	select {
	case <-s.done:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("the server has not stopped in %s by the signal %v", stopTimeout, signal)
	}
}

// Kill ends the postmaster by SIGKILL, like a crash, and returns when all processes of the server have ended.
func (s *Server) Kill() {
	s.t.Helper()
	pid := s.PostmasterPID()
	if pid == 0 {
		s.t.Fatal("no postmaster to kill")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	<-s.done
	// A new postmaster does not start while a process of the old postmaster uses the shared memory.
	Wait(s.t, "the server's processes have ended", func() bool {
		names, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			s.t.Fatal(err)
		}
		for _, name := range names {
			if dir, err := os.Readlink(name); err == nil && dir == s.DataDir {
				return false
			}
		}
		return true
	})
}

// Restart stops the server in the given mode and starts it again.
func (s *Server) Restart(mode string) {
	s.t.Helper()
	s.Stop(mode)
	s.Start()
}

// PostmasterPID returns the process id in postmaster.pid, 0 when there is none.
func (s *Server) PostmasterPID() int {
	data, err := os.ReadFile(filepath.Join(s.DataDir, "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// Log returns what the server has logged so far.
func (s *Server) Log() string {
	data, err := os.ReadFile(s.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// OSUser returns the numeric user id and group id of the server's processes.
func (s *Server) OSUser() (uid, gid int) { return s.account.uid, s.account.gid }

// AsServerUser makes command run as the operating system user of the server, if root runs the test.
func (s *Server) AsServerUser(command *exec.Cmd) *exec.Cmd { return s.account.apply(command) }

func (s *Server) launch() {
	s.t.Helper()
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	postmaster := s.account.apply(exec.Command(filepath.Join(s.BinDir, "postgres"), "-D", s.DataDir))
	postmaster.Stdout, postmaster.Stderr = log, log
	postmaster.Env = append(postmaster.Env, s.env...)
	if err := postmaster.Start(); err != nil {
		s.t.Fatal(err)
	}
	_ = log.Close()
	s.postmaster = postmaster.Process
	done := make(chan struct{})
	s.done = done
	go func() {
		defer close(done)
		_ = postmaster.Wait() // the server's log says how the postmaster has ended
	}()
}

// end stops the server at the end of its test.
func (s *Server) end() {
	log := s.Log()
	if err := s.remove(); err != nil {
		s.t.Error(err)
	}
	if s.t.Failed() {
		s.t.Logf("server log (%s):\n%s", s.BinDir, log[max(0, len(log)-logTail):])
	}
}

// remove stops the server at once and removes its files.
func (s *Server) remove() error {
	var failed error
	ended := false
	if s.done != nil {
		select {
		case <-s.done:
		default:
			// After the postmaster's end, no process of the server is left, because the postmaster ends last.
			failed = s.stopBy(syscall.SIGQUIT)
			ended = failed == nil
		}
	}
	if s.stop != nil {
		s.stop()
	}
	if ended && s.template != "" {
		keepUsed(s.template, s.DataDir)
	}
	// On a busy machine a killed process may still finish a write during the removal.
	err := os.RemoveAll(s.root)
	for late := time.Now().Add(Patience); errors.Is(err, syscall.ENOTEMPTY) && time.Now().Before(late); {
		time.Sleep(10 * time.Millisecond)
		err = os.RemoveAll(s.root)
	}
	if err != nil {
		failed = errors.Join(failed, fmt.Errorf("removing the server's files: %w", err))
	}
	return failed
}

// ready reports whether the postmaster says in postmaster.pid that it accepts connections. pg_ctl reads the same line.
// To connect instead would cost a tenth of the server's start. The file may be left over from an earlier postmaster
// that was killed.
func (s *Server) ready() bool {
	data, _ := os.ReadFile(filepath.Join(s.DataDir, "postmaster.pid")) // not there at first
	lines := strings.Split(string(data), "\n")
	const status = 7
	return len(lines) > status && strings.TrimSpace(lines[status]) == "ready" && strings.TrimSpace(lines[0]) == strconv.Itoa(s.postmaster.Pid)
}

func (s *Server) initDB(o Options) {
	s.t.Helper()
	arguments := append([]string{
		"-U", s.User, "-A", "trust", "--no-sync", "--no-locale", "--encoding=UTF8",
	}, o.InitDB...)
	if o.Account != "" { // the templates belong to another user
		run(s.t, s.account, filepath.Join(s.BinDir, "initdb"), append([]string{"-D", s.DataDir}, arguments...)...)
	} else {
		s.template = copyTemplate(s.t, s.account, s.BinDir, s.DataDir, arguments)
	}
	s.configure(o)
}

func (s *Server) configure(o Options) {
	listen := "''"
	if o.TCP {
		listen = "'127.0.0.1'"
	}
	lines := append([]string{
		"listen_addresses = " + listen,
		fmt.Sprintf("port = %d", s.Port),
		fmt.Sprintf("unix_socket_directories = '%s'", s.SocketDir),
		"fsync = off", "shared_buffers = 16MB", "max_connections = 40",
		"pg_stat_backtrace.timeout = 30000", // ms, for a machine that stalls: tests of the limit set their own
	}, o.Conf...)
	file := filepath.Join(s.DataDir, "postgresql.conf")
	data, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(file, string(data)+"\n"+strings.Join(lines, "\n")+"\n")
	if o.HBA != nil {
		s.write(filepath.Join(s.DataDir, "pg_hba.conf"), strings.Join(o.HBA, "\n")+"\n")
	}
}

// FreePort returns a TCP port of 127.0.0.1 that no program uses. The kernel gives no port of this range to a program that
// wants any port, so the port is very probably still free when the caller's program opens it.
func FreePort(t testing.TB) int {
	t.Helper()
	const first, ports, attempts = 20_000, 12_000, 1000
	var listen net.ListenConfig
	for range attempts {
		port := first + rand.N(ports) //nolint:gosec // no secret
		syscall.ForkLock.RLock()      // a child has the socket until it executes its program, also after Close
		l, err := listen.Listen(t.Context(), "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close()
		}
		syscall.ForkLock.RUnlock()
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatal("no port is free")
	return 0
}
