package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/levels"
	"pg_stat_backtrace/worker/pg/state"
)

const mostSeries = 370

// protobuf is the format in which scrapers get native histograms.
const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"

// scrape returns the answer to a scrape.
func scrape(t *testing.T, m *Metrics, accept string) []byte {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.Bytes()
}

// series returns the samples of a scrape in text, by name and labels.
func series(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for line := range strings.Lines(string(scrape(t, m, "text/plain"))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(line[:at], prefix)
		if name == line[:at] {
			t.Errorf("the name of %s lacks the prefix", name)
		}
		found[name] = value
	}
	return found
}

// allEvents returns a row for each wait event of a version.
func allEvents(t *testing.T, version int) (rows []waitevent.Row) {
	t.Helper()
	names, err := levels.NewWaitNames(version)
	if err != nil {
		t.Fatal(err)
	}
	for class := range uint32(0x10) {
		for number := range uint32(300) {
			id := class<<24 | number
			if kind, name, known := names.Name(id); known {
				e := waits.Event{ID: id, Calls: 3, Total: time.Second, Longest: time.Second}
				e.Buckets[0], e.Buckets[20], e.Buckets[waits.Buckets-1] = 1, 1, 1
				rows = append(rows, waitevent.Row{Event: e, Type: kind, Name: name, Known: true})
			}
		}
	}
	if len(rows) < 200 {
		t.Fatalf("%d wait events", len(rows))
	}
	return rows
}

// everything returns metrics of a server in which every process does everything.
func everything(t *testing.T) *Metrics {
	rows := allEvents(t, 18)
	m := New(Config{
		Version: "1.2",
		Server: func() (Server, error) {
			s := Server{Running: true, Version: 18, MaxConnections: 100, OrdinarySlots: 87, WAL: &state.Positions{Recovery: true}}
			for _, kind := range []string{state.ClientBackend, state.ParallelWorker, "checkpointer", "walwriter"} {
				s.Processes = append(s.Processes, state.Process{BackendType: kind, State: state.Active})
				for i := range rows {
					s.Processes = append(s.Processes, state.Process{
						BackendType: kind, State: state.Active, WaitType: rows[i].Type, WaitEvent: rows[i].Name,
					})
				}
			}
			return s, nil
		},
		Waits: func() (Waits, bool) {
			info := waits.Info{Method: waits.Exact, Counts: true}
			return Waits{Report: waitevent.Report{Info: info, Rows: rows}}, true
		},
		Queue:   func() (Queue, bool) { return Queue{1, 2, time.Second}, true },
		Lost:    func() Lost { return Lost{Main: time.Minute, Queue: time.Hour} },
		History: func() (History, bool) { return History{Written: 5, Lost: 2, Failing: time.Second}, true },
		Export:  func() []Export { return []Export{{Type: "pyroscope"}, {Type: "otlp"}} },
	})
	for i := range 1000 {
		m.Failed(fmt.Sprintf("%05d", i))
	}
	for _, engine := range []string{"stop", "blocked", "running", "sampled"} {
		for exponent := range 40 {
			m.Captured(engine, time.Duration(1)<<exponent)
		}
	}
	for _, kind := range []string{Waiting, Queued} {
		m.Requested(kind)
	}
	for _, mode := range []string{"cpu", "offcpu", "wall"} {
		m.Profiling(mode)(nil)
	}
	m.Profiling("cpu")(errors.New("failed"))
	for _, status := range []int{200, 400, 401, 403, 404, 429, 500, 503} {
		m.Answered(status)
	}
	return m
}

// TestSeriesBounded: a server in which every wait event was seen has at most mostSeries series, and sums by type stay right.
func TestSeriesBounded(t *testing.T) {
	m := everything(t)
	for round := range 2 {
		found := series(t, m)
		if len(found) > mostSeries || len(found) < 250 {
			t.Errorf("round %d: %d series", round, len(found))
		}
		active, io, waited := 0.0, 0.0, 0.0
		for name, value := range found {
			switch {
			case strings.HasPrefix(name, "active_sessions{"):
				active += value
				if strings.Contains(name, `type="IO"`) {
					io += value
				}
			case strings.HasPrefix(name, "wait_seconds_total{"):
				waited += value
			}
		}
		events, ioEvents, inactive := 0, 0, 0
		for _, row := range allEvents(t, 18) {
			events++
			switch row.Type {
			case "IO":
				ioEvents++
			case "Activity":
				inactive++
			}
		}
		// The three types that are no client backends are not active in events of type Activity.
		if want := float64(4*(events+1) - 3*inactive); active != want || io != float64(4*ioEvents) {
			t.Errorf("%v active, %v in IO; want %v and %v", active, io, want, 4*ioEvents)
		}
		if waited != float64(events) {
			t.Errorf("%v s of waits, want %d", waited, events)
		}
		if n := found[`failures_total{sqlstate="other"}`]; n != 991 {
			t.Errorf("%v failures with another SQLSTATE", n)
		}
	}
}

