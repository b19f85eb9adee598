package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/logtest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/host/rootfs"
)

// service is a spool with a running Serve, and its reported errors.
type service struct {
	*Spool

	t      *testing.T
	cancel context.CancelFunc
	served chan error

	mu     sync.Mutex
	errors []string
}

type handler func(context.Context, Request) Answer

func echo(_ context.Context, r Request) Answer { return Answer{Text: fmt.Sprint("pid ", r.Targets[0])} }

func serve(t *testing.T, cfg Config, h handler) *service {
	t.Helper()
	s := &service{t: t, served: make(chan error, 1)}
	if cfg.DataDir == "" {
		cfg.DataDir = t.TempDir()
	}
	cfg.Log = logtest.New(func(l logtest.Line) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.errors = append(s.errors, l.Error)
	})
	var err error
	if s.Spool, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	go func() { s.served <- s.Serve(ctx, h) }()
	return s
}

// end stops serving, returns what Serve returned, and closes the spool.
func (s *service) end() error {
	s.t.Helper()
	s.cancel()
	err := <-s.served
	if closeErr := s.Close(); closeErr != nil {
		s.t.Error(closeErr)
	}
	return err
}

func (s *service) reported() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errors
}

func id(n int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", n) }

func (s *service) path(name string) string { return filepath.Join(s.Dir(), name) }

func (s *service) put(name string, data []byte) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), data, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// ask writes request n and returns the text of its answer.
func (s *service) ask(n int) string {
	s.t.Helper()
	s.put(id(n)+reqSuffix, s.line(id(n)))
	return s.answer(n)
}

func (s *service) answer(n int) (text string) {
	s.t.Helper()
	wait(s.t, "answer "+id(n), func() bool {
		data, err := os.ReadFile(s.path(id(n) + repSuffix))
		text = string(data)
		return err == nil
	})
	return strings.ReplaceAll(text, separator, "|")
}

