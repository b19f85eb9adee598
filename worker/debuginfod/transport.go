package debuginfod

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// maxRedirects bounds how often a request is sent elsewhere.
const maxRedirects = 5

// newHTTP makes the HTTP client. It takes no proxy from the environment (a service should not send its requests where
// some login shell's variables point), keeps no cookies, and asks for no compression: what arrives is what is kept.
// Redirects lead to no address inside that the server could not reach (see guard).
func newHTTP(cfg Config, servers []*server) *http.Client {
	const maxHeader = 64 << 10
	dialer := net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            newGuard(dialer, servers).dial,
			TLSHandshakeTimeout:    cfg.ConnectTimeout,
			MaxIdleConnsPerHost:    cfg.Parallel,
			IdleConnTimeout:        time.Minute,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: checkRedirect,
	}
}

var errRedirect = errors.New("redirect not followed")

// checkRedirect follows some redirects, to http and https only, and never from https to http.
func checkRedirect(next *http.Request, via []*http.Request) error {
	switch scheme := next.URL.Scheme; {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w: more than %d", errRedirect, maxRedirects)
	case scheme != plain && scheme != secure:
		return fmt.Errorf("%w: to %s", errRedirect, scheme)
	case scheme == plain && via[len(via)-1].URL.Scheme == secure:
		return fmt.Errorf("%w: from https to http", errRedirect)
	}
	return nil
}
