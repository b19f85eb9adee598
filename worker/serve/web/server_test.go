package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/logtest"
)

// soon is how long a test waits for what should happen at once.
const soon = 60 * time.Second

const secret = "correct-horse-battery-staple"

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:9188":    "127.0.0.1:9188 true",
		"localhost:0":       "localhost:0 true",
		"[::1]:9188":        "[::1]:9188 true",
		"0.0.0.0:8080":      "0.0.0.0:8080 false",
		"[::]:8080":         "[::]:8080 false",
		"192.0.2.1:9188":    "192.0.2.1:9188 false",
		"unix:/run/w.sock":  "unix:/run/w.sock true",
		"":                  "",
		":9188":             "",
		"127.0.0.1":         "",
		"127.0.0.1:http":    "",
		"127.0.0.1:65536":   "",
		"example.com:9188":  "",
		"unix:relative":     "",
		"unix:/" + longPath: "",
	} {
		a, err := ParseAddress(text)
		switch {
		case want == "":
			if !errors.Is(err, ErrAddress) {
				t.Errorf("%q: %v, %v", text, a, err)
			}
		case err != nil:
			t.Errorf("%q: %v", text, err)
		default:
			if got := fmt.Sprintf("%s %t", a, a.Loopback()); got != want {
				t.Errorf("%q: got %s, want %s", text, got, want)
			}
		}
	}
}

var longPath = strings.Repeat("x", 107)

// listening is the message with the address that was opened.
const listening = "listening"

// logged returns a log, the addresses in it that were opened, and the errors.
func logged() (log zerolog.Logger, opened, failures <-chan string) {
	addresses, errs := make(chan string, 100), make(chan string, 100)
	return logtest.New(func(l logtest.Line) {
		if l.Message == listening {
			addresses <- l.Address
			return
		}
		errs <- l.Error
	}), addresses, errs
}

// run starts a server and returns the address that it listens on.
func run(t *testing.T, cfg Config) (string, *Server) {
	t.Helper()
	if cfg.Address == (Address{}) {
		cfg.Address = Address{Network: "tcp", Host: "127.0.0.1"}
	}
	opened := make(chan string, 1)
	next := cfg.Log
	cfg.Log = logtest.New(func(l logtest.Line) {
		if l.Message == listening {
			opened <- l.Address
			return
		}
		next.Log().Fields(l.Fields).Msg("")
	})
	s := New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case address := <-opened:
		return address, s
	case <-time.After(soon):
		t.Fatal("the server does not listen")
	}
	return "", nil
}

// ask makes a request and returns the status and the body.
func ask(t *testing.T, url string, change ...func(*http.Request)) (status int, body string, header http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(r)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: soon}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

func setHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func setHost(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

func text(body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
}

func addBody(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("x")), 1 }

func TestPages(t *testing.T) {
	address, _ := run(t, Config{Version: "1.2<3", Metrics: text("some_metric 1\n")})
	base := "http://" + address
	for _, c := range []struct {
		path   string
		change func(*http.Request)
		status int
		body   string
	}{
		{"/healthz", nil, 200, "ok\n"},
		{"/readyz", nil, 200, "ok\n"},
		{"/", nil, 200, "1.2&lt;3"},
		{"/debug/pprof/", nil, 200, "/debug/pprof/profile"},
		{"/metrics", nil, 200, "some_metric 1"},
		{"/metrics", setHost("localhost:1234"), 200, ""},
		{"/metrics", setHost("[::1]:1234"), 200, ""},
		{"/metrics", setHost("rebound.example"), 403, "is not allowed"},
		{"/metrics", setHost("192.0.2.1:80"), 403, "is not allowed"},
		{"/other", nil, 404, ""},
		{"/debug/pprof/heap", nil, 404, ""},
		{"/debug/pprof/profile", nil, 501, "cannot make a profile"},
		{"/debug/pprof/profile?seconds=0", nil, 400, "seconds must be"},
		{"/debug/pprof/profile?format=xml", nil, 400, "format must be"},
		{"/debug/pprof/profile?format=html", nil, 400, "format must be"},
		{"/debug/pprof/profile?seconds=301", nil, 400, "at most 300"},
		{"/debug/pprof/profile?seconds=NaN", nil, 400, "seconds must be"},
		{"/debug/pprof/profile?seconds=1;format=html", nil, 400, "cannot be read"},
		{"/debug/pprof/profile?seconds=%zz", nil, 400, "cannot be read"},
		{"/debug/pprof/profile?second=1", nil, 400, "there is no parameter"},
		{"/debug/pprof/profile?user=postgres&seconds=1", nil, 400, "the parameters are seconds, mode, query_id, pid, format"},
		{"/debug/pprof/profile?query_id=1&query_id=2", nil, 400, "may be given once"},
		{"/debug/pprof/profile?seconds=1&debug=0&pid=1&pid=2", nil, 501, "cannot make a profile"},
		{"/debug/pprof/profile?mode=both", nil, 400, "cpu, offcpu or wall"},
		{"/debug/pprof/profile?pid=1,x", nil, 400, "process id"},
		{"/debug/pprof/profile?query_id=1.5", nil, 400, "query id"},
		{"/metrics", func(r *http.Request) { r.Method = http.MethodPost }, 405, "only GET"},
		{"/metrics", addBody, 400, "no body"},
	} {
		var changes []func(*http.Request)
		if c.change != nil {
			changes = append(changes, c.change)
		}
		status, body, header := ask(t, base+c.path, changes...)
		if status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: got %d %q, want %d %q", c.path, status, body, c.status, c.body)
		}
		if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", c.path, header)
		}
	}
}

