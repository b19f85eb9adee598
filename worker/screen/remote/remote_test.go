package remote

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pg_stat_backtrace/worker/screen/view"
)

const token = "a-token-of-the-test-0123"

func tokenFile(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve answers all requests with a handler.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func client(t *testing.T, address, file string) *Client {
	t.Helper()
	c, err := New(address, file, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.http.Timeout = 3 * time.Minute // the machine may be busy
	c.most = 1 << 20
	return c
}

// good is an answer that has the view load. Its clock is a year ahead.
func good() string {
	at := time.Now().Add(365 * 24 * time.Hour).Format(time.RFC3339)
	return fmt.Sprintf(`{"time": %q, "info": {"server_version": 18, "last": %q, "interval_seconds": 1, "processors": 2},
		"load": {"from": %q, "to": %q, "column_seconds": 1, "classes": ["CPU"], "active_sessions": [1],
		"columns": [{"time": %q, "kind": "sampled", "active_sessions": [1]}]}}`, at, at, at, at, at)
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	file := tokenFile(t, "operator "+token+"\n", 0o600)
	status := func(code int, header, value string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if header != "" {
				w.Header().Set(header, value)
			}
			http.Error(w, "the reason\x1b[2J", code)
		}
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
	}
	for name, c := range map[string]struct {
		file    string
		handler http.HandlerFunc
		want    string
	}{
		"no token":        {"", status(401, "", ""), "give --token-file"},
		"wrong token":     {file, status(401, "", ""), "refuses the token in " + file},
		"old worker":      {file, status(404, "", ""), "has no incident screen: update it"},
		"many readers":    {file, status(429, "", ""), "too many readers"},
		"redirect":        {file, status(302, "Location", "/elsewhere"), "leads to another address: connect to /elsewhere"},
		"other host":      {file, status(403, "", ""), "answers 403: the reason"},
		"not a worker":    {file, text("<html>"), "check the address"},
		"other data":      {file, text(`{"status": "ok"}`), "it has no information about a server; update the worker"},
		"a cut answer":    {file, text(good()[:100]), "check the address"},
		"a huge answer":   {file, text(`{"x": "` + strings.Repeat("x", 1<<20)), "more than 1 MB"},
		"many parts":      {file, text(`{"x": [` + strings.Repeat("0,", 510_000) + `0]}`), "more parts than a screen can show"},
		"no columns":      {file, text(strings.Replace(good(), `[1]}]`, `[]}]`, 1)), "a column of the load is not complete"},
		"negative column": {file, text(strings.Replace(good(), `"column_seconds": 1`, `"column_seconds": 0`, 1)), "the load is not complete"},
		"deep flame":      {file, text(strings.Replace(good(), `"info":`, `"flame": {"nodes": [{"depth": 0}, {"depth": 2}]}, "info":`, 1)), "flame graph is out of range"},
		"endless axis":    {file, text(strings.Replace(good(), `"processors": 2`, `"processors": 1e308`, 1)), "out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.handler)
			err := client(t, s.URL, c.file).Check(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b") || strings.Contains(err.Error(), token) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	t.Run("certificate", func(t *testing.T) {
		t.Parallel()
		s := httptest.NewTLSServer(text(good()))
		defer s.Close()
		s.Config.ErrorLog = nil
		err := client(t, s.URL, file).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), "set SSL_CERT_FILE") {
			t.Error(err)
		}
		err = client(t, strings.Replace(s.URL, "https", "http", 1), file).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), "HTTPS") {
			t.Error(err)
		}
	})
	t.Run("no TLS", func(t *testing.T) {
		t.Parallel()
		err := client(t, strings.Replace(serve(t, text(good())).URL, "http", "https", 1), file).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), "use http:// in --connect") {
			t.Error(err)
		}
	})
}