// families reads a scrape in protocol buffers.
func families(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	found := map[string]*dto.MetricFamily{}
	for r := bytes.NewReader(scrape(t, m, protobuf)); ; {
		var f dto.MetricFamily
		err := protodelim.UnmarshalFrom(r, &f)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(f.GetName(), prefix)] = &f
	}
}

// TestNativeHistograms: a scraper that accepts protocol buffers gets a histogram for each event, with true buckets, and
// at most mostSeries series.
func TestNativeHistograms(t *testing.T) {
	found := families(t, everything(t))
	n := 0
	for _, f := range found {
		n += len(f.GetMetric())
	}
	if n > mostSeries {
		t.Errorf("%d series", n)
	}
	events := found["wait_event_duration_seconds"].GetMetric()
	if len(events) == 0 || len(events) > maxEvents {
		t.Fatalf("%d events", len(events))
	}
	for _, e := range events {
		h := e.GetHistogram()
		if h.GetSchema() != 0 || len(h.GetPositiveSpan()) == 0 || len(h.GetBucket()) > 0 {
			t.Fatalf("histogram %v", h)
		}
		// The first bucket is below 1024 ns, which counts as 2^-20 s.
		if first := h.GetPositiveSpan()[0].GetOffset(); first != -20 {
			t.Fatalf("first bucket %d", first)
		}
	}
	types := found["wait_duration_seconds"].GetMetric()
	if len(types) < 9 || len(types) > maxTypes-1 {
		t.Fatalf("%d types", len(types))
	}
	for _, e := range types {
		h := e.GetHistogram()
		limits := []float64{
			131.072e-6, 524.288e-6, 1.048576e-3, 4.194304e-3, 16.777216e-3, 134.217728e-3, 1.073741824, 4.294967296,
			17.179869184, 137.438953472,
		}
		if len(h.GetPositiveSpan()) == 0 || len(h.GetBucket()) != len(limits) {
			t.Fatalf("histogram %v", h)
		}
		for i, b := range h.GetBucket() {
			if b.GetUpperBound() != limits[i] {
				t.Errorf("limit %v, want %v", b.GetUpperBound(), limits[i])
			}
		}
		third := h.GetSampleCount() / 3
		if below, second := h.GetBucket()[0].GetCumulativeCount(), h.GetBucket()[6].GetCumulativeCount(); below != third ||
			second != 2*third {
			t.Errorf("of %d waits %d and %d are below 0.13 ms and 1.07 s", h.GetSampleCount(), below, second)
		}
	}
	h := found["pause_seconds"].GetMetric()[0].GetHistogram()
	if len(h.GetPositiveSpan()) == 0 || len(h.GetBucket()) == 0 {
		t.Errorf("pauses %v", h)
	}
}

// TestWaitCountersOnlyGrow: resets, restarts and another method do not make counters fall.
func TestWaitCountersOnlyGrow(t *testing.T) {
	began := time.Now()
	now := Waits{Since: began}
	timed := true
	set := func(calls uint64, total time.Duration, method waits.Method) {
		e := waits.Event{ID: 0x0a000001, Calls: calls, Total: total}
		e.Buckets[3] = calls
		now.Report = waitevent.Report{
			Info: waits.Info{Method: method, Counts: method != waits.Sampled},
			Rows: []waitevent.Row{{Event: e, Type: "IO", Name: "WALSync", Known: true}},
		}
	}
	m := New(Config{Waits: func() (Waits, bool) { return now, timed }})
	check := func(what string, calls, seconds float64) {
		t.Helper()
		got := series(t, m)
		if got[`waits_total{event="WALSync",type="IO"}`] != calls ||
			got[`wait_seconds_total{event="WALSync",type="IO"}`] != seconds {
			t.Errorf("%s: got %v", what, got)
		}
	}
	set(10, 20*time.Second, waits.Exact)
	check("at first", 10, 20)
	set(12, 25*time.Second, waits.Exact)
	check("two more", 12, 25)
	set(5, 10*time.Second, waits.Exact)
	check("a reset of one process", 12, 25)
	set(6, 11*time.Second, waits.Exact)
	check("one more", 13, 26)
	now.Since = began.Add(time.Minute)
	set(100, 200*time.Second, waits.Exact)
	check("a restart of the server", 113, 226)
	timed = false
	if _, found := series(t, m)[`waits_total{event="WALSync",type="IO"}`]; found {
		t.Error("waits are counted although they are not timed")
	}
	timed, now.Since = true, began.Add(time.Hour)
	set(0, time.Second, waits.Sampled)
	if got := series(t, m); got[`wait_seconds_total{event="WALSync",type="IO"}`] != 227 ||
		got[`wait_timing_info{method="sampled"}`] != 1 {
		t.Errorf("sampled: %v", got)
	} else if _, counted := got[`waits_total{event="WALSync",type="IO"}`]; counted {
		t.Error("the method sampled counts no waits")
	}
}

