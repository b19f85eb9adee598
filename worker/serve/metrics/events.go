package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/measure/waitevent"
)

// Waits has the figures of wait events at a time.
type Waits struct {
	Report waitevent.Report
	// Since is when the figures started from zero. If it changes, all figures have started from zero again.
	Since time.Time
}

// event is a wait event: the labels of a series.
type event struct{ class, name string }

// total has the figures of a wait event or of a type.
type total struct {
	// time includes the waits in progress. The other figures count only waits that have ended, because a histogram
	// cannot move a wait to another bucket later.
	time    time.Duration
	calls   uint64
	ended   time.Duration
	buckets [waits.Buckets]uint64
}

// totalOf returns the figures of a row. The parameter open has the waits of this row that are still in progress; nil: none.
func totalOf(row *waitevent.Row, open *waits.Event) total {
	t := total{time: row.Total, calls: row.Calls, ended: row.Total, buckets: row.Buckets}
	if open == nil {
		return t
	}
	t.calls -= open.Calls
	t.ended -= open.Total
	for i, n := range open.Buckets {
		t.buckets[i] -= n
	}
	return t
}

func (t *total) add(o *total) {
	t.calls += o.calls
	t.time += o.time
	t.ended += o.ended
	for i, n := range o.buckets {
		t.buckets[i] += n
	}
}

// growth returns by how much each figure is higher than in the parameter before, which has the figures of an earlier time. If a
// figure is lower, it was reset in between, and its growth is not known. growth then returns 0 for this figure.
func (t *total) growth(before *total) (g total) {
	if t.calls > before.calls {
		g.calls = t.calls - before.calls
	}
	if t.time > before.time {
		g.time = t.time - before.time
	}
	if t.ended > before.ended {
		g.ended = t.ended - before.ended
	}
	for i, n := range t.buckets {
		if n > before.buckets[i] {
			g.buckets[i] = n - before.buckets[i]
		}
	}
	return g
}

// events adds up the growth of the figures of wait events while the worker runs. So resets of the figures and restarts of the
// server do not lower the counters.
type events struct {
	read func() (Waits, bool)

	mu       sync.Mutex
	since    time.Time
	last     map[uint32]total // the figures at the last call of update, by the event's number
	lastLost uint64
	names    admitted[event]
	totals   map[event]*total
	types    map[string]*total
	lost     uint64 // waits and processes that are missing in the figures
	method   waits.Method
	counts   bool // the method counts waits, so there are numbers and histograms
	timed    bool // wait events are timed now
}

func newEvents(read func() (Waits, bool)) *events {
	return &events{
		read: read, last: map[uint32]total{}, totals: map[event]*total{}, types: map[string]*total{},
		names: admitted[event]{most: maxEvents - maxTypes + 1}, // no event has the type CPU
	}
}

// update reads the figures and adds their growth since the last call to the counters. If wait events are not timed now, it does
// nothing.
func (e *events) update() {
	read, ok := e.read()
	if e.timed = ok; !ok {
		return
	}
	if !read.Since.Equal(e.since) {
		e.since, e.lastLost = read.Since, 0
		clear(e.last)
	}
	e.method, e.counts = read.Report.Info.Method, read.Report.Info.Counts
	open := make(map[uint32]*waits.Event)
	for i := range read.Report.InProgress {
		open[read.Report.InProgress[i].ID] = &read.Report.InProgress[i]
	}
	for i := range read.Report.Rows {
		row := &read.Report.Rows[i]
		now := totalOf(row, open[row.ID])
		before := e.last[row.ID]
		grown := now.growth(&before)
		e.last[row.ID] = now
		name := event{row.Type, row.Name}
		if !e.names.admit(name) {
			name.name = other
		}
		at(e.totals, name).add(&grown)
		at(e.types, row.Type).add(&grown)
	}
	l := read.Report.Lost
	lost := l.Processes + l.Overflow + l.Missed + l.Outside
	if lost > e.lastLost {
		e.lost += lost - e.lastLost
	}
	e.lastLost = lost
}

