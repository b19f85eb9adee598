package debuginfod

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"syscall"
)

// reach is the part of the network from which an address is reachable.
type reach int

const (
	everywhere reach = iota
	insideNetwork
	thisHost // and what only this host sees: other services here, and a cloud's metadata at a link-local address
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

// origin is the context key of the server to which a request was first sent.
type origin struct{}

// guard decides to which addresses the client connects. A configured server may have any address. But redirects and
// DNS answers must not lead the client to places that the server itself cannot reach.
type guard struct {
	dialer net.Dialer
	named  map[string]*server // by host and port
}

func newGuard(dialer net.Dialer, servers []*server) *guard {
	g := &guard{dialer: dialer, named: make(map[string]*server)}
	for _, s := range servers {
		g.named[hostPort(s.url)] = s
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

// dial connects to host and port. It checks the address after the lookup, just before the connection.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := g.dialer
	from, _ := ctx.Value(origin{}).(*server)
	to := g.named[address]
	d.Control = func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		r := reachOf(at.Addr())
		switch {
		case to != nil:
			to.inside.Store(r != everywhere)
		case r == thisHost, r == insideNetwork && (from == nil || !from.inside.Load()):
			return fmt.Errorf("%w: to %s, an address that the server itself cannot reach", errRedirect, at.Addr())
		}
		return nil
	}
	return d.DialContext(ctx, network, address)
}
