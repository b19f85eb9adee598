package debuginfod

import (
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// The schemes of URLs.
const (
	plain  = "http"
	secure = "https"
)

const (
	// maxFailures is how many failures in a row make a server be left alone.
	maxFailures = 3
	// minPause is for how long at first; each further failure doubles it up to maxPause.
	minPause = time.Minute
	maxPause = 15 * time.Minute
)

// server is one server and the breaker that guards it.
type server struct {
	url *url.URL
	// inside is set if the server was found at an address of this host or of a private network.
	inside atomic.Bool

	mu       sync.Mutex
	failures int       // in a row
	until    time.Time // not to be asked before
	trying   bool      // one request finds out whether it is back
}

// newServers checks the URLs.
func newServers(urls []string) ([]*server, error) {
	servers := make([]*server, 0, len(urls))
	for _, s := range urls {
		u, err := url.Parse(s)
		switch {
		case err != nil:
			return nil, fmt.Errorf("debuginfod server: %w", err)
		case u.Scheme != plain && u.Scheme != secure || u.Host == "":
			return nil, fmt.Errorf("debuginfod server: %q is not an http or https URL", u.Redacted())
		case u.RawQuery != "" || u.Fragment != "":
			return nil, fmt.Errorf("debuginfod server: %q has more than scheme, host and path", u.Redacted())
		}
		servers = append(servers, &server{url: u})
	}
	return servers, nil
}

// name is the URL without a password.
func (s *server) name() string { return s.url.Redacted() }

// allow reports whether the server may be asked now; if so, ok or failed must follow. After a pause one request is let
// through to find out whether the server is back.
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

// ok says that the server has answered.
func (s *server) ok() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures, s.trying = 0, false
}

// undecided says that the request ended without telling anything about the server.
func (s *server) undecided() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trying = false
}

// failed says that the server has failed, and returns for how long it is left alone, if it is. A server that was slow
// has kept others waiting for a long time already, so it is left alone at once.
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
