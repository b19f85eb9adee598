package rules

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/logtest"
)

// TestDeliver has a receiver that fails once, a redirect, and a missing receiver.
func TestDeliver(t *testing.T) {
	t.Parallel()
	bodies := make(chan []byte, 4)
	failures := 1
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, r *http.Request) {
		if failures > 0 {
			failures--
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		b, _ := io.ReadAll(r.Body)
		bodies <- b
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/good", http.StatusTemporaryRedirect)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	reports := make(chan string, 4)
	s := NewWebhookSender(logtest.New(func(l logtest.Line) { reports <- l.Error }))
	s.pause = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	a := Alert{
		Name: "lock_wait", Since: time.Unix(1_800_000_000, 0), Key: "cause", Labels: map[string]string{"cluster": "7"},
		Annotations: map[string]string{"summary": "1 session waits"},
	}
	s.Send(WebhookTarget{URL: server.URL + "/good"}, a)
	var m struct {
		Version, Status string
		Alerts          []struct {
			Status      string
			Labels      map[string]string
			Annotations map[string]string
			StartsAt    time.Time
			EndsAt      time.Time
			Fingerprint string
		}
	}
	if err := json.Unmarshal(<-bodies, &m); err != nil {
		t.Fatal(err)
	}
	if m.Version != "4" || m.Status != "firing" || len(m.Alerts) != 1 || m.Alerts[0].Labels["alertname"] != "lock_wait" ||
		m.Alerts[0].Labels["cluster"] != "7" || m.Alerts[0].StartsAt.Unix() != 1_800_000_000 || len(m.Alerts[0].Fingerprint) != 16 {
		t.Errorf("%+v", m)
	}
	for url, want := range map[string]string{
		server.URL + "/redirect": "Temporary Redirect", server.URL + "/none": "Not Found", "http://user:secret@127.0.0.1:1/": "refused",
	} {
		s.Send(WebhookTarget{URL: url}, a)
		if err := <-reports; !strings.Contains(err, want) || strings.Contains(err, "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	cancel()
	<-done
}

// TestHostileReceivers has receivers that answer without an end, or lead elsewhere. Each attempt ends, with a reason.
func TestHostileReceivers(t *testing.T) {
	t.Parallel()
	elsewhere := make(chan struct{}, 10)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere <- struct{}{} }))
	defer other.Close()
	endless := func(w io.Writer, text string) {
		for block := strings.Repeat(text, 1000); ; {
			if _, err := io.WriteString(w, block); err != nil {
				return
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/body", func(w http.ResponseWriter, _ *http.Request) { endless(w, "x") })
	mux.HandleFunc("/header", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
		endless(conn, "X-A: b\r\n")
	})
	mux.HandleFunc("/host", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "file:///etc/passwd", http.StatusPermanentRedirect)
	})
	mux.HandleFunc("/599", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(599) })
	server := httptest.NewServer(mux)
	defer server.Close()
	secure := httptest.NewUnstartedServer(mux)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	s := NewWebhookSender(zerolog.Nop())
	for url, want := range map[string]string{
		server.URL + "/body": "", server.URL + "/header": "header", server.URL + "/599": "answered 599",
		server.URL + "/host": "302 Found, and redirects are not followed", server.URL + "/file": "308 Permanent Redirect, and redirects",
		secure.URL + "/599": "certificate",
	} {
		again, err := s.post(t.Context(), WebhookTarget{URL: url, Timeout: time.Minute}, []byte("{}"))
		switch {
		case want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", url, err, want)
		case again && strings.Contains(want, "redirects"):
			t.Errorf("%s: a redirect is tried again", url)
		}
	}
	if len(elsewhere) > 0 {
		t.Error("a redirect to another host was followed")
	}
}

// TestSendNeverBlocks has a receiver that never answers.
func TestSendNeverBlocks(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)
	s := NewWebhookSender(zerolog.Nop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	sent := 0
	for range 100 {
		if s.Send(WebhookTarget{URL: server.URL, Timeout: time.Hour}, Alert{}) {
			sent++
		}
	}
	if sent < queueLength || sent > queueLength+1 || s.Dropped() != int64(100-sent) {
		t.Errorf("%d sent, %d dropped", sent, s.Dropped())
	}
	cancel() // also ends the request
	<-done
}

// TestAlertsOfEndingWorker ends the worker during the pause after a failed attempt, while another alert waits. Both are delivered. An
// alert that cannot be delivered is in the log.
func TestAlertsOfEndingWorker(t *testing.T) {
	t.Parallel()
	bodies := make(chan string, 4)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if len(bodies) == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		bodies <- string(b)
	}))
	defer server.Close()
	reports := make(chan string, 4)
	s := NewWebhookSender(logtest.New(func(l logtest.Line) { reports <- l.Error }))
	s.pause = time.Hour
	s.Send(WebhookTarget{URL: server.URL}, Alert{Name: "first"})
	s.Send(WebhookTarget{URL: server.URL}, Alert{Name: "second"})
	s.Send(WebhookTarget{URL: "http://127.0.0.1:1/"}, Alert{Name: "third"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	for begin := time.Now(); len(bodies) == 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("no attempt")
		}
	}
	cancel()
	<-done
	if len(bodies) != 3 || len(reports) != 1 {
		t.Fatalf("%d attempts, %d lines in the log", len(bodies), len(reports))
	}
	for _, want := range []string{"first", "first", "second"} {
		if got := <-bodies; !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if err := <-reports; !strings.Contains(err, "refused") {
		t.Error(err)
	}
}

// TestWebhookEnd compares the messages of the begin and the end of one alert.
func TestWebhookEnd(t *testing.T) {
	t.Parallel()
	a := Alert{Name: "lock_wait", Since: time.Unix(1_800_000_000, 0), Key: "cause", Labels: map[string]string{"cluster": "7"}}
	begin := messageOf(&a)
	a.Until = time.Unix(1_800_000_060, 0)
	end := messageOf(&a)
	if begin.Status != "firing" || begin.Alerts[0].Status != "firing" || !begin.Alerts[0].EndsAt.IsZero() {
		t.Errorf("begin: %+v", begin)
	}
	if end.Status != "resolved" || end.Alerts[0].Status != "resolved" || !end.Alerts[0].EndsAt.Equal(a.Until) ||
		end.GroupKey != begin.GroupKey || end.Alerts[0].Fingerprint != begin.Alerts[0].Fingerprint ||
		!end.Alerts[0].StartsAt.Equal(begin.Alerts[0].StartsAt) {
		t.Errorf("end: %+v", end)
	}
}
