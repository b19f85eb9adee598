package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// request is a request as its server gets it.
func request(host string, headers ...string) *http.Request {
	r := &http.Request{Host: host, Header: http.Header{}}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// TestSites: requests of web pages of other sites are refused, with a token as without.
func TestSites(t *testing.T) {
	token := &tokens{path: writeFile(t, secret, 0o600)}
	const site, origin, referer = "Sec-Fetch-Site", "Origin", "Referer"
	for _, c := range []struct {
		host    string
		headers []string
		refused bool
	}{
		{"127.0.0.1:9188", nil, false},
		{"127.0.0.1:9188", []string{site, "none"}, false},
		{"127.0.0.1:9188", []string{site, "same-origin"}, false},
		{"127.0.0.1:9188", []string{site, "same-origin", referer, "https://proxy.example/"}, false},
		{"127.0.0.1:9188", []string{site, "cross-site"}, true},
		{"127.0.0.1:9188", []string{site, "same-site"}, true},
		{"127.0.0.1:9188", []string{site, "other"}, true},
		{"127.0.0.1:9188", []string{site, "none", site, "cross-site"}, true},
		{"127.0.0.1:9188", []string{origin, "null"}, true},
		{"127.0.0.1:9188", []string{origin, "https://evil.example"}, true},
		{"127.0.0.1:9188", []string{site, "same-origin", origin, "https://evil.example"}, true},
		{"127.0.0.1:9188", []string{origin, "http://127.0.0.1:3000"}, true},
		{"127.0.0.1:9188", []string{origin, "http://127.0.0.1:9188"}, false},
		{"127.0.0.1:9188", []string{origin, "https://metrics.example"}, false},
		{"127.0.0.1:9188", []string{referer, "https://evil.example/page"}, true},
		{"127.0.0.1:9188", []string{referer, "http://127.0.0.1:9188/"}, false},
		{"127.0.0.1:9188", []string{referer, "https://METRICS.example:8443/"}, false},
		{"localhost:9188", nil, false},
		{"[::1]:9188", nil, false},
		{"", nil, false},
		{"metrics.example", nil, false},
		{"Metrics.Example.:443", nil, false},
		{"evil.com", nil, true},
		{"evil.com:9188", []string{site, "same-origin"}, true},
		{"metrics.example.evil.com", nil, true},
		{"127.0.0.1.evil.com:9188", nil, true},
		{"localhost.evil.com", nil, true},
	} {
		for name, tokens := range map[string]*tokens{"with a token": token, "without a token": nil} {
			s := &Server{cfg: Config{Hosts: []string{"metrics.example"}}, tokens: tokens}
			r := request(c.host, append(c.headers, "Authorization", "Bearer "+secret)...)
			refusal := s.refuse(r)
			if (refusal != nil) != c.refused || refusal != nil && refusal.status != http.StatusForbidden {
				t.Errorf("%s, host %q, %q: %+v", name, c.host, c.headers, refusal)
			}
		}
	}
	own, _ := os.Hostname()
	for host, want := range map[string][2]bool{ // without a token, and with one
		"192.0.2.1:9188":     {false, true},
		"[2001:db8::1]:9188": {false, true},
		own + ":9188":        {true, true},
	} {
		for i, tokens := range []*tokens{nil, token} {
			s := &Server{tokens: tokens}
			if got := s.ownHost(host); got != want[i] {
				t.Errorf("host %q, token %t: %t", host, i > 0, got)
			}
		}
	}
	unix := &Server{cfg: Config{Address: Address{Network: unixNetwork}}}
	if !unix.ownHost("any.example") || unix.refuse(request("any.example", site, "cross-site")) == nil {
		t.Error("Unix socket")
	}
}

// TestRefusedHost: the answer to an unknown host names the option.
func TestRefusedHost(t *testing.T) {
	address, _ := run(t, Config{TokenFile: writeFile(t, secret, 0o600), Metrics: text("1\n")})
	status, body, _ := ask(t, "http://any:"+secret+"@"+address+"/metrics", setHost("evil.com"))
	if status != http.StatusForbidden || !strings.Contains(body, `"evil.com"`) || !strings.Contains(body, "--listen-host") {
		t.Errorf("%d: %s", status, body)
	}
}

// TestCertificateNames: the names of the certificate are names of the listener.
func TestCertificateNames(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		names []string
		hosts map[string]bool
	}{
		{[]string{"db1.example", "*.wild.example"}, map[string]bool{
			"db1.example:9188": true, "DB1.example.": true, "a.wild.example": true, "a.b.wild.example": false,
			"common.example": false, "evil.com": false,
		}},
		{nil, map[string]bool{"common.example:9188": true, "evil.com": false}},
	} {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "common.example"}, DNSNames: c.names,
			NotAfter: time.Now().Add(time.Hour),
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		cert, keyFile := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
		if err := writePair(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, cert, keyFile); err != nil {
			t.Fatal(err)
		}
		s := New(Config{CertFile: cert, KeyFile: keyFile})
		for host, want := range c.hosts {
			if got := s.ownHost(host); got != want {
				t.Errorf("certificate for %v, host %s: %t", c.names, host, got)
			}
		}
	}
}

// TestHealth: what does not work is named, but only to permitted clients. A server that is down is no failure.
func TestHealth(t *testing.T) {
	var state atomic.Pointer[Health]
	state.Store(&Health{Failure: "no spool"})
	address, _ := run(t, Config{
		TokenFile: writeFile(t, secret, 0o600), Health: func() Health { return *state.Load() },
	})
	permitted := setHeader("Authorization", "Bearer "+secret)
	nothing := func(*http.Request) {}
	check := func(path string, change func(*http.Request), status int, text string) {
		t.Helper()
		if got, body, _ := ask(t, "http://"+address+path, change); got != status || body != text {
			t.Errorf("%s: %d %q, not %d %q", path, got, body, status, text)
		}
	}
	check("/healthz", nothing, 503, "the worker does not serve\n")
	check("/healthz", permitted, 503, "the worker does not serve\nno spool\n")
	check("/readyz", permitted, 503, "the worker does not serve\nno spool\n")
	state.Store(&Health{Missing: []string{"no session", "no queue"}})
	check("/healthz", nothing, 200, "ok\n")
	check("/healthz", permitted, 200, "ok\nno session\nno queue\n")
	check("/readyz", nothing, 503, "not ready\n")
	check("/readyz", permitted, 503, "not ready\nno session\nno queue\n")
	check("/readyz", func(r *http.Request) { permitted(r); r.Host = "evil.com" }, 503, "not ready\n")
	state.Store(&Health{})
	check("/readyz", permitted, 200, "ok\n")
}

func TestCheckHosts(t *testing.T) {
	if err := CheckHosts([]string{"db1", "db1.example.com.", "192.0.2.1", "::1", "[::1]", "a_b-c.example"}); err != nil {
		t.Error(err)
	}
	for _, host := range []string{
		"", ".", "db1:9188", "http://db1", "db1/x", "*", "*.example", "a b", "a,b", "user@db1", "192.0.2.1:80", "bücher.example",
		strings.Repeat("x", 254),
	} {
		if CheckHosts([]string{host}) == nil {
			t.Errorf("%q is accepted", host)
		}
	}
}
