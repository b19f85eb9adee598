package debuginfod

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// maxRedirects bounds the redirects of a request.
const maxRedirects = 5

// newHTTP makes the HTTP client. It uses no proxy from the environment, because a service must not depend on the
// variables of a login shell. It keeps no cookies and requests no compression, because the file is stored as it
// arrives. guard limits redirects to addresses that the server itself can reach, for each request.
func newHTTP(cfg Config, servers []*server) *http.Client {
	const maxHeader = 64 << 10
	dialer := net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second}
	named := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		MaxIdleConnsPerHost:    cfg.Parallel,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		ForceAttemptHTTP2:      true,
	}
	others := named.Clone()
	others.DialContext = newGuard(dialer, servers).dial
	others.DisableKeepAlives = true
	others.ForceAttemptHTTP2 = false // with HTTP/2, several requests could share a connection
	return &http.Client{Transport: &guarded{named: named, others: others}, CheckRedirect: checkRedirect}
}

var errRedirect = errors.New("redirect not followed")

// checkRedirect follows a limited number of redirects, to http and https only, and never from https to http.
func checkRedirect(next *http.Request, via []*http.Request) error {
	switch scheme := next.URL.Scheme; {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w: more than %d", errRedirect, maxRedirects)
	case scheme != plain && scheme != secure:
		return fmt.Errorf("%w: to %s", errRedirect, scheme)
	case scheme == plain && via[len(via)-1].URL.Scheme == secure:
		return fmt.Errorf("%w: from https to http", errRedirect)
	}
	if way := routeOf(next.Context()); way != nil {
		way.redirect()
	}
	return nil
}
