package debuginfod

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
)

// reach is the part of the network from which an address is reachable.
type reach int

const (
	everywhere reach = iota
	insideNetwork
	thisHost // with all that only this host reaches: its other services, and a cloud's metadata at a link-local address
)

// reachOf classifies an address. An IPv6 address that embeds an IPv4 address counts as the IPv4 address.
func reachOf(addr netip.Addr) reach {
	addr = embedded(addr.Unmap())
	switch {
	case !addr.IsValid(), addr.IsLoopback(), addr.IsUnspecified(), addr.IsMulticast(), addr.IsLinkLocalUnicast(),
		thisNetwork.Contains(addr), addr == limitedBroadcast:
		return thisHost
	case addr.IsPrivate(), carrierGrade.Contains(addr):
		return insideNetwork
	}
	return everywhere
}

var (
	thisNetwork      = netip.MustParsePrefix("0.0.0.0/8")     // RFC 1122
	carrierGrade     = netip.MustParsePrefix("100.64.0.0/10") // RFC 6598
	limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	translated       = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixToFour        = netip.MustParsePrefix("2002::/16")    // RFC 3056
	compatible       = netip.MustParsePrefix("::/96")        // RFC 4291
)

// embedded returns the IPv4 address that an IPv6 address embeds, or the address itself.
func embedded(addr netip.Addr) netip.Addr {
	if !addr.Is6() {
		return addr
	}
	b := addr.As16()
	switch {
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6]))
	case translated.Contains(addr), compatible.Contains(addr) && addr != netip.IPv6Loopback():
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// route is the way of one download: from the configured server to the places to which redirects lead.
type route struct {
	from    string                 // host and port of the configured server
	reachOf func(netip.Addr) reach // the function of this name, except in tests

	mu         sync.Mutex
	redirected bool
	// reach is the smallest reach of all servers on the way. For example, it is everywhere if one server is public. It
	// comes from the addresses of the connections, because the answers of DNS may change at any time. The field known
	// is false before the first connection.
	reach reach
	known bool
}

type routeKey struct{}

// start returns a context with a new route, for a download from a server.
func start(ctx context.Context, s *server) context.Context {
	r := &route{from: hostPort(s.url), reachOf: s.reachOf}
	ctx = context.WithValue(ctx, routeKey{}, r)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { r.pass(i.Conn) }})
}

func routeOf(ctx context.Context) *route {
	r, _ := ctx.Value(routeKey{}).(*route)
	return r
}

// pass lowers the field reach to the reach of a connection, if this is smaller. The connection, a new or a reused one,
// is for the next request.
func (r *route) pass(c net.Conn) {
	to := everywhere // the strictest value, if the address is unknown
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		to = r.reachOf(tcp.AddrPort().Addr())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known || to < r.reach {
		r.reach, r.known = to, true
	}
}

// redirect notes that a server has answered with a redirect.
func (r *route) redirect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.redirected = true
}

// follows reports whether the next request follows a redirect.
func (r *route) follows() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.redirected
}

// allows reports whether a redirect may lead to an address: each server on the way must be able to reach the address
// itself. An address of this host must also be a configured server.
func (r *route) allows(to netip.Addr, configured bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch where := r.reachOf(to); where {
	case everywhere:
		return true
	case insideNetwork:
		return r.known && r.reach >= where
	case thisHost:
		return r.known && r.reach >= where && configured
	}
	return false
}

// guard decides to which addresses redirects may lead. A configured server may have any address. But redirects and DNS
// answers must not lead the client to places that the server itself cannot reach.
type guard struct {
	dialer net.Dialer
	named  map[string]bool // the configured servers, by host and port
}

func newGuard(dialer net.Dialer, servers []*server) *guard {
	g := &guard{dialer: dialer, named: make(map[string]bool)}
	for _, s := range servers {
		g.named[hostPort(s.url)] = true
	}
	return g
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{plain: "80", secure: "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// dial connects to the host and port of a redirect. It checks the address after the lookup, just before the connection.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := g.dialer
	way := routeOf(ctx)
	d.Control = func(_, to string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(to)
		if err != nil {
			return err
		}
		if way == nil || !way.allows(at.Addr(), g.named[address]) {
			return fmt.Errorf("%w: to %s, an address that the server itself cannot reach", errRedirect, at.Addr())
		}
		return nil
	}
	return d.DialContext(ctx, network, address)
}

// guarded sends a first request by a connection that may be reused, and a request that follows a redirect by a new
// connection. So the guard checks each redirect, and no redirect uses a connection that another redirect was allowed to
// open.
type guarded struct {
	named  *http.Transport // to configured servers
	others *http.Transport // has no idle connections; its connections pass the guard
}

// RoundTrip sends a request.
func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	way := routeOf(r.Context())
	if way != nil && !way.follows() && hostPort(r.URL) == way.from {
		return g.named.RoundTrip(r)
	}
	return g.others.RoundTrip(r)
}

// CloseIdleConnections closes the idle connections of both transports. http.Client calls it.
func (g *guarded) CloseIdleConnections() {
	g.named.CloseIdleConnections()
	g.others.CloseIdleConnections()
}
