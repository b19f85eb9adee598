package debuginfod

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// write writes an answer, and reports whether that succeeded. It may fail, because the client may close the connection.
func write(w http.ResponseWriter, p []byte) bool {
	_, err := w.Write(p)
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	return err == nil
}

// zip compresses like a server that sends compressed data without a request for it.
func zip(p []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(p)
	_ = w.Close()
	return b.Bytes()
}

// status answers with a status and nothing else.
func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// The files that the servers of the table send.
var (
	good         = elfFile(buildID, 1, 2, 3)
	big          = elfFile(buildID, make([]byte, 2<<20)...)
	zipped, bomb = zip(good), zip(append(big, make([]byte, 30<<20)...))
)

// hostile are servers, with the error that a download from each must return. Only the server "right" has no error.
var hostile = map[string]struct {
	handler http.HandlerFunc
	err     error
	text    string
}{
	"right": {handler: func(w http.ResponseWriter, _ *http.Request) { write(w, good) }},
	"another build": {
		handler: func(w http.ResponseWriter, _ *http.Request) { write(w, elfFile(otherID)) }, err: ErrRefused, text: otherID,
	},
	"no build-id": {handler: func(w http.ResponseWriter, _ *http.Request) { write(w, elfFile("")) }, err: ErrRefused},
	"a page": {
		handler: func(w http.ResponseWriter, _ *http.Request) { write(w, []byte("<html>Log in first")) }, err: ErrRefused,
	},
	"nothing": {handler: func(http.ResponseWriter, *http.Request) {}, err: ErrRefused},
	"cut, and it does not say so": {
		handler: func(w http.ResponseWriter, _ *http.Request) { write(w, good[:len(good)-100]) }, err: ErrRefused,
	},
	"cut": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(good)))
			write(w, good[:100])
			panic(http.ErrAbortHandler)
		}, text: "unexpected EOF",
	},
	"endless": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			for write(w, big) {
			}
		}, err: ErrTooLarge,
	},
	"huge, it says": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9223372036854775807")
			write(w, good)
		}, err: ErrTooLarge,
	},
	"huge, debuginfod says": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Debuginfod-Size", "999999999999")
			write(w, good)
		}, err: ErrTooLarge,
	},
	"too large, the server finds": {
		handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Debuginfod-Maxsize") == strconv.Itoa(4<<20) {
				w.WriteHeader(http.StatusNotAcceptable)
			}
		}, err: ErrTooLarge,
	},
	"drip": {
		handler: func(w http.ResponseWriter, r *http.Request) {
			for _, b := range good {
				if !write(w, []byte{b}) {
					return
				}
				select {
				case <-r.Context().Done():
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}, err: ErrStalled,
	},
	"head and no body": {
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			write(w, good[:64])
			<-r.Context().Done()
		}, err: ErrStalled,
	},
	"silence": {handler: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, err: ErrStalled},
	"redirect loop": {
		handler: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		err:     errRedirect,
	},
	"redirect to a file": {
		handler: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		},
		err: errRedirect,
	},
	"gzip nobody asked for": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			write(w, zipped)
		}, err: ErrRefused, text: "gzip",
	},
	"gzip bomb, and it does not say so": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			write(w, bomb)
		}, err: ErrRefused,
	},
	"500": {handler: status(500), err: errStatus, text: "500"},
	"403": {handler: status(403), err: errStatus, text: "403"},
	"204": {handler: status(204), err: errStatus, text: "204"},
	"partial": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
			write(w, good)
		}, err: errStatus,
	},
	"a huge head": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Much", strings.Repeat("x", 1<<20))
			write(w, good)
		}, text: "header",
	},
	"a name with a path": {
		handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Disposition", `attachment; filename="../../../evil"`)
			w.Header().Set("X-Debuginfod-File", "../../../evil")
			write(w, elfFile(otherID))
		}, err: ErrRefused,
	},
}

// TestHostile checks that the client accepts only the right file from any server, and ends soon.
func TestHostile(t *testing.T) {
	for name, tt := range hostile {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tt.handler)
			defer server.Close()
			timeout := time.Minute
			if errors.Is(tt.err, ErrStalled) {
				timeout = 300 * time.Millisecond
			}
			c, events := newClient(t, Config{URLs: []string{server.URL}, MaxSize: 4 << 20, Timeout: timeout})
			path, err := c.Fetch(t.Context(), DebugInfo, buildID)
			if tt.err == nil && tt.text == "" {
				if got, readErr := os.ReadFile(path); err != nil || readErr != nil || !bytes.Equal(got, good) {
					t.Fatal(err, readErr)
				}
				return
			}
			if err == nil || !errors.Is(err, ErrServers) || tt.err != nil && !errors.Is(err, tt.err) ||
				!strings.Contains(err.Error(), tt.text) {
				t.Errorf("%q, %v; want %v, %q", path, err, tt.err, tt.text)
			}
			if left := listing(t, c.Dir()); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			if events.count(Failed) != 1 || events.count(Arrived) != 0 {
				t.Errorf("events %+v", events.events)
			}
			if _, again := c.Fetch(t.Context(), DebugInfo, buildID); !errors.Is(again, ErrServers) || events.count(Failed) != 1 {
				t.Errorf("asked again at once: %v", again)
			}
		})
	}
}