// TestWaitInProgressCountsOnce: a wait counts when it has ended, once, in the bucket of its whole duration. Its time
// counts before.
func TestWaitInProgressCountsOnce(t *testing.T) {
	var now Waits
	m := New(Config{Waits: func() (Waits, bool) { return now, true }})
	figures := func(took time.Duration) waits.Event {
		e := waits.Event{ID: 0x03000001, Calls: 1, Total: took}
		e.Buckets[waits.Bucket(took)] = 1
		return e
	}
	check := func(took time.Duration, ended bool) {
		t.Helper()
		e := figures(took)
		now.Report = waitevent.Report{
			Info: waits.Info{Method: waits.Exact, Counts: true},
			Rows: []waitevent.Row{{Event: e, Type: "Lock", Name: "transactionid", Known: true}},
		}
		var calls uint64
		if calls = 1; !ended {
			calls, now.Report.InProgress = 0, []waits.Event{e}
		}
		const labels = `{event="transactionid",type="Lock"}`
		got := series(t, m)
		if got["waits_total"+labels] != float64(calls) || got["wait_seconds_total"+labels] != took.Seconds() {
			t.Errorf("after %s: got %v", took, got)
		}
		h := families(t, m)["wait_event_duration_seconds"].GetMetric()[0].GetHistogram()
		if h.GetSampleCount() != calls || h.GetSampleSum() != float64(calls)*took.Seconds() {
			t.Errorf("after %s: histogram %v", took, h)
		}
	}
	for took := time.Millisecond; took < time.Minute; took *= 2 {
		check(took, false)
	}
	check(time.Minute, true)
}

// TestSessions: a series stays at 0 when no session belongs to it any more.
func TestSessions(t *testing.T) {
	var failure error
	ago := func(d time.Duration) *time.Time { at := time.Now().Add(-d); return &at }
	server := Server{Running: true, Version: 15, DataDir: "/srv/\"a\\b\n\xff", MaxConnections: 40, OrdinarySlots: 37}
	server.Processes = []state.Process{
		{
			BackendType: state.ClientBackend, State: state.Active, WaitType: "Lock", WaitEvent: "tuple",
			Transaction: ago(2 * time.Hour), LockWait: ago(time.Hour),
		},
		{BackendType: "autovacuum worker", Transaction: ago(9 * time.Hour), WaitType: "Lock", LockWait: ago(time.Minute)},
		{BackendType: state.ClientBackend, State: state.Active},
		{BackendType: state.ClientBackend, State: state.Idle, WaitType: "Client", WaitEvent: "ClientRead"},
		{BackendType: "checkpointer", WaitType: "Activity", WaitEvent: "CheckpointerMain"},
		{BackendType: "walsender"},
	}
	const info = `server_info{data_directory="/srv/\"a\\b\n�",version="15"}`
	m := New(Config{Server: func() (Server, error) { return server, failure }})
	for name, want := range map[string]float64{
		`active_sessions{backend_type="client backend",event="tuple",type="Lock"}`: 1,
		`active_sessions{backend_type="client backend",event="CPU",type="CPU"}`:    1,
		`active_sessions{backend_type="walsender",event="CPU",type="CPU"}`:         1,
		`sessions{state="active"}`: 2, `sessions{state="idle"}`: 1, `sessions{state="aborted"}`: 0,
		`server_up`: 1, `server_readable`: 1, info: 1, `connections`: 3, `max_connections`: 40, `max_ordinary_connections`: 37,
	} {
		if got, ok := series(t, m)[name]; !ok || got != want {
			t.Errorf("%s is %v (%t), want %v", name, got, ok, want)
		}
	}
	// Both ages grow until the scrape.
	now := series(t, m)
	if age := now["oldest_transaction_seconds"]; age < 2*3600 || age > 9*3600 {
		t.Errorf("the oldest transaction of a client backend is %v s old", age)
	}
	if wait := now["longest_lock_wait_seconds"]; wait < 3600 || wait > 2*3600 {
		t.Errorf("the longest wait for a lock took %v s", wait)
	}
	server.Processes = nil
	if now := series(t, m); now["oldest_transaction_seconds"] != 0 || now["longest_lock_wait_seconds"] != 0 {
		t.Errorf("without processes: %v", now)
	}
	got, ok := series(t, m)[`active_sessions{backend_type="client backend",event="tuple",type="Lock"}`]
	if !ok || got != 0 {
		t.Errorf("a series without sessions: %v, %t", got, ok)
	}
	failure = errors.New("operation not permitted")
	for _, server.Running = range []bool{true, false} {
		got, want := series(t, m), oneIf(server.Running)
		if up, found := got["server_up"]; !found || up != want {
			t.Errorf("a server that runs (%t) and cannot be read: server_up %v, %t", server.Running, up, found)
		}
		if got[info] != 1 {
			t.Errorf("a server that cannot be read has no %s: %v", info, got)
		}
		if readable, found := got["server_readable"]; !found || readable != 0 {
			t.Errorf("a server that cannot be read: server_readable %v, %t", readable, found)
		}
		for name := range got {
			if strings.HasPrefix(name, "active_sessions") || strings.HasPrefix(name, "sessions") {
				t.Errorf("a server that cannot be read has %s", name)
			}
		}
	}
}

