package web

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// jsonOf answers with JSON that has a text and the path of the request.
func jsonOf(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"worker": text, "at": r.URL.String()})
	})
}

// jsonLines is lines with the type of a stream.
func jsonLines(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines(name).ServeHTTP(w, r)
	})
}

// socket opens a port for a server of this test.
func socket(t *testing.T) (port int, file *os.File) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, _ := l.(*net.TCPListener)
	if file, err = tcp.File(); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	t.Cleanup(func() { _ = file.Close() })
	addr, _ := l.Addr().(*net.TCPAddr)
	return addr.Port, file
}

// pairOf starts two workers that know each other. The second one has its own token file.
func pairOf(t *testing.T, change func(n int, cfg *Config)) (base [2]string, ports [2]int, ran func() []string) {
	t.Helper()
	var files [2]*os.File
	for n := range 2 {
		ports[n], files[n] = socket(t)
	}
	var mu sync.Mutex
	var runs []string
	for n := range 2 {
		name := fmt.Sprintf("worker %d", n)
		cfg := Config{
			Address: Address{Network: "tcp", Host: "127.0.0.1", Port: ports[n]}, Inherited: files[n],
			TokenFile: writeFile(t, secret+"\noperator "+operatorSecret+"\n", 0o600), Ports: func() []int { return ports[:] },
			Screen: &Screen{
				Files: text("file"), View: jsonOf(name + " view"), Operator: jsonOf(name + " operator"),
				ViewEvents: jsonLines(name + " view"), OperatorEvents: jsonLines(name + " operator"),
				Actions: &Actions{
					Capture: func(_ context.Context, pid int) ([]byte, error) {
						mu.Lock()
						defer mu.Unlock()
						runs = append(runs, fmt.Sprint(n, " ", pid))
						return []byte(`{"captured":true}`), nil
					},
					Waits: func(_ context.Context, pid int) (string, error) { return fmt.Sprintf("waits of %d\n", pid), nil },
				},
			},
		}
		change(n, &cfg)
		run(t, cfg)
		base[n] = fmt.Sprintf("http://127.0.0.1:%d", ports[n])
	}
	return base, ports, func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(runs) }
}

func bearer(token string) func(*http.Request) { return setHeader("Authorization", "Bearer "+token) }

// TestOtherWorkers: a worker answers for another worker of its host, which decides by its own token file.
func TestOtherWorkers(t *testing.T) {
	base, ports, ran := pairOf(t, func(int, *Config) {})
	other := fmt.Sprintf("%s/screen/at/%d/", base[0], ports[1])
	if status, body, _ := ask(t, base[0]+"/screen/servers", bearer(secret)); status != http.StatusOK ||
		!strings.Contains(body, fmt.Sprintf(`{"port":%d,"own":true}`, ports[0])) || !strings.Contains(body, fmt.Sprintf(`{"port":%d}`, ports[1])) {
		t.Errorf("the list: %d %s", status, body)
	}
	for _, c := range []struct {
		name, url, token string
		status           int
		body             string
	}{
		{"view", other + "data?view=load", secret, 200, `{"at":"/screen/data?view=load","worker":"worker 1 view"}`},
		{"operator", other + "data?view=load", operatorSecret, 200, "worker 1 operator"},
		{"no token", other + "data", "", 401, "token"},
		{"wrong token", other + "data", "wrong-token-0123456789", 401, "token"},
		{"list without a token", base[0] + "/screen/servers", "", 401, "token"},
		{"the worker itself", fmt.Sprintf("%s/screen/at/%d/data", base[0], ports[0]), secret, 404, "no worker"},
		{"another port", base[0] + "/screen/at/22/data", secret, 404, "no worker"},
		{"a port with zeros", fmt.Sprintf("%s/screen/at/0%d/data", base[0], ports[1]), secret, 404, "no worker"},
		{"another page", other + "page.js", secret, 404, "no worker"},
		{"a page of the listener", other + "../../../metrics", secret, 404, ""},
		{"a worker behind another", other + fmt.Sprintf("at/%d/data", ports[0]), secret, 404, "no worker"},
	} {
		status, body, header := ask(t, c.url, func(r *http.Request) {
			if c.token != "" {
				bearer(c.token)(r)
			}
		})
		if status != c.status || !strings.Contains(body, c.body) || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %s %v", c.name, status, body, header)
		}
	}
	stream := follow(t, strings.TrimSuffix(other, "/"), secret, "worker 1 view")
	if !stream.Scan() || stream.Text() != "worker 1 view" {
		t.Errorf("the stream: %q, %v", stream.Text(), stream.Err())
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
		body   string
	}{
		"an operator":       {post(`{"pid": 4711}`), 200, `{"captured":true}`},
		"a view token":      {post(`{"pid": 4711}`, bearer(secret)), 403, "operator"},
		"another site":      {post(`{"pid": 4711}`, setHeader("Sec-Fetch-Site", "same-site")), 403, ""},
		"a wrong body":      {post(`{"pid": 0}`), 400, "pid"},
		"GET":               {func(r *http.Request) { bearer(operatorSecret)(r) }, 405, "POST"},
		"operator by a URL": {post(`{"pid": 4711}`, func(r *http.Request) { r.SetBasicAuth("x", operatorSecret) }), 403, ""},
	} {
		if status, body, _ := ask(t, other+"capture", c.change); status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("a capture, %s: %d %s", name, status, body)
		}
	}
	if got := ran(); !slices.Equal(got, []string{"1 4711"}) {
		t.Errorf("captures: %v", got)
	}
	if status, body, _ := ask(t, other+"waits", post(`{"pid": 4711}`)); status != 200 || !strings.Contains(body, `"text":"waits of 4711\n"`) {
		t.Errorf("waits: %d %s", status, body)
	}
	if status, body, _ := ask(t, other+"profile", post(`{"pid": 4711}`)); status != http.StatusNotImplemented || !strings.Contains(body, "does not measure") {
		t.Errorf("a profile without the means: %d %s", status, body)
	}
}