func writeFile(t *testing.T, content string, mode os.FileMode) string {
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

func TestTokenFileRefused(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, path := range map[string]string{
		"no such file":            filepath.Join(t.TempDir(), "missing"),
		"permissions 0644":        writeFile(t, secret, 0o644),
		"permissions 0640":        writeFile(t, secret, 0o640),
		"has no token":            writeFile(t, "\n \n", 0o600),
		"at least 16":             writeFile(t, "short\n", 0o600),
		"more than 65536 bytes":   writeFile(t, strings.Repeat("x", maxTokenFile+1), 0o600),
		"is not a regular file":   fifo,
		" is not a regular file ": t.TempDir(),
	} {
		err := (&Config{TokenFile: path}).Check()
		if !errors.Is(err, ErrTokenFile) || !strings.Contains(err.Error()+" ", want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if os.Geteuid() == 0 {
		path := writeFile(t, secret, 0o600)
		if err := os.Chown(path, 4711, 0); err != nil {
			t.Fatal(err)
		}
		if err := (&Config{TokenFile: path}).Check(); err == nil || !strings.Contains(err.Error(), "belongs to user 4711") {
			t.Errorf("a file of another user: %v", err)
		}
	}
}

func TestToken(t *testing.T) {
	path := writeFile(t, secret+"\nanother-valid-token\n", 0o600)
	address, s := run(t, Config{TokenFile: path, Metrics: text("1\n"), Hosts: []string{"db1.example"}})
	url := "http://" + address + "/metrics"
	for _, c := range []struct {
		header string
		status int
	}{
		{"", 401},
		{"Bearer " + secret, 200},
		{"bearer another-valid-token", 200},
		{"Bearer " + secret + "x", 401},
		{"Bearer " + secret[1:], 401},
		{"Bearer ", 401},
		{"Digest " + secret, 401},
	} {
		status, _, header := ask(t, url, setHeader("Authorization", c.header), setHost("db1.example"))
		if status != c.status {
			t.Errorf("%q: %d", c.header, status)
		}
		if status == 401 && !strings.HasPrefix(header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%q: %v", c.header, header)
		}
	}
	if status, _, _ := ask(t, strings.Replace(url, "://", "://any:"+secret+"@", 1)); status != 200 {
		t.Errorf("password in the URL: %d", status)
	}
	if status, _, _ := ask(t, "http://"+address+"/healthz"); status != 200 {
		t.Errorf("health without a token: %d", status)
	}

	changed := func(do func()) {
		do()
		s.tokens.mu.Lock()
		s.tokens.checked = time.Time{} // as if the time had passed
		s.tokens.mu.Unlock()
	}
	changed(func() { _ = os.WriteFile(path, []byte("the-token-of-tomorrow\n"), 0o600) })
	if status, _, _ := ask(t, url, setHeader("Authorization", "Bearer "+secret)); status != 401 {
		t.Errorf("the old token: %d", status)
	}
	if status, _, _ := ask(t, url, setHeader("Authorization", "Bearer the-token-of-tomorrow")); status != 200 {
		t.Errorf("the new token: %d", status)
	}
	changed(func() { _ = os.Remove(path) })
	if status, _, _ := ask(t, url, setHeader("Authorization", "Bearer the-token-of-tomorrow")); status != 503 {
		t.Errorf("a removed file: %d", status)
	}
}

// asUser calls f on a thread that opens files as another user than root.
func asUser(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const user = 4711
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with this goroutine
		_ = unix.Setfsuid(user)
		f()
	}()
	<-done
}

// TestFilesReadAsRoot: a process that was root uses files that only root can read. After a change it keeps
// their last content, and reports each change once.
func TestFilesReadAsRoot(t *testing.T) {
	dir := t.TempDir()
	token, cert, key := filepath.Join(dir, "token"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	template := httptest.NewUnstartedServer(nil)
	template.StartTLS()
	defer template.Close()
	if err := errors.Join(os.WriteFile(token, []byte(secret), 0o600),
		writePair(template.TLS.Certificates[0], cert, key)); err != nil {
		t.Fatal(err)
	}
	var kept []string
	cfg := Config{TokenFile: token, CertFile: cert, KeyFile: key, Log: logtest.New(func(l logtest.Line) { kept = append(kept, l.Error) })}
	asUser(t, func() {
		if err := cfg.Check(); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("without root: %v", err)
		}
	})
	cfg.Files = cfg.ReadAsRoot()
	s := New(cfg)
	use := func(reports int) {
		t.Helper()
		s.tokens.checked, s.certs.checked = time.Time{}, time.Time{} // as if the time had passed
		asUser(t, func() {
			if err := cfg.Check(); err != nil {
				t.Error(err)
			}
			if sums, err := s.tokens.current(); err != nil || len(sums) != 1 {
				t.Errorf("%d tokens, %v", len(sums), err)
			}
			if c, err := s.certs.get(nil); err != nil || c == nil {
				t.Errorf("certificate: %v", err)
			}
		})
		if len(kept) != reports {
			t.Errorf("%d reports, not %d: %v", len(kept), reports, kept)
		}
	}
	change := func(minutes int) {
		t.Helper()
		for _, path := range []string{token, key} {
			if err := errors.Join(os.WriteFile(path, []byte("replaced"), 0o600),
				os.Chtimes(path, time.Time{}, time.Now().Add(time.Duration(minutes)*time.Minute))); err != nil {
				t.Fatal(err)
			}
		}
	}
	use(0)
	change(1)
	use(0) // the folder hides the change
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	use(2)
	use(2)
	change(2)
	use(3) // the certificate has the same error
	use(3)
}

// TestRootRefusesFilesOfOthers: root reads no file for another user that this user can replace by a link.
func TestRootRefusesFilesOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := writeFile(t, secret, 0o600)
	cfg := Config{TokenFile: path}
	if cfg.ReadAsRoot().tokens == nil {
		t.Error("a file of root was not read")
	}
	if err := os.Chown(filepath.Dir(path), 4711, 0); err != nil {
		t.Fatal(err)
	}
	if cfg.ReadAsRoot().tokens != nil {
		t.Error("a file in a folder of another user was read")
	}
}

func TestCheck(t *testing.T) {
	open := Address{Network: "tcp", Host: "0.0.0.0", Port: 9188}
	if err := (&Config{Address: open}).Check(); !errors.Is(err, ErrNeedsToken) {
		t.Errorf("an open address without a token: %v", err)
	}
	c := Config{Address: open, TokenFile: writeFile(t, secret, 0o600)}
	if err := c.Check(); err != nil || !c.InClearText() {
		t.Errorf("an open address with a token: %v, %t", err, c.InClearText())
	}
	c.CertFile, c.KeyFile = c.TokenFile, c.TokenFile
	if err := c.Check(); !errors.Is(err, ErrCertificate) {
		t.Errorf("no certificate: %v", err)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if l, ok := stale.(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false)
	}
	_ = stale.Close()
	address, _ := run(t, Config{Address: Address{Network: "unix", Path: path}})
	if address != "unix:"+path {
		t.Errorf("listens on %s", address)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	answer, err := client.Get("http://worker.example/")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("status %d", answer.StatusCode)
	}
	if _, err := (Address{Network: "unix", Path: path}).listen(t.Context(), false); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a socket in use: %v", err)
	}
	file := writeFile(t, "", 0o600)
	if _, err := (Address{Network: "unix", Path: file}).listen(t.Context(), false); err == nil {
		t.Error("a file was taken for a socket")
	}
	open := filepath.Join(t.TempDir(), "open")
	l, err := Address{Network: "unix", Path: open}.listen(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if info, err := os.Stat(open); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("mode with a token: %v, %v", info.Mode(), err)
	}
}