func at[K comparable](m map[K]*total, key K) *total {
	t := m[key]
	if t == nil {
		t = &total{}
		m[key] = t
	}
	return t
}

// Describe sends nothing, because the metrics depend on the method by which waits are timed.
func (e *events) Describe(chan<- *prometheus.Desc) {}

// Collect reads the figures and sends them.
func (e *events) Collect(out chan<- prometheus.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.update()
	if !e.timed {
		return
	}
	out <- gauge(waitInfo, 1, string(e.method))
	out <- counter(waitLost, float64(e.lost))
	for name, t := range e.totals {
		out <- counter(waitSeconds, t.time.Seconds(), name.class, name.name)
		if e.counts {
			out <- counter(waitCount, float64(t.calls), name.class, name.name)
		}
	}
	if !e.counts {
		return
	}
	for class, t := range e.types {
		out <- histogram{desc: waitDuration, total: *t, labels: []string{class}, classic: true}
	}
}

// native sends the histograms of single wait events. Only scrapers that accept native histograms get them. The figures are those
// that events.Collect has read in the same scrape.
type native struct{ *events }

// Collect sends the histograms.
func (n native) Collect(out chan<- prometheus.Metric) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.timed || !n.counts {
		return
	}
	for name, t := range n.totals {
		out <- histogram{desc: eventDuration, total: *t, labels: []string{name.class, name.name}}
	}
}

// histogram is a native histogram of the durations of waits. If classic is set, it has classic buckets too.
type histogram struct {
	total

	desc    *prometheus.Desc
	labels  []string
	classic bool
}

// Desc returns the description.
func (h histogram) Desc() *prometheus.Desc { return h.desc }

// classicBuckets are the numbers of the buckets whose upper limits are also limits in a classic histogram: about 0.13 ms,
// 0.5 ms, 1 ms, 4 ms, 17 ms, 0.13 s, 1.1 s, 4.3 s, 17 s and 137 s.
var classicBuckets = []int{7, 9, 10, 12, 14, 17, 20, 22, 24, 27}

// secondBucket is the number of the bucket whose upper limit is 2^30 ns, which is taken as a second.
const secondBucket = 20

// Write writes the histogram. The limits of native buckets are a power of two multiplied by a second. The limits of the worker's
// buckets are a power of two multiplied by a nanosecond, about 7 percent higher. Write ignores this difference in native
// buckets.
func (h histogram) Write(out *dto.Metric) error {
	count := uint64(0)
	positive := make(map[int]int64)
	for i, n := range h.buckets {
		count += n
		if n > 0 {
			positive[i-secondBucket] = int64(n)
		}
	}
	made, err := prometheus.NewConstNativeHistogram(h.desc, count, h.ended.Seconds(), positive, nil, 0, 0, 0, time.Time{},
		h.labels...)
	if err != nil {
		return err
	}
	if err := made.Write(out); err != nil {
		return err
	}
	out.Histogram.CreatedTimestamp = nil
	if !h.classic {
		return nil
	}
	sum, next := uint64(0), 0
	for i, n := range h.buckets {
		sum += n
		if next < len(classicBuckets) && classicBuckets[next] == i {
			_, limit := waits.BucketLimits(i)
			below, upper := sum, limit.Seconds()
			out.Histogram.Bucket = append(out.Histogram.Bucket, &dto.Bucket{
				CumulativeCount: &below, UpperBound: &upper,
			})
			next++
		}
	}
	return nil
}

// admitted has the first keys that were passed to admit. The field most is the largest number of keys.
type admitted[K comparable] struct {
	most int
	keys map[K]bool
}

// admit reports whether a key is one of the first keys, each of which has its own series.
func (a *admitted[K]) admit(key K) bool {
	if a.keys[key] {
		return true
	}
	if len(a.keys) >= a.most {
		return false
	}
	if a.keys == nil {
		a.keys = make(map[K]bool)
	}
	a.keys[key] = true
	return true
}
