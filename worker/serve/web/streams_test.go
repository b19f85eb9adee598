package web

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lines is a stream that sends its name until it has to end.
func lines(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, name+"\n")
			_ = http.NewResponseController(w).Flush()
			<-tick.C
		}
	})
}

// follow opens a stream and returns its lines, without the first. The address is a worker's, or the one of another worker there.
func follow(t *testing.T, address, token, want string) *bufio.Scanner {
	t.Helper()
	if strings.Contains(address, screenOther) {
		address += "/events"
	} else {
		address += screenEvents
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	s := bufio.NewScanner(answer.Body)
	if answer.StatusCode != http.StatusOK || !s.Scan() || s.Text() != want {
		t.Fatalf("status %d, %q, %v", answer.StatusCode, s.Text(), s.Err())
	}
	return s
}

// TestStreamEndsWithRights: a stream ends when its token is removed, or is of another kind, and at the end of the server.
func TestStreamEndsWithRights(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret + "\noperator " + operatorSecret + "\n")
	server := New(Config{TokenFile: file, Screen: &Screen{
		Files: text("file"), View: text("view"), Operator: text("operator"), ViewEvents: lines("view"), OperatorEvents: lines("operator"),
	}})
	listener := httptest.NewServer(server.Handler())
	t.Cleanup(listener.Close)
	viewer, operator := follow(t, listener.URL, secret, "view"), follow(t, listener.URL, operatorSecret, "operator")
	write(secret + "\n" + operatorSecret + "\n") // the operator may no longer see texts
	for operator.Scan() {
		if operator.Text() != "operator" {
			t.Fatalf("%q", operator.Text())
		}
	}
	operator = follow(t, listener.URL, operatorSecret, "view")
	write(operatorSecret + "\n")
	for viewer.Scan() {
		if viewer.Text() != "view" {
			t.Fatalf("%q", viewer.Text())
		}
	}
	server.streams.stop()
	for operator.Scan() {
		if operator.Text() != "view" {
			t.Fatalf("%q", operator.Text())
		}
	}
}

// TestStreamsBounded: a source has half of the places, and gets a place back when a stream ends.
func TestStreamsBounded(t *testing.T) {
	s := newStreams(4)
	one, other := source{kind: localUser, user: 1}, source{kind: localUser, user: 2}
	for i, c := range []struct {
		source source
		want   bool
	}{{one, true}, {one, true}, {one, false}, {other, true}, {other, true}, {source{kind: network}, false}} {
		if s.take(c.source) != c.want {
			t.Errorf("place %d: the places are not shared by halves", i+1)
		}
	}
	s.give(one)
	if !s.take(source{kind: network}) || s.take(one) {
		t.Error("a place was not given back, or twice")
	}
}

// TestStreamIsNoRequest: streams take no place of requests, and a server with open streams ends at once.
func TestStreamIsNoRequest(t *testing.T) {
	file := writeFile(t, secret+"\n", 0o600)
	address, server := run(t, Config{
		TokenFile: file, Limits: Limits{Requests: 1, Screens: 1, Streams: 8, Wait: time.Millisecond, Connections: 8},
		Screen: &Screen{Files: text("file"), View: text("view"), Operator: text("operator"), ViewEvents: lines("view"), OperatorEvents: lines("o")},
	})
	var open []*bufio.Scanner
	for range 4 {
		open = append(open, follow(t, "http://"+address, secret, "view"))
	}
	if status, body, _ := ask(t, "http://"+address+"/screen/data", setHeader("Authorization", "Bearer "+secret)); status != http.StatusOK || body != "view" {
		t.Errorf("status %d, %q", status, body)
	}
	if status, _, _ := ask(t, "http://"+address+"/screen/events"); status != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", status)
	}
	if status, _, header := ask(t, "http://"+address+"/screen/events", setHeader("Authorization", "Bearer "+secret)); status != http.StatusTooManyRequests ||
		header.Get("Retry-After") == "" {
		t.Errorf("one stream more than a source may have: status %d", status)
	}
	server.streams.stop()
	for _, s := range open {
		for s.Scan() {
		}
	}
}

// TestNoStreams: a worker without streams answers 404, and a page requests the data instead.
func TestNoStreams(t *testing.T) {
	s := New(Config{Screen: &Screen{Files: text("file"), View: text("view"), Operator: text("operator")}})
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "http://localhost/screen/events", nil)
	s.events(w, r)
	if w.Code != http.StatusNotFound {
		t.Errorf("status %d", w.Code)
	}
}