// TestSocketLost: the server notices that its Unix socket was removed or replaced, and listens again. It leaves the
// socket of another program alone.
func TestSocketLost(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "socket")
	log, opened, failures := logged()
	s := New(Config{
		Address: Address{Network: "unix", Path: path}, Limits: Limits{Retry: 10 * time.Millisecond}, Log: log,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	listens := func(when string) {
		t.Helper()
		select {
		case <-opened:
		case <-time.After(soon):
			t.Fatalf("%s: the server does not listen", when)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		_ = c.Close()
	}
	fails := func(want error) {
		t.Helper()
		select {
		case err := <-failures:
			if !strings.Contains(err, want.Error()) {
				t.Errorf("got %v, want %v", err, want)
			}
		case <-time.After(soon):
			t.Fatalf("no error %v", want)
		}
	}
	listens("at the start")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	fails(ErrSocketLost)
	listens("after its file was removed")

	other, err := net.Listen("unix", filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "other"), path); err != nil {
		t.Fatal(err)
	}
	fails(unix.EADDRINUSE)
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the socket of another program: %v", err)
	} else {
		_ = c.Close()
	}
	_ = other.Close()
	listens("after the other program ended")
}

// TestPortInUse: the server reports the error once, and listens as soon as the port is free.
func TestPortInUse(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a, err := ParseAddress(other.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	log, opened, failures := logged()
	s := New(Config{Address: a, Limits: Limits{Retry: 10 * time.Millisecond}, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	if err := <-failures; !strings.Contains(err, unix.EADDRINUSE.Error()) {
		t.Errorf("got %v", err)
	}
	_ = other.Close()
	select {
	case <-opened:
	case <-time.After(soon):
		t.Error("the server does not listen")
	}
	cancel()
	wg.Wait()
	if len(failures) > 0 {
		t.Errorf("reported again: %v", <-failures)
	}
}

// TestSlowClients: clients that send nothing, or a byte now and then, keep no other client out, and lose their
// connections.
func TestSlowClients(t *testing.T) {
	address, _ := run(t, Config{
		Metrics: text("1\n"), Limits: Limits{Connections: 8, First: time.Nanosecond, Header: time.Second},
	})
	var slow []net.Conn
	for i := range 16 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if i%2 == 0 {
			_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nX-Slow: ")
		}
		slow = append(slow, c)
	}
	if status, _, _ := ask(t, "http://"+address+"/metrics"); status != 200 {
		t.Errorf("a client beside slow ones: %d", status)
	}
	for i, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(soon))
		if _, err := io.ReadAll(c); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("slow client %d still has its connection", i)
		}
	}
}

