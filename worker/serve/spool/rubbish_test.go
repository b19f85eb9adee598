package spool

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host"
)

// TestRubbish puts invalid files into the directory. Requests must be answered, and invalid requests must be removed.
func TestRubbish(t *testing.T) {
	s := serve(t, Config{}, echo)
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(
		os.WriteFile(outside, s.line(id(1)), 0o600),
		os.Symlink(outside, s.path(id(1)+reqSuffix)),
		os.Symlink("/nonexistent", s.path(id(2)+reqSuffix)),
		os.Mkdir(s.path(id(3)+reqSuffix), 0o700),
		os.Mkdir(s.path(id(4)+reqSuffix), 0o700),
		os.WriteFile(s.path(id(4)+reqSuffix+"/x"), nil, 0o600),
		unix.Mkfifo(s.path(id(5)+reqSuffix), 0o600),
		os.Mkdir(s.path("d.rep"), 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	for i, data := range []string{"", "\n", "x", "x\n", strings.Repeat("\x00", 4096), strings.Repeat("a ", 1000) + "\n"} {
		s.put(id(100+i)+reqSuffix, []byte(data))
	}
	s.put(id(200)+reqSuffix, bytes.Repeat([]byte{'x'}, 10<<20))
	s.put(id(201)+repSuffix, []byte("nobody asked"))
	s.put("not-a-uuid.req", s.line(id(1)))
	s.put(".req", nil)
	s.put("..req", nil)
	s.put(strings.Repeat("x", 200)+".req", nil)
	if got := s.ask(300); got != "|||||pid 4711" {
		t.Errorf("got %q", got)
	}
	wait(t, "rubbish is removed", func() bool {
		left, err := filepath.Glob(s.path("*.req"))
		return err == nil && len(left) == 1 && filepath.Base(left[0]) == id(4)+reqSuffix // a directory with contents
	})
	for _, err := range s.reported() {
		if !strings.Contains(err, ErrBadRequest.Error()) {
			t.Errorf("reported: %v", err)
		}
	}
	if !exists(outside) {
		t.Error("followed a symbolic link")
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestAge(t *testing.T) {
	s := serve(t, Config{}, echo)
	// Written while the worker was stopped, long ago, and by a clock that has been set back since.
	for n, age := range []time.Duration{time.Hour, -time.Hour} {
		temporary := filepath.Join(filepath.Dir(s.Dir()), dirPrefix+id(n))
		err := errors.Join(os.WriteFile(temporary, s.line(id(n)), 0o600),
			os.Chtimes(temporary, time.Time{}, time.Now().Add(-age)), os.Rename(temporary, s.path(id(n)+reqSuffix)))
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := s.answer(1); got != "|||||pid 4711" { // found by a sweep: renaming is no event
		t.Errorf("got %q", got)
	}
	wait(t, "an old request is dropped", func() bool { return !exists(s.path(id(0) + reqSuffix)) })
	s.cancel()
	if err := <-s.served; err != nil { // all answers are there when Serve returns
		t.Error(err)
	}
	if exists(s.path(id(0) + repSuffix)) {
		t.Error("an old request is answered")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestNoDescriptor: a request that arrives while this process has no descriptor left stays until it has one.
func TestNoDescriptor(t *testing.T) {
	s, err := Open(Config{DataDir: t.TempDir(), Base: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b := &service{Spool: s, t: t}
	b.put(id(1)+reqSuffix, b.line(id(1)))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	data, _, err := s.take(id(1)+reqSuffix, true)
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}
	if data != nil || !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrBadRequest) {
		t.Errorf("without a descriptor: %q, %v", data, err)
	}
	if data, _, err := s.take(id(1)+reqSuffix, true); err != nil || !bytes.Equal(data, b.line(id(1))) {
		t.Errorf("with a descriptor: %q, %v", data, err)
	}
}

// TestUnfinished makes a sweep find requests that are being written.
func TestUnfinished(t *testing.T) {
	s := serve(t, Config{}, echo)
	line := s.line(id(1))
	f, err := os.Create(s.path(id(1) + reqSuffix))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(line[:20]); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if data, _, err := s.take(id(1)+reqSuffix, false); data != nil || err != nil {
			t.Errorf("taken: %q, %v", data, err)
		}
	}
	if _, err := f.Write(line[20:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.answer(1); got != "|||||pid 4711" {
		t.Errorf("got %q", got)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestExpire(t *testing.T) {
	s := serve(t, Config{}, echo)
	s.put(id(1)+reqSuffix, s.line(id(1)))
	wait(t, "the answer", func() bool { return exists(s.path(id(1) + repSuffix)) })
	s.calls.mu.Lock()
	c := s.calls.answers[id(1)+repSuffix]
	s.calls.mu.Unlock()
	if c == nil {
		t.Fatal("it is not among the answers that were delivered")
	}
	since := c.delivered
	s.calls.expire(since.Add(answerLifetime))
	if !exists(s.path(id(1) + repSuffix)) {
		t.Error("expired too early")
	}
	s.calls.expire(since.Add(answerLifetime + 1))
	if exists(s.path(id(1) + repSuffix)) {
		t.Error("not expired")
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestBusy(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, Config{Concurrency: 1, Pending: 3}, func(ctx context.Context, r Request) Answer {
		<-release
		return echo(ctx, r)
	})
	for n := range 10 {
		s.put(id(n)+reqSuffix, s.line(id(n)))
	}
	wait(t, "seven are refused", func() bool { // which ones, the order in which a sweep meets them decides
		answers, err := filepath.Glob(s.path("*" + repSuffix))
		return err == nil && len(answers) == 7
	})
	close(release)
	refused := 0
	for n := range 10 {
		if got := s.answer(n); strings.HasPrefix(got, "ERROR|53400|") {
			refused++
		} else if got != "|||||pid 4711" {
			t.Errorf("request %d: %q", n, got)
		}
	}
	if refused != 7 {
		t.Errorf("%d refused", refused)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestThousands(t *testing.T) {
	s := serve(t, Config{}, echo)
	const many = 3000
	for n := range many {
		s.put(id(n)+reqSuffix, s.line(id(n)))
	}
	for n := range many {
		if got := s.answer(n); got != "|||||pid 4711" {
			t.Fatalf("request %d: %q", n, got)
		}
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestPanic(t *testing.T) {
	s := serve(t, Config{}, func(context.Context, Request) Answer { panic("oops") })
	for n := range 2 {
		if got := s.ask(n); !strings.HasPrefix(got, "ERROR|XX000|") {
			t.Errorf("got %q", got)
		}
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if len(s.reported()) != 2 || !strings.Contains(s.reported()[0], "oops") {
		t.Errorf("reported: %v", s.reported())
	}
}

// TestPanicInDelivery checks that a request whose answer cannot be encoded gets another one.
func TestPanicInDelivery(t *testing.T) {
	var once sync.Once
	defer host.InjectPanic(func(string) { once.Do(func() { panic("oops") }) })()
	s := serve(t, Config{}, echo)
	if got := s.ask(1); !strings.HasPrefix(got, "ERROR|XX000|") {
		t.Errorf("got %q", got)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if len(s.reported()) != 1 || !strings.Contains(s.reported()[0], "oops") {
		t.Errorf("reported: %v", s.reported())
	}
}

// TestFull fills the file system. Callers must get an error, and be served again when there is room.
func TestFull(t *testing.T) {
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Skipf("no small file system to fill up: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(base, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	release := make(chan struct{})
	s := serve(t, Config{Base: base}, func(ctx context.Context, r Request) Answer {
		<-release
		return echo(ctx, r)
	})
	s.put(id(1)+reqSuffix, s.line(id(1)))
	wait(t, "the request is read", func() bool { return !exists(s.path(id(1) + reqSuffix)) })
	filler := filepath.Join(base, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	close(release)
	if got := s.answer(1); !strings.HasPrefix(got, "ERROR|53100|") {
		t.Errorf("got %q", got)
	}
	wait(t, "no more requests", func() bool { return !exists(s.path(readyName)) })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	wait(t, "requests are welcome again", func() bool { return exists(s.path(readyName)) })
	if got := s.ask(2); got != "|||||pid 4711" {
		t.Errorf("got %q", got)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestFileSizeLimit: an answer that the limit of a process's files does not allow is an error that names this limit.
func TestFileSizeLimit(t *testing.T) {
	s := serve(t, Config{Base: t.TempDir()}, func(context.Context, Request) Answer {
		return Answer{Text: strings.Repeat("x", 1<<16)}
	})
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	small := unix.Rlimit{Cur: 1 << 13, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	got := s.ask(1)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got, "ERROR|53100|") || !strings.Contains(got, "LimitFSIZE=") {
		t.Errorf("got %q", got)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}
