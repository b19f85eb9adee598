package spool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

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

// line makes a request as SQL does, of a caller who waits for as long as the tests do: a busy machine takes seconds for
// thousands of requests, and one whose caller has gone is not answered.
func (s *Spool) line(id string) []byte {
	body := "1 " + id + " get 4711 60000 10 t 4712 UTF8 706f737467726573 706f737467726573"
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
		s.deliver(Request{ID: id, Encoding: "UTF8"}, Answer{Text: "x"})
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
