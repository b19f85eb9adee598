package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// fakeConn is a connection of some source.
type fakeConn struct {
	net.Conn

	from   source
	closed bool
}

func (f *fakeConn) Close() error { f.closed = true; return nil }

// fakes accepts connections, and has a clock.
type fakes struct {
	*conns

	at   time.Time
	next *fakeConn
}

func (f *fakes) Accept() (net.Conn, error) {
	if f.next == nil {
		return nil, errors.New("no more")
	}
	c := f.next
	f.next = nil
	return c, nil
}

func (f *fakes) Close() error   { return nil }
func (f *fakes) Addr() net.Addr { return nil }

const halfSecond = 500 * time.Millisecond

func newFakes(most int) *fakes {
	f := &fakes{at: time.Now()}
	f.conns = newConns(f, Limits{Connections: most, First: halfSecond}, nil)
	f.now = func() time.Time { return f.at }
	f.source = func(c net.Conn) source { return c.(*fakeConn).from }
	return f
}

// connect returns a new connection of a user; nil if it was refused.
func (f *fakes) connect(t *testing.T, user uint32) *conn {
	t.Helper()
	c := &fakeConn{from: source{kind: localUser, user: user}}
	f.next = c
	accepted, err := f.conns.Accept()
	if err != nil {
		if !c.closed {
			t.Error("a refused connection is open")
		}
		return nil
	}
	n, _ := accepted.(*conn)
	return n
}

func open(n *conn) bool { f, ok := n.Conn.(*fakeConn); return ok && !f.closed }

// TestFloodOfOneSource: connections of one source have time for a request, have at most half of the places, and take no
// place of another source.
func TestFloodOfOneSource(t *testing.T) {
	f := newFakes(8)
	other, slow := f.connect(t, 2), f.connect(t, 1)
	for range 3 {
		f.connect(t, 1)
	}
	for range 100 {
		if f.connect(t, 1) != nil {
			t.Fatal("more than half of the places")
		}
	}
	f.at = f.at.Add(halfSecond - 1)
	if f.connect(t, 1) != nil || !open(slow) {
		t.Error("a connection gave way before its time ended")
	}
	f.at = f.at.Add(1)
	if f.connect(t, 1) == nil || open(slow) {
		t.Error("the oldest connection did not give way")
	}
	for range 100 {
		f.at = f.at.Add(halfSecond)
		f.connect(t, 1)
	}
	if !open(other) || f.waiting != 5 {
		t.Errorf("%d connections; of the other source: %t", f.waiting, open(other))
	}
}

// TestFloodOfManySources: if all places are taken, a source with many connections gives way to one with few.
func TestFloodOfManySources(t *testing.T) {
	f := newFakes(8)
	for i := range uint32(8) {
		f.connect(t, i%3)
	}
	first := f.connect(t, 7)
	if first == nil {
		t.Fatal("a source with few connections was refused")
	}
	for range 100 { // more of the sources with many
		f.connect(t, 0)
		f.connect(t, 1)
	}
	if !open(first) || f.waiting != 8 {
		t.Errorf("%d connections; of the small source: %t", f.waiting, open(first))
	}
	f = newFakes(8)
	for i := range uint32(8) {
		f.connect(t, i)
	}
	if f.connect(t, 8) != nil {
		t.Error("a connection of equal sources gave way before its time ended")
	}
	f.at = f.at.Add(halfSecond)
	if f.connect(t, 8) == nil {
		t.Error("no connection of equal sources gave way")
	}
}

// TestPlaces: a request in progress keeps its connection, an idle connection gives way at once, and a closed one is not
// counted.
func TestPlaces(t *testing.T) {
	f := newFakes(4)
	n, pending := f.connect(t, 1), f.connect(t, 1)
	n.arrived()
	n.work()
	for range 10 {
		f.at = f.at.Add(halfSecond)
		f.connect(t, 1)
	}
	if !open(n) || open(pending) || f.waiting != 2 {
		t.Errorf("request in progress: %t, pending: %t, %d places", open(n), open(pending), f.waiting)
	}
	for range 2 {
		f.connect(t, 1) // both have time
	}
	if f.connect(t, 1) != nil {
		t.Error("a connection gave way before its time ended")
	}
	n.rest()
	state(n, http.StateIdle)
	if f.connect(t, 1) == nil || open(n) {
		t.Error("an idle connection did not give way")
	}
	n.arrived() // too late
	n.work()
	n.rest()
	state(n, http.StateIdle)
	for i := range uint32(3) {
		c := f.connect(t, 10+i)
		if c == nil {
			t.Fatal("no place")
		}
		_ = c.Close()
		c.arrived()
	}
	if f.waiting != 3 || len(f.sources) != 1 { // a request that has ended counts beyond the places of its source
		t.Errorf("%d places, %d sources", f.waiting, len(f.sources))
	}
}