// TestDripIsLeftAlone checks a server that sends single bytes after it has begun. Its download must end soon, and the
// next request must not wait for it.
func TestDripIsLeftAlone(t *testing.T) {
	t.Parallel()
	requests := atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		for write(w, []byte{0}) {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}))
	defer server.Close()
	c, events := newClient(t, Config{URLs: []string{server.URL}, Timeout: 3 * time.Second})
	for n := range 3 {
		_, err := c.Fetch(t.Context(), DebugInfo, fmt.Sprintf("%040x", n))
		if n == 0 && (!errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "less than 1 KiB in 1s")) {
			t.Error(err)
		}
	}
	if requests.Load() != 1 || events.count(Paused) != 1 {
		t.Errorf("%d requests, %d pauses", requests.Load(), events.count(Paused))
	}
}

// TestRedirectsStayOutside checks that a redirect leads to no other service of this host, by any name, except to
// another configured server.
func TestRedirectsStayOutside(t *testing.T) {
	t.Parallel()
	secret := atomic.Int32{}
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		secret.Add(1)
		write(w, good)
	}))
	defer inner.Close()
	_, port, err := net.SplitHostPort(inner.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"127.0.0.1", "localhost", "127.1.2.3", "[::ffff:127.0.0.1]", "0.0.0.0", "[::1]", "[::]", "169.254.169.254",
		"[fe80::1%25lo]", "[64:ff9b::7f00:1]", "2130706433",
	} {
		outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+host+":"+port+r.URL.Path, http.StatusFound)
		}))
		c, _ := newClient(t, Config{URLs: []string{outer.URL}, ConnectTimeout: 5 * time.Second})
		if _, err := c.Fetch(t.Context(), DebugInfo, buildID); err == nil || secret.Load() != 0 {
			t.Errorf("%s: %v, and the inner server was asked %d times", host, err, secret.Load())
		}
		outer.Close()
	}
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inner.URL+r.URL.Path, http.StatusFound)
	}))
	defer outer.Close()
	c, _ := newClient(t, Config{URLs: []string{outer.URL, inner.URL}})
	if _, err := c.Fetch(t.Context(), DebugInfo, buildID); err != nil || secret.Load() != 1 {
		t.Errorf("to a server that was named: %v", err)
	}
}

// serverAt starts a server at an address of this host.
func serverAt(t *testing.T, ip string, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp4", ip+":0")
	if err != nil {
		t.Skip(err)
	}
	s := httptest.NewUnstartedServer(handler)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// TestEachRedirectIsChecked checks that a server outside leads to no place inside the network, although a server inside
// has led there before and its connection could be reused. A way that has left the network must not lead back inside.
func TestEachRedirectIsChecked(t *testing.T) {
	t.Parallel()
	const outside, inside = "127.0.0.2", "127.0.0.3"
	reachOf := func(a netip.Addr) reach {
		if a == netip.MustParseAddr(inside) {
			return insideNetwork
		}
		return everywhere
	}
	asked := atomic.Int32{}
	target := serverAt(t, inside, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		write(w, elfFile(strings.Split(r.URL.Path, "/")[2]))
	})
	lead := func(to func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to()+r.URL.Path, http.StatusFound) }
	}
	direct := func() string { return target.URL }
	outer := serverAt(t, outside, lead(direct))
	inner := serverAt(t, inside, lead(direct))
	detour := serverAt(t, inside, lead(func() string { return outer.URL }))
	c, _ := newClient(t, Config{URLs: []string{inner.URL, outer.URL, detour.URL}})
	servers := c.servers
	for _, s := range servers {
		s.reachOf = reachOf
	}
	for n, s := range []*server{servers[0], servers[1], servers[2], servers[0], servers[1]} {
		c.servers = []*server{s}
		_, err := c.Fetch(t.Context(), DebugInfo, fmt.Sprintf("%040x", n))
		if allowed := s == servers[0]; allowed != (err == nil) || !allowed && !errors.Is(err, errRedirect) {
			t.Errorf("%d: %v", n, err)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("the server inside was asked %d times", asked.Load())
	}
}

func TestReachOf(t *testing.T) {
	for want, addresses := range map[reach][]string{
		everywhere:    {"8.8.8.8", "2606:4700::1111", "2002:0808:0808::1", "64:ff9b::808:808", "::ffff:8.8.8.8"},
		insideNetwork: {"10.1.2.3", "172.31.0.1", "192.168.0.1", "100.100.100.200", "fd00:ec2::254", "2002:0a01:0203::"},
		thisHost: {
			"127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::", "::1",
			"fe80::1", "ff02::1", "::ffff:127.0.0.1", "::127.0.0.1", "2002:7f00:0001::", "64:ff9b::a9fe:a9fe",
		},
	} {
		for _, a := range addresses {
			if got := reachOf(netip.MustParseAddr(a)); got != want {
				t.Errorf("%s: %d, want %d", a, got, want)
			}
		}
	}
}

