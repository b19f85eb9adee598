package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Handler returns the handler of all requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.index)
	mux.HandleFunc("/debug/pprof/{$}", s.index)
	mux.HandleFunc("/debug/pprof/profile", s.profile)
	if s.cfg.Metrics != nil {
		mux.Handle("/metrics", s.cfg.Metrics)
	}
	if s.cfg.Screen != nil {
		mux.HandleFunc(screenData, s.screen)
		mux.HandleFunc(screenEvents, s.events)
		mux.HandleFunc(screenServers, s.servers)
		mux.HandleFunc(screenOther, s.other)
	}
	inner := s.protected(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := connOf(r.Context()); n != nil {
			n.arrived()
		}
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			if s.cfg.OnAnswer != nil {
				s.cfg.OnAnswer(answer.status)
			}
		}()
		switch {
		case s.isAction(r.URL.Path):
			s.act(answer, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			failf(answer, http.StatusMethodNotAllowed, "only GET and HEAD are allowed")
		case r.ContentLength != 0:
			h.Set("Connection", "close")
			failf(answer, http.StatusBadRequest, "the request must have no body")
		case r.URL.Path == "/healthz":
			s.health(answer, r, false)
		case r.URL.Path == "/readyz":
			s.health(answer, r, true)
		case s.cfg.Screen != nil && strings.HasPrefix(r.URL.Path, screenFiles) && !isData(r.URL.Path):
			if refusal := s.refuseSite(r); refusal != nil {
				failf(answer, refusal.status, "%s", refusal.text)
				return
			}
			s.cfg.Screen.Files.ServeHTTP(answer, r)
		default:
			inner.ServeHTTP(answer, r)
		}
	})
}

// statusWriter stores the status of an answer.
type statusWriter struct {
	http.ResponseWriter

	status int
}

// WriteHeader sends the status.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the underlying writer, which http.ResponseController needs.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// failf answers with an error.
func failf(w http.ResponseWriter, status int, format string, args ...any) {
	http.Error(w, fmt.Sprintf(format, args...), status)
}