// TestFlood: a client that connects, waits and sends a request is answered, while others connect all the time and send
// nothing, from any address of this host.
func TestFlood(t *testing.T) {
	const places = 32
	address, _ := run(t, Config{
		Metrics: text("1\n"), Limits: Limits{Connections: 2 * places, First: time.Hour, Header: soon},
	})
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	_ = client.SetDeadline(time.Now().Add(soon))
	refused := 0
	for i := range 4 * places {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i), 1)}}
		c, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if i >= places-1 { // beyond the places of its source
			_ = c.SetReadDeadline(time.Now().Add(soon))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				refused++
			}
		}
	}
	if want := 3*places + 1; refused != want {
		t.Errorf("%d connections were refused, not %d", refused, want)
	}
	if _, err := io.WriteString(client, "GET /metrics HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(client); err != nil || len(answer) < 12 || string(answer[9:12]) != "200" {
		t.Errorf("%v: %q", err, answer)
	}
}

func TestDefaultConnections(t *testing.T) {
	if n := (Limits{}).withDefaults().Connections; n < 16 || n > 2048 {
		t.Error(n)
	}
}

func TestNetworkSource(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8:0:1::1", "2001:db8::1", false},
		{"::ffff:192.0.2.1", "192.0.2.1", true},
	} {
		a, b := netip.MustParseAddr(c.a).Unmap(), netip.MustParseAddr(c.b).Unmap()
		if got := networkSource(a) == networkSource(b); got != c.same {
			t.Errorf("%s and %s: the same source: %t", c.a, c.b, got)
		}
	}
}

// accepted returns the source of a connection that dial makes.
func accepted(t *testing.T, l net.Listener, dial func() (net.Conn, error)) source {
	t.Helper()
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	n, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	return sourceOf(n)
}

// TestSourceOf: all addresses of this host are one source for each user.
func TestSourceOf(t *testing.T) {
	own := source{kind: localUser, user: uint32(os.Getuid())}
	for _, address := range []string{"0.0.0.0:0", "[::]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err)
			continue
		}
		defer func() { _ = l.Close() }()
		tcp, _ := l.Addr().(*net.TCPAddr)
		from := func(local, to string) func() (net.Conn, error) {
			return func() (net.Conn, error) {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
				return d.DialContext(t.Context(), "tcp", net.JoinHostPort(to, strconv.Itoa(tcp.Port)))
			}
		}
		calls := []func() (net.Conn, error){from("127.0.0.1", "127.0.0.1"), from("127.1.2.3", "127.3.2.1")}
		if address == "[::]:0" {
			calls = append(calls, from("::1", "::1"))
		}
		for _, dial := range calls {
			got := accepted(t, l, dial)
			if got.kind == localHost {
				t.Skip("this host does not name the users of sockets")
			}
			if got != own {
				t.Errorf("%s: %+v, not %+v", address, got, own)
			}
		}
		if os.Geteuid() == 0 {
			got := accepted(t, l, func() (c net.Conn, err error) {
				asUser(t, func() { c, err = from("127.0.0.1", "127.0.0.1")() })
				return c, err
			})
			if want := (source{kind: localUser, user: 4711}); got != want {
				t.Errorf("another user: %+v", got)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	got := accepted(t, l, func() (net.Conn, error) {
		return (&net.Dialer{}).DialContext(context.Background(), "unix", path)
	})
	if got != own {
		t.Errorf("unix socket: %+v", got)
	}
}

// TestClosedSocketHasNoUser: the kernel gives the sockets of ended programs to root. They must not count as root's.
func TestClosedSocketHasNoUser(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	n, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	if got := sourceOf(n); got != (source{kind: localHost}) {
		t.Errorf("%+v", got)
	}
}