// TestMaxTime checks that a server which is just fast enough for each chunk still reaches the limit for the whole
// download.
func TestMaxTime(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for write(w, make([]byte, minChunk)) {
		}
	}))
	defer server.Close()
	c, _ := newClient(t, Config{URLs: []string{server.URL}, MaxSize: None, Timeout: None, MaxTime: 300 * time.Millisecond})
	if _, err := c.Fetch(t.Context(), DebugInfo, buildID); !errors.Is(err, ErrStalled) {
		t.Error(err)
	}
}

// TestDeadServers uses a closed port, and a port that accepts connections but never responds. The next server must be
// asked. After some failures the dead one must not be used until its pause ends.
func TestDeadServers(t *testing.T) {
	var listen net.ListenConfig
	silent, err := listen.Listen(t.Context(), "tcp4", "127.0.0.1:0") // never calls accept
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write(w, elfFile(strings.Split(r.URL.Path, "/")[2]))
	}))
	defer good.Close()
	for name, dead := range map[string]string{"closed": noServer, "silent": "http://" + silent.Addr().String()} {
		failures, timeout := maxFailures, time.Minute
		if name == "silent" {
			failures, timeout = 1, 3*time.Second // which has taken long enough
		}
		t.Run(name, func(t *testing.T) {
			at := &clock{at: time.Now()}
			c, events := newClient(t, Config{URLs: []string{dead, good.URL}, Timeout: timeout})
			c.now = at.now
			fetch := func(n int) {
				t.Helper()
				if _, err := c.Fetch(t.Context(), DebugInfo, fmt.Sprintf("%040x", n)); err != nil {
					t.Error(err)
				}
			}
			for i := range 10 {
				fetch(i)
			}
			f, p, a := events.count(Failed), events.count(Paused), events.count(Arrived)
			if f != failures || p != 1 || a != 10 {
				t.Errorf("%d failures, %d pauses, %d arrivals", f, p, a)
			}
			at.advance(minPause + time.Second)
			fetch(10)
			fetch(11)
			if f, p := events.count(Failed), events.count(Paused); f != failures+1 || p != 2 {
				t.Errorf("after the pause: %d failures, %d pauses", f, p)
			}
		})
	}
}

// TestAlone: without any other server, a request to a dead one fails, nothing is remembered on disk, and it is asked
// again after a minute.
func TestAlone(t *testing.T) {
	at := &clock{at: time.Now()}
	c, events := newClient(t, Config{URLs: []string{noServer}})
	c.now = at.now
	for range 3 {
		if _, err := c.Fetch(t.Context(), DebugInfo, buildID); !errors.Is(err, ErrServers) {
			t.Error(err)
		}
	}
	if left := listing(t, c.Dir()); len(left) > 0 || events.count(Failed) != 1 {
		t.Error(left, events.events)
	}
	at.advance(retryPause)
	if _, err := c.Fetch(t.Context(), DebugInfo, buildID); !errors.Is(err, ErrServers) || events.count(Failed) != 2 {
		t.Error(err, events.events)
	}
}

// TestCloseAfterMiss: a client that is closed when a server has answered that it lacks a file reports no success.
func TestCloseAfterMiss(t *testing.T) {
	server := httptest.NewServer(status(http.StatusNotFound))
	defer server.Close()
	c, _ := newClient(t, Config{URLs: []string{server.URL, server.URL}})
	c.cfg.OnEvent = func(e Event) {
		if e.Kind == Missing {
			c.cancel()
		}
	}
	if path, err := c.Fetch(t.Context(), DebugInfo, buildID); !errors.Is(err, ErrClosed) {
		t.Errorf("%q, %v", path, err)
	}
}

// TestCancel checks that a cancelled caller does not end the download for others. Close ends it and leaves no file.
func TestCancel(t *testing.T) {
	begun, release := make(chan struct{}, 8), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write(w, elfFile(buildID)[:10])
		begun <- struct{}{}
		select {
		case <-release:
			write(w, elfFile(buildID)[10:])
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	c, _ := newClient(t, Config{URLs: []string{server.URL}})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 2)
	go func() { _, err := c.Fetch(ctx, DebugInfo, buildID); got <- err }()
	<-begun
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() { _, err := c.Fetch(t.Context(), DebugInfo, buildID); got <- err }()
	close(release)
	if err := <-got; err != nil {
		t.Error(err)
	}
	release = make(chan struct{})
	c, _ = newClient(t, Config{URLs: []string{server.URL}, CacheDir: filepath.Join(t.TempDir(), "c")})
	go func() { _, err := c.Fetch(t.Context(), DebugInfo, buildID); got <- err }()
	<-begun
	c.Close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if left := listing(t, c.Dir()); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
