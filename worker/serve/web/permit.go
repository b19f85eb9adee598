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

// refuse returns why a request is not permitted; nil: it is permitted. A valid token does not replace the checks of
// refuseSite: a browser that has stored the token sends it with the requests of every page.
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

// refuseSite returns why a browser must not send the request for its web page; nil: it may.
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

// ownHost reports whether the host that a request names is this listener. A web page can resolve its own name to the
// address of the listener (DNS rebinding), and then read the answers. But such a request names the host of the page. A
// page cannot make an IP address lead here.
func (s *Server) ownHost(hostPort string) bool {
	if hostPort == "" || s.cfg.Address.Network == unixNetwork {
		return true // every browser sends a host, and none connects to a Unix socket
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

// named reports whether a name is one of this listener: the host's own name, in Config.Hosts, or in the certificate.
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

// foreignSite reports whether a browser has sent a request for a page of another site, by the header Sec-Fetch-Site.
// Its value is none if a user has entered the address. Browsers send it only to this machine or by TLS, and old
// browsers never. Without it, the headers Origin and Referer name the page, if the request has them.
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
