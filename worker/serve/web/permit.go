package web

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
)

// refusal is an answer to a request that is not permitted.
type refusal struct {
	status int
	text   string
}

// refuse returns why a request is not permitted; nil: it is permitted. A request with a valid token must pass the checks of
// refuseSite too, because a browser that has stored the token sends it with the requests of every page.
func (s *Server) refuse(r *http.Request) *refusal {
	if refusal := s.refuseSite(r); refusal != nil {
		return refusal
	}
	if s.tokens == nil {
		return nil
	}
	allowed, err := s.tokens.allows(r)
	switch {
	case err != nil:
		return &refusal{http.StatusServiceUnavailable, "the worker cannot read its token file"}
	case !allowed:
		return &refusal{http.StatusUnauthorized, "a valid token is needed"}
	}
	return nil
}

// refuseSite refuses requests that a browser sends for a web page of another site; nil: the request is permitted.
func (s *Server) refuseSite(r *http.Request) *refusal {
	if !s.ownHost(r.Host) {
		return &refusal{http.StatusForbidden, fmt.Sprintf("the host %q of the request is not allowed; "+
			"use an IP address, or name the host by the worker's option --listen-host", r.Host)}
	}
	if s.foreignSite(r) {
		return &refusal{http.StatusForbidden, "requests from another web site are not allowed; " +
			"enter the address in the browser itself, or name the host of the site by the worker's option --listen-host"}
	}
	return nil
}

// ownHost reports whether the host in a request is a name or address of this listener. The owner of a web page can make the
// page's host name resolve to the address of the listener (DNS rebinding). The page could then read the answers. But such a
// request has the host name of the page. With an IP address as host, this attack is impossible.
func (s *Server) ownHost(hostPort string) bool {
	if hostPort == "" || s.cfg.Address.Network == unixNetwork {
		return true // not from a browser: every browser sends a host, and none connects to a Unix socket
	}
	host := hostName(hostPort)
	if strings.EqualFold(host, localhost) || s.named(host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (s.tokens != nil || ip.Unmap().IsLoopback())
}

// hostName returns the host of "HOST:PORT" or "HOST", without brackets and without the dot at the end of a full name.
func hostName(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostPort, "["), "]")
	}
	return strings.TrimSuffix(host, ".")
}

// named reports whether a name is a name of this listener: it is this host's own name, or is in Config.Hosts, or in the
// certificate.
func (s *Server) named(host string) bool {
	if s.configured(host) {
		return true
	}
	if own, err := os.Hostname(); err == nil && own != "" && strings.EqualFold(host, own) {
		return true
	}
	return s.certs != nil && s.certs.names(host)
}

// configured reports whether a name is in Config.Hosts.
func (s *Server) configured(host string) bool {
	return slices.ContainsFunc(s.cfg.Hosts, func(name string) bool { return strings.EqualFold(host, hostName(name)) })
}

// foreignSite reports whether a browser has sent a request for a page of another site, by the header Sec-Fetch-Site. Its value
// is none if a user has entered the address. Browsers send this header only to their own machine or by TLS, and old browsers
// never send it. Without this header, foreignSite uses the headers Origin and Referer, if the request has them.
func (s *Server) foreignSite(r *http.Request) bool {
	site := r.Header.Values("Sec-Fetch-Site")
	for _, value := range site {
		if value != "none" && value != "same-origin" {
			return true
		}
	}
	pages := r.Header.Values("Origin")
	if len(site) == 0 {
		pages = append(pages[:len(pages):len(pages)], r.Header.Values("Referer")...)
	}
	for _, page := range pages {
		u, err := url.Parse(page)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) && !s.configured(hostName(u.Host)) {
			return true
		}
	}
	return false
}

// CheckHosts returns an error unless each text is the name or IP address of a host, without a port.
func CheckHosts(hosts []string) error {
	for _, host := range hosts {
		if _, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil {
			continue
		}
		if err := checkHost(host); err != nil {
			return fmt.Errorf("%q: %w", host, err)
		}
	}
	return nil
}

func checkHost(host string) error {
	const longest = 253 // RFC 1035
	bad := strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`/:@[]?#%"'<>\*,`, r)
	})
	if hostName(host) == "" || len(host) > longest || bad {
		return errors.New("give the name of a host, without scheme, port and path")
	}
	return nil
}