// TestHugeHeader: a header beyond the limit is refused.
func TestHugeHeader(t *testing.T) {
	address, _ := run(t, Config{Metrics: text("1\n")})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	go func() { _, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nX: "+strings.Repeat("x", 1<<20)+"\r\n\r\n") }()
	_ = c.SetReadDeadline(time.Now().Add(soon))
	line, _ := bufio.NewReader(c).ReadString('\n')
	if !strings.Contains(line, "431") {
		t.Errorf("got %q", line)
	}
}

// TestManyScrapes: a hundred scrapes at a time are all answered, and only as many at a time as the limit allows.
func TestManyScrapes(t *testing.T) {
	var now, most atomic.Int64
	address, _ := run(t, Config{
		Limits: Limits{Requests: 4, Wait: soon},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n := now.Add(1)
			defer now.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			_, _ = io.WriteString(w, "1\n")
		}),
	})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			answer, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = answer.Body.Close() }()
			if _, _ = io.Copy(io.Discard, answer.Body); answer.StatusCode != http.StatusOK {
				t.Errorf("status %d", answer.StatusCode)
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n < 1 || n > 4 {
		t.Errorf("%d at a time", n)
	}
}

// TestWaitBeyondReadTimeout: a request may wait for its turn longer than a client may take to send it, and its
// connection stays usable. A client that sends the body of a refused request too slowly still loses its connection.
func TestWaitBeyondReadTimeout(t *testing.T) {
	const header = 500 * time.Millisecond // on a busy machine, a request may come some time after its connection
	first, release := make(chan struct{}), make(chan struct{})
	var scrapes atomic.Int64
	address, _ := run(t, Config{
		Limits: Limits{Requests: 1, Wait: soon, Header: header},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if scrapes.Add(1) == 1 {
				close(first)
				<-release
			}
			if err := r.Context().Err(); err != nil {
				failf(w, http.StatusServiceUnavailable, "%v", err)
			}
		}),
	})
	const scrape = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
	dial := func(send string) net.Conn {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(soon))
		_, _ = io.WriteString(c, send)
		return c
	}
	dial(scrape)
	<-first
	waits, slow := dial(scrape), dial("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
	if _, err := io.Copy(io.Discard, slow); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a client that sends no body still has its connection")
	}
	time.Sleep(2 * header) // longer than each read deadline
	close(release)
	answers := bufio.NewReader(waits)
	for _, what := range []string{"the request that waited", "a later request of its connection"} {
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d: %s", what, answer.StatusCode, body)
		}
		_, _ = io.WriteString(waits, scrape)
	}
}