// health answers whether the worker serves or, if ready is set, whether everything works. The request needs no token, so that an
// orchestrator can send it. The answer says what does not work only if the request is permitted (see refuse).
func (s *Server) health(w http.ResponseWriter, r *http.Request, ready bool) {
	var h Health
	if s.cfg.Health != nil {
		h = s.cfg.Health()
	}
	status, text := http.StatusOK, "ok\n"
	switch {
	case h.Failure != "":
		status, text = http.StatusServiceUnavailable, "the worker does not serve\n"
	case ready && len(h.Missing) > 0:
		status, text = http.StatusServiceUnavailable, "not ready\n"
	}
	if refusal := s.refuse(r); refusal == nil {
		for _, line := range append([]string{h.Failure}, h.Missing...) {
			if line != "" {
				text += line + "\n"
			}
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// protected refuses requests without permission, and limits the number of requests that are answered at a time.
func (s *Server) protected(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := s.refuse(r); refusal != nil {
			if refusal.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="pg_stat_backtrace"`)
			}
			failf(w, refusal.status, "%s", refusal.text)
			return
		}
		// The HTTP server reads ahead to notice a client that has disconnected. If this read passed its deadline, the context
		// of the connection would end, for this request and for all later requests.
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			failf(w, http.StatusInternalServerError, "the connection has no deadlines")
			return
		}
		if isEvents(r.URL.Path) { // the type streams limits their number
			next.ServeHTTP(w, r)
			return
		}
		turn, most := s.requests, s.limits.Wait
		if strings.HasSuffix(r.URL.Path, "/profile") {
			turn, most = s.profiles, 0
		}
		switch {
		case r.URL.Path == screenData:
			turn = s.screens
		case strings.HasPrefix(r.URL.Path, screenOther):
			turn = s.forwards
		}
		n := connOf(r.Context())
		give, ok := takeTurn(r.Context(), turn, n.from(), most)
		if !ok {
			w.Header().Set("Retry-After", "1")
			failf(w, http.StatusTooManyRequests, "too many requests at a time")
			return
		}
		defer give()
		if n != nil {
			n.work()
			defer n.rest()
		}
		next.ServeHTTP(w, r)
	})
}

// The paths of the incident screen.
const (
	screenFiles  = "/screen/"
	screenData   = "/screen/data"
	screenEvents = "/screen/events"
)

// isData reports whether a path below /screen/ has data of a server. The others are the files of the page.
func isData(path string) bool {
	return path == screenData || path == screenEvents || path == screenServers || strings.HasPrefix(path, screenOther)
}

// screen answers with data of the incident screen. The data has names and texts only for an operator token.
func (s *Server) screen(w http.ResponseWriter, r *http.Request) {
	if s.isOperator(r) {
		s.cfg.Screen.Operator.ServeHTTP(w, r)
		return
	}
	s.cfg.Screen.View.ServeHTTP(w, r)
}

// take takes a place in the channel places. It waits for a free place, and returns false if none is free within the time most,
// or if ctx ends.
func take(ctx context.Context, places chan struct{}, most time.Duration) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
	}
	if most <= 0 {
		return false
	}
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case places <- struct{}{}:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// profile answers with a profile.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "application/octet-stream")
		return
	}
	request, query, err := parseProfile(r.URL.RawQuery)
	if err != nil {
		failf(w, http.StatusBadRequest, "%v", err)
		return
	}
	format := cmp.Or(query.Get("format"), formatPprof)
	if contentTypes[format] == "" || format != formatPprof && s.cfg.Render == nil {
		failf(w, http.StatusBadRequest, "format must be pprof, html, text, json, folded or speedscope")
		return
	}
	if s.cfg.Collect == nil {
		failf(w, http.StatusNotImplemented, "%v", ErrUnavailable)
		return
	}
	end := time.Now().Add(request.Duration + collectGrace + s.limits.Write)
	if err := http.NewResponseController(w).SetWriteDeadline(end); err != nil {
		failf(w, http.StatusInternalServerError, "the connection has no deadlines")
		return
	}
	data, err := s.flights.get(r.Context(), request, format)
	var busy busyError
	switch {
	case err == nil:
	case errors.As(err, &busy):
		seconds := int64((busy.after + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
		failf(w, http.StatusTooManyRequests, "another profile is running; retry in %d s", seconds)
		return
	case errors.Is(err, ErrNoProcess):
		failf(w, http.StatusNotFound, "%v", err)
		return
	case errors.Is(err, ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		failf(w, http.StatusServiceUnavailable, "%v", err)
		return
	default:
		failf(w, http.StatusInternalServerError, "%v", err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", contentTypes[format])
	switch format {
	case formatPprof:
		h.Set("Content-Disposition", `attachment; filename="profile.pb.gz"`)
	case "html":
		// The page itself has a stricter policy, with the hash of its script.
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	}
	h.Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data)
}

// index lists the pages.
func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = fmt.Fprintf(w, indexPage, html.EscapeString(s.cfg.Version))
}

const indexPage = `<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pg_stat_backtrace worker</title>
<style>
body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem; 
 color-scheme: light dark }
table { border-collapse: collapse } td, th { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0 }
code { font-family: ui-monospace, monospace }
</style>
<h1>pg_stat_backtrace worker</h1>
<p>Version %s</p>
<table>
<tr><th>page</th><th>content</th></tr>
<tr><td><a href="/screen/">/screen/</a></td><td>the incident screen: load, findings, blocked sessions</td></tr>
<tr><td><a href="/metrics">/metrics</a></td><td>metrics for Prometheus</td></tr>
<tr><td><a href="/debug/pprof/profile?seconds=10">/debug/pprof/profile</a></td>
<td>a profile of the server for <code>go tool pprof</code>, Parca, Alloy and Pyroscope</td></tr>
<tr><td><a href="/healthz">/healthz</a></td><td><code>ok</code> while the worker serves</td></tr>
<tr><td><a href="/readyz">/readyz</a></td><td><code>ok</code> while the worker has its sessions in the server</td></tr>
</table>
<h2>Parameters of a profile</h2>
<table>
<tr><td><code>seconds</code></td><td>duration, default 30, at most 300</td></tr>
<tr><td><code>mode</code></td><td><code>cpu</code> (default), <code>offcpu</code> or <code>wall</code></td></tr>
<tr><td><code>query_id</code></td><td>only this query, by its number in <code>pg_stat_statements</code></td></tr>
<tr><td><code>format</code></td><td><code>pprof</code> (default), <code>html</code> (a flame graph:
<a href="/debug/pprof/profile?seconds=10&amp;format=html">10 s now</a>), <code>text</code>, <code>json</code>,
<code>folded</code> or <code>speedscope</code></td></tr>
<tr><td><code>pid</code></td><td>only these processes, with commas between them</td></tr>
</table>
</html>
`
