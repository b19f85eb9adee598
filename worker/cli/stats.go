package cli

import (
	"io"
	"math"
	"slices"
	"time"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

// stats collects the times of captures.
type stats struct {
	pause, held, unwind, symbolize, context, total []time.Duration
}

func (s *stats) add(t *backtrace.Trace) {
	s.pause = append(s.pause, t.Pause)
	s.held = append(s.held, t.Held)
	s.unwind = append(s.unwind, t.Unwind)
	s.symbolize = append(s.symbolize, t.Symbolize)
	s.context = append(s.context, t.Context)
	s.total = append(s.total, t.Total)
}

func (s *stats) count() int { return len(s.total) }

// quantiles are quantiles of times, in µs.
type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// statsDocument has the times of the steps of captures.
type statsDocument struct {
	// Count is the number of captures.
	Count int `json:"count"`
	// Pause is the time for which the target was stopped.
	Pause quantiles `json:"pause_us"`
	// Held is the time for which the capture was attached to the target process.
	Held      quantiles `json:"held_us"`
	Unwind    quantiles `json:"unwind_us"`
	Symbolize quantiles `json:"symbolize_us"`
	// Context is the time for reading PostgreSQL's own levels, such as the lines of PL/pgSQL functions.
	Context quantiles `json:"context_us"`
	Total   quantiles `json:"total_us"`
}

// print writes one line of JSON.
func (s *stats) print(w io.Writer) error {
	return render.JSONEncoder(w).Encode(statsDocument{
		s.count(), newQuantiles(s.pause), newQuantiles(s.held), newQuantiles(s.unwind), newQuantiles(s.symbolize),
		newQuantiles(s.context), newQuantiles(s.total),
	})
}

// newQuantiles returns the quantiles of d, which must not be empty. It sorts d in place.
func newQuantiles(d []time.Duration) quantiles {
	slices.Sort(d)
	at := func(q float64) float64 {
		i := max(int(math.Ceil(q*float64(len(d))))-1, 0)
		return float64(d[i].Nanoseconds()) / 1e3
	}
	return quantiles{P50: at(0.5), P99: at(0.99), Max: at(1)}
}