func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(pgtest.Patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestRoundTrip(t *testing.T) {
	s := serve(t, Config{Version: "1.2"}, echo)
	info, err := Find(s.cfg.DataDir)
	if err != nil || !info.Alive() || info.PID != os.Getpid() || info.Dir != s.Dir() || info.Version != "1.2" ||
		info.Protocol != Protocol || info.DataDir != s.cfg.DataDir {
		t.Errorf("%+v, %v", info, err)
	}
	for n := range 100 {
		if got := s.ask(n); got != "|||||pid 4711" {
			t.Fatalf("got %q", got)
		}
	}
	wait(t, "requests and read answers are removed", func() bool {
		names, err := os.ReadDir(s.Dir())
		return err == nil && len(names) == 2 // ready and work
	})
	if err := s.end(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{s.Dir(), s.cfg.DataDir + "/" + pidName, s.cfg.DataDir + "/" + lockName} {
		if exists(path) {
			t.Errorf("%s is still there", path)
		}
	}
	if len(s.reported()) > 0 {
		t.Error(s.reported())
	}
}

func TestPrivate(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	s := serve(t, Config{}, echo)
	for path, want := range map[string]os.FileMode{
		s.Dir(): 0o700, s.path(workName): 0o700, s.cfg.DataDir + "/" + pidName: 0o600,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestLocked(t *testing.T) {
	s := serve(t, Config{}, echo)
	if _, err := Open(Config{DataDir: s.cfg.DataDir}); !errors.Is(err, ErrLocked) {
		t.Errorf("second worker: %v", err)
	} else if !strings.Contains(err.Error(), fmt.Sprint("by PID ", os.Getpid())) {
		t.Errorf("the error does not say who: %v", err)
	}
	if got := s.ask(1); got != "|||||pid 4711" {
		t.Errorf("the first is disturbed: %q", got)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	second, err := Open(Config{DataDir: s.cfg.DataDir})
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	loose := t.TempDir()
	if err := os.Chmod(loose, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  Config
		want error
	}{
		"no data directory":                    {Config{}, os.ErrInvalid},
		"a data directory that is not there":   {Config{DataDir: "/nonexistent"}, os.ErrNotExist},
		"a base that is not there":             {Config{DataDir: t.TempDir(), Base: "/nonexistent"}, os.ErrNotExist},
		"a base that is a file":                {Config{DataDir: t.TempDir(), Base: file}, nil},
		"a base that is relative":              {Config{DataDir: t.TempDir(), Base: "."}, nil},
		"a base whose entries anybody renames": {Config{DataDir: t.TempDir(), Base: loose}, ErrUnsafe},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			t.Errorf("%s: accepted", name)
			_ = s.Close()
		} else if c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.cfg.DataDir != "" && (exists(c.cfg.DataDir+"/"+pidName) || exists(c.cfg.DataDir+"/"+lockName)) {
			t.Errorf("%s: something is left in the data directory", name)
		}
	}
}

func TestOpenDirRefuses(t *testing.T) {
	parent := t.TempDir()
	open, link := filepath.Join(parent, "open"), filepath.Join(parent, "link")
	err := errors.Join(os.Mkdir(open, 0o700), os.Symlink(open, link))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDir(link); err == nil {
		t.Error("followed a symbolic link")
	}
	if err := os.Chmod(open, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := openDir(open); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a directory that the group may read: %v", err)
	}
	if os.Geteuid() != 0 {
		if _, err := openDir("/"); !errors.Is(err, ErrUnsafe) {
			t.Errorf("somebody else's directory: %v", err)
		}
	}
}

// TestNoMoveToReadOnly: a spool whose file system is full stays where it is if this process may not write to the other base.
func TestNoMoveToReadOnly(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root writes everywhere")
	}
	root := t.TempDir()
	other := filepath.Join(root, "tmp")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &Spool{cfg: Config{Root: root}, dir: &dir{name: "/dev/shm/x"}}
	if !s.wouldMove() {
		t.Error("stays beside a base with room")
	}
	if err := os.Chmod(other, 0o500); err != nil {
		t.Fatal(err)
	}
	if s.wouldMove() {
		t.Error("moves to a base that it may not write to")
	}
}

// TestStale finds the pid file and the directory of a worker that was killed.
func TestStale(t *testing.T) {
	base, dataDir := t.TempDir(), t.TempDir()
	live := serve(t, Config{Base: base}, echo)
	mkdir := func(name string, age time.Duration, mode os.FileMode) string {
		path := filepath.Join(base, name)
		when := time.Now().Add(-age)
		err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(path+"/x.req", nil, 0o600), os.Chmod(path, mode),
			os.Chtimes(path, when, when))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := mkdir(dirPrefix+"own", 0, 0o700)
	for path, removed := range map[string]bool{
		own:                                    true,
		mkdir(dirPrefix+"old", 2*young, 0o700): true,
		mkdir(dirPrefix+"new", 0, 0o700):       false, // its worker may be about to lock it
		mkdir(dirPrefix+"odd", 2*young, 0o750): false,
		mkdir("other", 2*young, 0o700):         false,
		live.Dir():                             false,
	} {
		defer func() {
			if exists(path) == removed {
				t.Errorf("%s: removed is not %v", path, removed)
			}
		}()
	}
	old := time.Now().Add(-2 * young)
	err := errors.Join(os.Chtimes(live.Dir(), old, old),
		os.WriteFile(dataDir+"/"+pidName, fmt.Appendf(nil, "1\n%d\n12\n%s\nv\n%s\n", os.Getpid(), dataDir, own), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, Config{DataDir: dataDir, Base: base}, echo)
	if got := s.ask(1) + live.ask(1); got != "|||||pid 4711|||||pid 4711" {
		t.Errorf("got %q", got)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	t.Cleanup(func() { _ = live.end() })
}

// TestPIDFileRestored checks that a running Serve restores a pid file that is lost or overwritten.
func TestPIDFileRestored(t *testing.T) {
	s := serve(t, Config{}, echo)
	if err := os.WriteFile(s.cfg.DataDir+"/"+pidName, []byte("1\n2\n3\n4\n5\n6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.withdraw(); err != nil || !exists(s.cfg.DataDir+"/"+pidName) {
		t.Errorf("somebody else's pid file is withdrawn: %v", err)
	}
	if err := s.publish(); err != nil {
		t.Error(err)
	}
	if info, err := Find(s.cfg.DataDir); err != nil || info.Dir != s.Dir() {
		t.Errorf("%+v %v", info, err)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestStoppedServer: while the server does not run, the spool makes no file in the data directory, which an administrator may be removing.
func TestStoppedServer(t *testing.T) {
	running := false
	s, err := Open(Config{DataDir: t.TempDir(), Base: t.TempDir(), Running: func() bool { return running }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	path := filepath.Join(s.cfg.DataDir, pidName)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.checkPeriodically(time.Now()); err != nil || exists(path) != running {
			t.Errorf("the server runs: %v, the pid file is there: %v, %v", running, exists(path), err)
		}
		running = true
	}
}

func TestServerName(t *testing.T) {
	dir := t.TempDir()
	data, err := rootfs.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := serverName(data); got != dir {
		t.Errorf("without a server: %s", got)
	}
	if err := os.WriteFile(dir+"/postmaster.pid", []byte("123\n/srv/other name\n1700000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serverName(data); got != "/srv/other name" {
		t.Errorf("with a server: %s", got)
	}
}

func TestLost(t *testing.T) {
	for name, lose := range map[string]func(s *service) error{
		"removed":   func(s *service) error { return os.RemoveAll(s.Dir()) },
		"moved":     func(s *service) error { return os.Rename(s.Dir(), s.Dir()+".away") },
		"read-only": func(s *service) error { return os.Chmod(s.Dir(), 0o500) },
		"unlocked":  func(s *service) error { return os.Remove(s.cfg.DataDir + "/" + lockName) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "read-only" && os.Geteuid() == 0 {
				t.Skip("root writes everywhere")
			}
			s := serve(t, Config{Base: t.TempDir()}, echo)
			if err := lose(s); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-s.served:
				if !errors.Is(err, ErrLost) {
					t.Errorf("Serve: %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("Serve does not notice")
			}
			s.cancel()
			_ = s.Close()
		})
	}
}

// TestLostWithLongCall: a call that may take long does not delay the end of a lost spool, as its answer cannot be delivered.
func TestLostWithLongCall(t *testing.T) {
	for name, stubborn := range map[string]bool{"a handler that ends with its context": false, "a handler that hangs": true} {
		t.Run(name, func(t *testing.T) {
			began, never := make(chan struct{}), make(chan struct{})
			defer close(never)
			s := serve(t, Config{Base: t.TempDir()}, func(ctx context.Context, r Request) Answer {
				close(began)
				if stubborn {
					<-never
				}
				<-ctx.Done()
				return echo(ctx, r)
			})
			s.put(id(1)+reqSuffix, s.line(id(1))) // with a timeout of a minute
			<-began
			if err := os.RemoveAll(s.Dir()); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-s.served:
				if !errors.Is(err, ErrLost) {
					t.Errorf("Serve: %v", err)
				}
			case <-time.After(pgtest.Soon):
				t.Error("Serve waits for the call")
			}
			s.cancel()
			_ = s.Close()
		})
	}
}

// TestShutdown checks that running requests are finished at a shutdown, and that their answers stay until they are
// fetched. No request can be made meanwhile.
func TestShutdown(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	s := serve(t, Config{}, func(ctx context.Context, r Request) Answer {
		close(started)
		<-release
		if ctx.Err() != nil {
			return Answer{Text: "interrupted"}
		}
		return echo(ctx, r)
	})
	s.put(id(1)+reqSuffix, s.line(id(1)))
	<-started
	s.cancel()
	wait(t, "no more requests", func() bool { return !exists(s.path(readyName)) })
	if !exists(s.cfg.DataDir + "/" + pidName) {
		t.Error("the caller cannot find its answer: the pid file is gone")
	}
	close(release)
	if got := s.answer(1); got != "|||||pid 4711" {
		t.Errorf("got %q", got)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestRecorderFile describes the recorder for the command doctor: at the start, after a change, and in a new spool directory.
func TestRecorderFile(t *testing.T) {
	var lock sync.Mutex
	var now Recorder
	set := func(r Recorder) {
		lock.Lock()
		defer lock.Unlock()
		now = r
	}
	set(Recorder{Dir: "/var/lib/x"})
	s := serve(t, Config{Recorder: func() Recorder {
		lock.Lock()
		defer lock.Unlock()
		return now
	}}, echo)
	if r, err := ReadRecorder(s.Dir()); err != nil || r.Dir != "/var/lib/x" || r.Failing {
		t.Errorf("%+v, %v", r, err)
	}
	want := Recorder{Dir: "/var/lib/x", Lost: 3, Since: time.Unix(5, 0).UTC(), Until: time.Unix(6, 0).UTC(), Reason: "a", Remedy: "b", Failing: true}
	set(want)
	wait(t, "the change", func() bool {
		r, err := ReadRecorder(s.Dir())
		return err == nil && r == want
	})
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if reported := s.reported(); len(reported) > 0 {
		t.Error(reported)
	}
	none := serve(t, Config{}, echo)
	if _, err := ReadRecorder(none.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
