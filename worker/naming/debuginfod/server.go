package debuginfod

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"
)

// The schemes of URLs.
const (
	plain  = "http"
	secure = "https"
)

const (
	// maxFailures is the number of failures in a row after which a server is paused.
	maxFailures = 3
	// minPause is the first pause. Each further failure doubles the pause, up to maxPause.
	minPause = time.Minute
	maxPause = 15 * time.Minute
)

// server is one server, with the state of its pause after failures.
type server struct {
	url     *url.URL
	reachOf func(netip.Addr) reach

	mu       sync.Mutex
	failures int       // number of failures in a row
	until    time.Time // end of the pause
	trying   bool      // one request tests whether the server works again
}

// newServers parses the URLs.
func newServers(urls []string) ([]*server, error) {
	servers := make([]*server, 0, len(urls))
	for i, s := range urls {
		u, err := url.Parse(s)
		switch {
		case strings.Contains(s, "@") && (err != nil || u.Host == ""):
			// The error of url.Parse, and u.Redacted, would quote the password.
			return nil, fmt.Errorf("debuginfod server: URL %d, which has a user name, is malformed", i+1)
		case err != nil:
			return nil, fmt.Errorf("debuginfod server: %w", err)
		case u.Scheme != plain && u.Scheme != secure || u.Host == "":
			return nil, fmt.Errorf("debuginfod server: %q is not an http or https URL", u.Redacted())
		case u.RawQuery != "" || u.Fragment != "":
			return nil, fmt.Errorf("debuginfod server: %q has more than scheme, host and path", u.Redacted())
		}
		servers = append(servers, &server{url: u, reachOf: reachOf})
	}
	return servers, nil
}

// name returns the URL without a password.
func (s *server) name() string { return s.url.Redacted() }

// allow reports whether the server may be asked now. If so, the caller must call ok, undecided or failed. After a
// pause, allow lets one request through to test the server.
func (s *server) allow(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures < maxFailures {
		return true
	}
	if now.Before(s.until) || s.trying {
		return false
	}
	s.trying = true
	return true
}

// ok records that the server has answered.
func (s *server) ok() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures, s.trying = 0, false
}

// undecided records that the request ended without showing whether the server works.
func (s *server) undecided() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trying = false
}

// failed records a failure of the server, and returns the pause if one begins. A slow server has already delayed
// other requests, so its pause begins at once.
func (s *server) failed(now time.Time, slow bool) (pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trying = false
	s.failures++
	if slow {
		s.failures = max(s.failures, maxFailures)
	}
	if s.failures < maxFailures {
		return 0
	}
	pause = maxPause
	if n := s.failures - maxFailures; n < 4 {
		pause = min(minPause<<n, maxPause)
	}
	s.until = now.Add(pause)
	return pause
}