// slowProfiles collects profiles that last until release is closed or the context ends.
type slowProfiles struct {
	started chan ProfileRequest
	stopped chan struct{}
	release chan struct{}
}

func newSlowProfiles() *slowProfiles {
	return &slowProfiles{
		started: make(chan ProfileRequest, 100), stopped: make(chan struct{}, 100), release: make(chan struct{}),
	}
}

func (p *slowProfiles) collect(ctx context.Context, r ProfileRequest) (*profile.Profile, error) {
	p.started <- r
	select {
	case <-p.release:
	case <-ctx.Done():
		p.stopped <- struct{}{}
		return nil, ctx.Err()
	}
	return sample(), nil
}

func sample() *profile.Profile {
	f := &profile.Function{ID: 1, Name: "ExecutorRun"}
	l := &profile.Location{ID: 1, Line: []profile.Line{{Function: f}}}
	return &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}},
		Sample:     []*profile.Sample{{Value: []int64{7}, Location: []*profile.Location{l}}},
		Location:   []*profile.Location{l}, Function: []*profile.Function{f},
	}
}

// waiting waits until so many clients wait for the running profile.
func waiting(t *testing.T, s *Server, clients int) {
	t.Helper()
	for late := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		s.flights.mu.Lock()
		n := 0
		if s.flights.current != nil {
			n = s.flights.current.waiting
		}
		s.flights.mu.Unlock()
		if n == clients {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("%d clients wait, not %d", n, clients)
		}
	}
}

// TestEqualRequestsShareProfile: equal requests get one profile, another request gets 429 and when to retry.
func TestEqualRequestsShareProfile(t *testing.T) {
	p := newSlowProfiles()
	address, s := run(t, Config{Collect: p.collect})
	url := "http://" + address + "/debug/pprof/profile?seconds=60"
	var wg sync.WaitGroup
	for _, parameters := range []string{
		"&mode=wall&pid=8,7&query_id=-5", "&query_id=18446744073709551611&pid=7&pid=8&mode=wall",
	} {
		wg.Go(func() {
			status, body, _ := ask(t, url+parameters)
			got, err := profile.ParseData([]byte(body))
			if status != 200 || err != nil || got.Sample[0].Value[0] != 7 {
				t.Errorf("%d, %v", status, err)
			}
		})
	}
	waiting(t, s, 2)
	status, body, header := ask(t, url)
	if after := header.Get("Retry-After"); status != 429 || after == "" || after == "0" || len(after) > 2 {
		t.Errorf("another profile: %d %s, retry after %q", status, body, after)
	}
	close(p.release)
	wg.Wait()
	if len(p.started) != 1 {
		t.Errorf("%d profiles were made", len(p.started))
	}
	r := <-p.started
	if r.Duration != time.Minute || r.Mode != ModeWall || *r.QueryID != -5 || fmt.Sprint(r.PIDs) != "[7 8]" {
		t.Errorf("request %+v", r)
	}
}