func has(found map[string]float64, name string) bool { _, ok := found[name]; return ok }

// TestReplicationLag: the slowest receiver counts. The sent position counts for a receiver that has confirmed nothing. Only a
// standby has a lag of replay.
func TestReplicationLag(t *testing.T) {
	server := Server{Running: true, WAL: &state.Positions{End: 1000}}
	m := New(Config{Server: func() (Server, error) { return server, nil }})
	for _, c := range []struct {
		senders []state.Sender
		lag     float64
	}{
		{nil, 0},
		{[]state.Sender{{Sent: 1000, Flush: 900}, {Sent: 1000, Flush: 400}}, 600},
		{[]state.Sender{{Sent: 700}}, 300},
		{[]state.Sender{{}}, 0},
		{[]state.Sender{{Sent: 1100, Flush: 1100}}, 0}, // the end was read before
	} {
		server.WAL.Senders = c.senders
		got := series(t, m)
		if got["replication_lag_bytes"] != c.lag || got["wal_receivers"] != float64(len(c.senders)) || has(got, "replay_lag_bytes") {
			t.Errorf("%v: %v", c.senders, got)
		}
	}
	for replayed, lag := range map[uint64]float64{0: 0, 250: 750, 1000: 0, 1200: 0} {
		server.WAL = &state.Positions{Recovery: true, End: 1000, Replayed: replayed}
		if got := series(t, m); !has(got, "replay_lag_bytes") || got["replay_lag_bytes"] != lag {
			t.Errorf("replayed %d: %v", replayed, got)
		}
	}
	server.WAL = nil
	if got := series(t, m); has(got, "wal_receivers") || has(got, "replication_lag_bytes") || has(got, "replay_lag_bytes") {
		t.Errorf("without positions: %v", got)
	}
}

// TestDocumented: doc/metrics.md has every metric, and no other.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../doc/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "| `"+prefix); ok {
			name, _, _ = strings.Cut(name, "`")
			documented[name] = true
		}
	}
	found := families(t, everything(t))
	for name := range found {
		if !documented[name] {
			t.Errorf("%s is not documented", name)
		}
		delete(documented, name)
	}
	if len(documented) > 0 {
		t.Errorf("documented and absent: %v", documented)
	}
}

// TestPromtool: promtool has nothing to criticize.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool: install the package prometheus")
	}
	command := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	command.Stdin = bytes.NewReader(scrape(t, everything(t), "text/plain"))
	if out, err := command.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoMetrics: nothing is counted without metrics.
func TestNoMetrics(*testing.T) {
	var m *Metrics
	m.Captured("stop", time.Second)
	m.Requested(Waiting)
	m.Failed("42501")
	m.Profiling("cpu")(nil)
	m.Answered(http.StatusOK)
}
