package spool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkRoundTrip is a call without the server: from before the request is
// written until its answer is there, looked for as SQL does.
func BenchmarkRoundTrip(b *testing.B) {
	s, err := Open(Config{DataDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(ctx, func(context.Context, Request) Answer { return Answer{Text: "#0"} })
	}()
	n := 0
	for b.Loop() {
		n++
		id := fmt.Sprintf("%08x-0000-4000-8000-000000000000", n)
		if err := os.WriteFile(filepath.Join(s.Dir(), id+reqSuffix), s.line(id), 0o600); err != nil {
			b.Fatal(err)
		}
		path := filepath.Join(s.Dir(), id+repSuffix)
		var st unix.Stat_t
		for unix.Stat(path, &st) != nil {
		}
		if _, err := os.ReadFile(path); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-served; err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// line makes a request as SQL does, for a caller that waits as long as the tests do. A busy machine takes seconds for
// thousands of requests, and the worker does not answer a caller that has gone. The first digits of the id are the
// backend's number, so that each request comes from another backend.
func (s *Spool) line(id string) []byte {
	n, _ := strconv.ParseUint(id[:8], 16, 32)
	return s.lineOf(id, int(n)+1, true)
}

// lineOf makes a request of a backend, by a superuser or role 10.
func (s *Spool) lineOf(id string, backend int, superuser bool) []byte {
	flag := "f"
	if superuser {
		flag = "t"
	}
	body := fmt.Sprintf("1 %s get 4711 60000 10 %s %d UTF8 706f737467726573 706f737467726573", id, flag, backend)
	return []byte(body + " " + s.keys.signing().sign([]byte(body)) + "\n")
}

func BenchmarkTake(b *testing.B) {
	s, err := Open(Config{DataDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	id := "00000001-0000-4000-8000-000000000000"
	line := s.line(id)
	for b.Loop() {
		if err := os.WriteFile(filepath.Join(s.Dir(), id+reqSuffix), line, 0o600); err != nil {
			b.Fatal(err)
		}
		if _, _, err := s.take(id+reqSuffix, true); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkDeliver(b *testing.B) {
	s, err := Open(Config{DataDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	id := "00000001-0000-4000-8000-000000000000"
	for b.Loop() {
		req := Request{ID: id, Encoding: "UTF8", Backend: 1, Deadline: time.Now().Add(time.Minute)}
		s.deliver(s.calls.begin(b.Context(), &req, time.Now(), true), req, Answer{Text: "x"})
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
