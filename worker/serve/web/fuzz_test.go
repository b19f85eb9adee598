package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// FuzzProfileRequest: parameters that are accepted are within the limits, and equal after another round.
func FuzzProfileRequest(f *testing.F) {
	f.Add("seconds=30&mode=wall&query_id=-5&pid=1,2&pid=3")
	f.Add("seconds=1e-300&query_id=18446744073709551615")
	f.Add("seconds=Inf&mode=CPU&pid=,")
	f.Add("seconds=1;mode=wall&pid=%")
	f.Fuzz(func(t *testing.T, query string) {
		r, _, err := parseProfile(query)
		if err == nil && (r.Duration <= 0 || r.Duration.Seconds() > maxSeconds || len(r.PIDs) > maxPIDs || r.key() == "") {
			t.Errorf("%q: %+v", query, r)
		}
	})
}

// FuzzHost: a name is one of this host only if it is localhost or a loopback address.
func FuzzHost(f *testing.F) {
	for _, host := range []string{"127.0.0.1:1", "[::1]:1", "localhost", "localhost.example", "127.0.0.1.example", ""} {
		f.Add(host)
	}
	s := New(Config{Address: Address{Network: "tcp", Host: "127.0.0.1"}})
	f.Fuzz(func(t *testing.T, host string) {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if (w.Code == 403) == s.ownHost(host) {
			t.Errorf("%q: %d", host, w.Code)
		}
	})
}