func TestRedirectDoesNotGetToken(t *testing.T) {
	t.Parallel()
	var asked atomic.Bool
	other := serve(t, func(http.ResponseWriter, *http.Request) { asked.Store(true) })
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	if err := client(t, s.URL, tokenFile(t, token, 0o600)).Check(t.Context()); err == nil || asked.Load() {
		t.Errorf("the client follows a redirect: %v", err)
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"good":         {"\n" + token + "\n\n", 0o600, ""},
		"operator":     {"operator " + token, 0o400, ""},
		"group":        {token, 0o640, "chmod 0600"},
		"others":       {token, 0o604, "chmod 0600"},
		"empty":        {"\n", 0o600, "has no token"},
		"several":      {token + "\n" + token, 0o600, "has several tokens"},
		"control":      {token + "\x01", 0o600, "not a visible ASCII character"},
		"two words":    {token + " x", 0o600, "not a visible ASCII character"},
		"a line break": {token + "\rX-Header: 1", 0o600, "not a visible ASCII character"},
	} {
		got, err := readToken(tokenFile(t, c.content, c.mode))
		if c.want == "" && (err != nil || got != token) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err != nil && strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error has the token", name)
		}
	}
	for _, path := range []string{t.TempDir(), "/nonexistent"} {
		if _, err := readToken(path); err == nil {
			t.Errorf("%s is a token file", path)
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://db1.example:9188": "https://db1.example:9188", "http://127.0.0.1:9188/screen/#view=who": "http://127.0.0.1:9188",
		"https://h/prefix/": "https://h/prefix", "http://[::1]:9188": "http://[::1]:9188",
		"db1:9188": "", "ftp://h": "", "https://": "", "https://user:secret@h": "", "https://h/?token=x": "", "": "",
	} {
		u, err := parse(address)
		if want == "" && err == nil || want != "" && (err != nil || u.String() != want) {
			t.Errorf("%s: %v, %v", address, u, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// TestReconnects ends the worker between two answers. The data stays with the reason, and the next answer replaces it.
func TestReconnects(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token || r.URL.Path != "/screen/data" {
			t.Errorf("request %s %v", r.URL, r.Header)
		}
		if down.Load() {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte(good()))
	})
	c, state := client(t, s.URL, tokenFile(t, token, 0o600)), view.NewState("")
	state.Connect = c.Address()
	fetch := func(before *view.Data) *view.Data {
		return c.Fetch(t.Context(), state, before, time.Time{}, true, false)
	}
	first := fetch(nil)
	if first.Info.Error != "" || first.Load == nil {
		t.Fatalf("first answer: %+v", first)
	}
	if ahead := time.Until(c.Now()); ahead < 300*24*time.Hour {
		t.Errorf("the clock of the worker is ahead by %s", ahead)
	}
	down.Store(true)
	second := fetch(first)
	if !strings.Contains(second.Info.Error, "cannot reach the worker at "+s.URL) || second.Load != first.Load || first.Info.Error != "" {
		t.Errorf("without an answer: %+v", second.Info)
	}
	for _, d := range []*view.Data{second, fetch(nil)} {
		for page := range len(view.Names()) {
			state.Page, state.PID = view.Page(page), 1
			g := view.NewGrid(100, 30)
			view.Draw(g, state, d, c.Now())
			if text := g.Plain(); !strings.Contains(text, "cannot reach the worker") {
				t.Errorf("the screen does not show the reason:\n%s", text)
			}
		}
	}
	state.Page, state.PID = view.PageLoad, 0
	down.Store(false)
	if third := fetch(second); third.Info.Error != "" || third.Load == nil {
		t.Errorf("the worker is there again: %+v", third.Info)
	}
	if got, want := view.Command(state, first), "pg_stat_backtrace top --connect "+s.URL+" --token-file FILE --batch"; got != want {
		t.Errorf("command %q, want %q", got, want)
	}
}

// TestSparseAnswers draws answers in which members are null or absent.
func TestSparseAnswers(t *testing.T) {
	t.Parallel()
	at := `"time": "2026-01-01T00:00:00Z"`
	answers := []string{
		`{` + at + `, "info": {}}`, `{` + at + `, "errors": {"info": "x"}}`,
		`{` + at + `, "info": {}, "load": null, "findings": {}, "sessions": {"sessions": [{}]}, "who": {"rows": [{}], "others": {}},
			"blocking": {"nodes": [{}, {"depth": 9999, "waits": [{}]}]}, "session": {"now": {}, "waits": [{}]}, "stack": {"frames": [{}]},
			"plan": {"levels": [{}]}, "memory": {"contexts": [{}]}}`,
		`{` + at + `, "info": {"sessions": {"active": -5}}, "findings": {"findings": [{"percent": -1, "sessions": -1}, {"text": " "}]}, "session": {}}`,
	}
	for _, body := range answers {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
		c := client(t, s.URL, "")
		for page := range len(view.Names()) {
			state := view.NewState("")
			state.Page, state.PID, state.Connect = view.Page(page), 1, c.Address()
			d := c.Fetch(t.Context(), state, nil, time.Time{}, true, page == 0)
			for _, size := range [][2]int{{40, 10}, {80, 24}, {200, 60}} {
				view.Draw(view.NewGrid(size[0], size[1]), state, d, c.Now())
			}
			for _, key := range []string{"down", "enter", "end", "enter", "tab", "/", "x", "enter", "y"} {
				view.Handle(state, d, key)
			}
		}
	}
}
