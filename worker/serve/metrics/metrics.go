package metrics

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config has the functions that read figures. Each scrape calls them. If a function is nil, its metrics are missing.
type Config struct {
	// Version is the version of pg_stat_backtrace.
	Version string
	// Server reads the states of the server's processes. It returns an error if they cannot be read.
	Server func() (Server, error)
	// Waits reads the figures of wait events; false: wait events are not timed now.
	Waits func() (Waits, bool)
	// Queue reads the length of the queue; false: the length is not known.
	Queue func() (Queue, bool)
	// Lost reads for how long the worker has had no sessions in the server.
	Lost func() Lost
	// History reads how many sweeps the recorder has written and lost; false: nothing is recorded.
	History func() (History, bool)
	// Export reads the figures of the export.
	Export func() []Export
}

// Metrics counts the worker's captures, requests, profiles and so on. All methods may be called at the same time. On a nil
// Metrics, the counting methods do nothing.
type Metrics struct {
	text, protobuf prometheus.Gatherer

	captures  *prometheus.CounterVec
	pause     prometheus.Histogram
	requests  *prometheus.CounterVec
	failures  *prometheus.CounterVec
	states    *stateNamesSeen
	profiles  *prometheus.CounterVec
	unmade    prometheus.Counter
	profiling prometheus.Gauge
	http      *prometheus.CounterVec
	refused   prometheus.Counter
}

// pauseBuckets are the upper limits of the classic buckets of pauses, in seconds.
var pauseBuckets = []float64{10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 1e-3, 10e-3, 100e-3}

// bucketFactor and maxBuckets are for the native histogram of pauses: each bucket is a tenth wider than the bucket before it.
const (
	bucketFactor = 1.1
	maxBuckets   = 100
)

// New returns Metrics whose counters are zero.
func New(cfg Config) *Metrics {
	m := &Metrics{states: &stateNamesSeen{}}
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	m.captures = vector("captures_total", "Captured stacks, by engine.", labelEngine)
	m.requests = vector("requests_total", "Requests from SQL: waiting or queued.", labelCall)
	m.failures = vector("failures_total", "Failed requests and captures, by SQLSTATE.", labelState)
	m.profiles = vector("profiles_total", "Finished profiles, by mode.", labelMode)
	m.http = vector("http_requests_total", "Answers of the listener, by outcome.", labelOutcome)
	m.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: prefix + "http_connections_refused_total", Help: "Connections that the listener closed for lack of room.",
	})
	m.unmade = prometheus.NewCounter(prometheus.CounterOpts{
		Name: prefix + "profile_failures_total", Help: "Profiles that failed.",
	})
	m.profiling = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "profiles_running", Help: "Profiles that run now.",
	})
	m.pause = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: prefix + "pause_seconds", Help: "How long a capture stopped its process.", Buckets: pauseBuckets,
		NativeHistogramBucketFactor: bucketFactor, NativeHistogramMaxBucketNumber: maxBuckets,
	})
	base, extra := prometheus.NewPedanticRegistry(), prometheus.NewPedanticRegistry()
	base.MustRegister(m.captures, m.pause, m.requests, m.failures, m.profiles, m.http, m.refused, m.unmade, m.profiling,
		&own{cfg: &cfg, start: time.Now()})
	if cfg.Server != nil {
		base.MustRegister(newActivities(cfg.Server))
	}
	m.text, m.protobuf = base, base
	if cfg.Waits != nil {
		e := newEvents(cfg.Waits)
		base.MustRegister(e)
		extra.MustRegister(native{e})
		m.protobuf = prometheus.Gatherers{base, extra} // base comes first: it reads the figures that extra then sends
	}
	return m
}

// Handler returns a handler of scrapes. Scrapers that accept protocol buffers also get the native histograms of single
// events.
func (m *Metrics) Handler() http.Handler {
	options := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true}
	text, protobuf := promhttp.HandlerFor(m.text, options), promhttp.HandlerFor(m.protobuf, options)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "application/vnd.google.protobuf") {
			protobuf.ServeHTTP(w, r)
			return
		}
		text.ServeHTTP(w, r)
	})
}

// Captured counts a captured stack. pause is the time for which the capture stopped the process; 0: the process was not stopped.
func (m *Metrics) Captured(engine string, pause time.Duration) {
	if m == nil {
		return
	}
	m.captures.WithLabelValues(engine).Inc()
	if pause > 0 {
		m.pause.Observe(pause.Seconds())
	}
}

// Kinds of requests, for Requested. The caller of a waiting request waits for the answer. A queued request is in the queue, and
// its caller does not wait.
const (
	Waiting = "waiting"
	Queued  = "queued"
)

// Requested counts a request from SQL.
func (m *Metrics) Requested(kind string) {
	if m != nil {
		m.requests.WithLabelValues(kind).Inc()
	}
}

// Failed counts a failed request or capture.
func (m *Metrics) Failed(sqlState string) {
	if m != nil {
		m.failures.WithLabelValues(m.states.name(sqlState)).Inc()
	}
}

// Profiling counts a profile that starts. When the profile ends, the caller passes its error, or nil, to done.
func (m *Metrics) Profiling(mode string) (done func(error)) {
	if m == nil {
		return func(error) {}
	}
	m.profiling.Inc()
	return func(err error) {
		m.profiling.Dec()
		if err != nil {
			m.unmade.Inc()
			return
		}
		m.profiles.WithLabelValues(mode).Inc()
	}
}

// Refused counts a connection that the listener closed for lack of room.
func (m *Metrics) Refused() {
	if m != nil {
		m.refused.Inc()
	}
}

// Answered counts an answer of the listener. status is its HTTP status.
func (m *Metrics) Answered(status int) {
	if m == nil {
		return
	}
	outcome := "ok"
	switch {
	case status == http.StatusTooManyRequests:
		outcome = "busy"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		outcome = "denied"
	case status >= http.StatusInternalServerError:
		outcome = "server_error"
	case status >= http.StatusBadRequest:
		outcome = "client_error"
	}
	m.http.WithLabelValues(outcome).Inc()
}