// TestOtherTokens: the token of one worker gives nothing at a worker with another token file.
func TestOtherTokens(t *testing.T) {
	const own = "token-of-the-second-worker"
	base, ports, ran := pairOf(t, func(n int, cfg *Config) {
		if n == 1 {
			cfg.TokenFile = writeFile(t, "operator "+own+"\n"+secret+"\n", 0o600)
		}
	})
	other := fmt.Sprintf("%s/screen/at/%d/", base[0], ports[1])
	if status, body, _ := ask(t, other+"data", bearer(operatorSecret)); status != http.StatusUnauthorized || strings.Contains(body, "worker 1") {
		t.Errorf("the operator of the first worker: %d %s", status, body)
	}
	if status, body, _ := ask(t, other+"capture", post(`{"pid": 1}`)); status != http.StatusUnauthorized || len(ran()) > 0 {
		t.Errorf("an action of the operator of the first worker: %d %s", status, body)
	}
	if status, _, _ := ask(t, other+"data", bearer(own)); status != http.StatusUnauthorized {
		t.Errorf("the operator of the second worker at the first one: %d", status)
	}
	if status, body, _ := ask(t, other+"data", bearer(secret)); status != http.StatusOK || !strings.Contains(body, "worker 1 view") {
		t.Errorf("a token of both: %d %s", status, body)
	}
}

// TestOtherProgram: an answer that no worker gives does not reach the browser as a page.
func TestOtherProgram(t *testing.T) {
	ports := []int{0, 0}
	var file *os.File
	ports[0], file = socket(t)
	port, stranger := socket(t)
	ports[1] = port
	l, err := net.FileListener(stranger)
	if err != nil {
		t.Fatal(err)
	}
	var answer atomic.Value
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // a test
		answer.Load().(func(http.ResponseWriter, *http.Request))(w, r)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	run(t, Config{
		Address: Address{Network: "tcp", Host: "127.0.0.1", Port: ports[0]}, Inherited: file, TokenFile: writeFile(t, secret+"\n", 0o600),
		Ports: func() []int { return ports }, Screen: &Screen{Files: text("file"), View: text("view"), Operator: text("operator")},
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/screen/at/%d/data", ports[0], ports[1])
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		status int
		body   string
	}{
		"a page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Content-Security-Policy", "script-src *")
			w.Header().Set("Set-Cookie", "a=b")
			_, _ = io.WriteString(w, "<script>1</script>")
		}, 502, "does not answer with data"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://evil.example/", http.StatusFound)
		}, 502, "status 302"},
		"no worker": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no worker serves this port; retry later", http.StatusServiceUnavailable)
		}, 503, "no worker serves"},
		"an end": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 502, "does not answer"},
	} {
		answer.Store(c.answer)
		status, body, header := ask(t, url, bearer(secret))
		if status != c.status || !strings.Contains(body, c.body) || header.Get("Set-Cookie") != "" || strings.Contains(body, "<script>") ||
			!strings.HasPrefix(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %s %v", name, status, body, header)
		}
	}
}

// TestOtherByTLS: a worker accepts another one only with its own certificate, which need not be for the address.
func TestOtherByTLS(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		same bool
		want int
	}{{"the same certificate", true, 200}, {"another certificate", false, 502}} {
		base, ports, _ := pairOf(t, func(n int, cfg *Config) {
			name := filepath.Join(dir, fmt.Sprint(c.name, n))
			if c.same {
				name = filepath.Join(dir, c.name)
			}
			cfg.CertFile, cfg.KeyFile = name+".cert", name+".key"
			if _, err := os.Stat(cfg.KeyFile); err == nil {
				return
			}
			if err := writePair(newCertificate(t, "db.example"), cfg.CertFile, cfg.KeyFile); err != nil {
				t.Fatal(err)
			}
		})
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // a test
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("https%s/screen/at/%d/data", strings.TrimPrefix(base[0], "http"), ports[1]), nil)
		if err != nil {
			t.Fatal(err)
		}
		bearer(secret)(r)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != c.want || (c.want == 502) != strings.Contains(string(body), "certificate") {
			t.Errorf("%s: %d %s", c.name, answer.StatusCode, body)
		}
	}
}

func newCertificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