// TestProfileStopsWithoutClients: a profile continues for the remaining client, and stops without any.
func TestProfileStopsWithoutClients(t *testing.T) {
	p := newSlowProfiles()
	const header = 500 * time.Millisecond
	address, s := run(t, Config{Collect: p.collect, Limits: Limits{Header: header}})
	var clients []context.CancelFunc
	var wg sync.WaitGroup
	for n := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		clients = append(clients, cancel)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/debug/pprof/profile", nil)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if answer, err := http.DefaultClient.Do(r); err == nil {
				_ = answer.Body.Close()
				t.Errorf("answered with %d", answer.StatusCode)
			}
		})
		waiting(t, s, n+1)
	}
	clients[0]()
	waiting(t, s, 1)
	if len(p.stopped) > 0 {
		t.Error("the profile stopped although a client waits")
	}
	// Longer than a client may take to send its request: the profile does not count as that.
	time.Sleep(2 * header)
	waiting(t, s, 1)
	clients[1]()
	select {
	case <-p.stopped:
	case <-time.After(soon):
		t.Error("the profile did not stop")
	}
	wg.Wait()
}

func TestProfileErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
	}{
		{fmt.Errorf("%w: the kernel refuses", ErrUnavailable), 503},
		{errors.New("unexpected"), 500},
	} {
		address, _ := run(t, Config{Collect: func(context.Context, ProfileRequest) (*profile.Profile, error) {
			return nil, c.err
		}})
		status, body, _ := ask(t, "http://"+address+"/debug/pprof/profile?seconds=1")
		if status != c.status || !strings.Contains(body, c.err.Error()) {
			t.Errorf("%v: %d %s", c.err, status, body)
		}
	}
	address, _ := run(t, Config{Collect: func(context.Context, ProfileRequest) (*profile.Profile, error) {
		panic("a bug")
	}})
	for range 2 {
		if status, body, _ := ask(t, "http://"+address+"/debug/pprof/profile"); status != 500 {
			t.Errorf("a panic: %d %s", status, body)
		}
	}
}

// TestEndDuringProfile: the server ends while a client waits.
func TestEndDuringProfile(t *testing.T) {
	p := newSlowProfiles()
	log, opened, _ := logged()
	s := New(Config{Address: Address{Network: "tcp", Host: "127.0.0.1"}, Collect: p.collect, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	address := <-opened
	wg.Go(func() {
		if answer, err := http.Get("http://" + address + "/debug/pprof/profile"); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("status %d", answer.StatusCode)
			}
		}
	})
	waiting(t, s, 1)
	cancel()
	wg.Wait()
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	template := httptest.NewUnstartedServer(nil)
	template.StartTLS()
	defer template.Close()
	if err := writePair(template.TLS.Certificates[0], cert, key); err != nil {
		t.Fatal(err)
	}
	p := newSlowProfiles()
	address, s := run(t, Config{CertFile: cert, KeyFile: key, Collect: p.collect, Limits: Limits{Connections: 2, First: time.Nanosecond}})
	var wg sync.WaitGroup
	wg.Go(func() {
		answer, err := template.Client().Get("https://" + address + "/debug/pprof/profile")
		if err != nil {
			t.Error(err)
			return
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK || answer.TLS == nil {
			t.Errorf("status %d", answer.StatusCode)
		}
	})
	waiting(t, s, 1)
	for range 4 { // they take the place of each other, and not of the request
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if status := secureStatus(t, template.Client(), "https://"+address+"/healthz"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	waiting(t, s, 1)
	close(p.release)
	wg.Wait()
}

// secureStatus returns the status of an answer, over a new connection.
func secureStatus(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// TestPprofReads: go tool pprof gets a profile by its URL.
func TestPprofReads(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	path := writeFile(t, secret, 0o600)
	address, _ := run(t, Config{TokenFile: path, Collect: func(context.Context, ProfileRequest) (*profile.Profile, error) {
		return sample(), nil
	}})
	command := exec.CommandContext(t.Context(), tool, "tool", "pprof", "-top", "http://x:"+secret+"@"+address+
		"/debug/pprof/profile?seconds=1")
	command.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	out, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ExecutorRun") {
		t.Errorf("%v\n%s", err, out)
	}
}
