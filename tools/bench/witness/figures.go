package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// tally counts the results of the captures of one process, or of all processes of a kind.
type tally struct {
	processes int
	pauses    []time.Duration // of captures by a stop
	engines   map[string]int  // captures
	walked    int
	whole     int            // of them
	cuts      map[string]int // the others, by reason
	failures  map[string]int
	missed    map[string]int // failed observations without a stop, by reason
	late      int            // captures left out because there was no time
	lived     time.Duration
}

func (t *tally) captured(engine string, pause time.Duration) {
	count(&t.engines, engine, 1)
	if pause > 0 {
		t.pauses = append(t.pauses, pause)
	}
}

func (t *tally) failed(reason string) { count(&t.failures, reason, 1) }
func (t *tally) cut(reason string)    { count(&t.cuts, reason, 1) }
func (t *tally) unseen(reason string) { count(&t.missed, reason, 1) }

func count(in *map[string]int, key string, n int) {
	if *in == nil {
		*in = map[string]int{}
	}
	(*in)[key] += n
}

func (t *tally) captures() (n int) {
	for _, m := range t.engines {
		n += m
	}
	return n
}

func (t *tally) add(o *tally) {
	t.processes += max(o.processes, 1)
	t.pauses = append(t.pauses, o.pauses...)
	for _, m := range []struct{ to, from *map[string]int }{
		{&t.engines, &o.engines}, {&t.cuts, &o.cuts}, {&t.failures, &o.failures},
		{&t.missed, &o.missed},
	} {
		for key, n := range *m.from {
			count(m.to, key, n)
		}
	}
	t.walked, t.whole, t.late, t.lived = t.walked+o.walked, t.whole+o.whole, t.late+o.late, t.lived+o.lived
}

// figures are the figures of all processes.
type figures struct {
	began time.Time
	took  time.Duration

	mu    sync.Mutex
	kinds map[string]*tally
	left  []string // threads left stopped or traced
}

func newFigures() figures { return figures{kinds: map[string]*tally{}} }

// add takes the figures of a process that is no longer captured.
func (f *figures) add(kind string, t *tally, left []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind == "" {
		kind = "starting"
	}
	if f.kinds[kind] == nil {
		f.kinds[kind] = &tally{}
	}
	f.kinds[kind].add(t)
	f.left = append(f.left, left...)
}

// print prints a table. It returns false if a result is wrong.
func (f *figures) print(out io.Writer, o options) (ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all tally
	fmt.Fprintf(out, "%-29s %9s %9s %9s %8s %8s %8s %8s\n",
		"kind", "processes", "captures", "each /s", "p50 µs", "p99 µs", "max µs", "failures")
	for _, kind := range slices.Sorted(maps.Keys(f.kinds)) {
		f.kinds[kind].line(out, kind)
		all.add(f.kinds[kind])
	}
	all.line(out, "all")
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(out,
		"in %.0f s, %.0f captures/s, asked for %d/s of each process, %d left out for want of time; load %.14s\n",
		f.took.Seconds(), float64(all.captures())/f.took.Seconds(), o.Rate, all.late, load)
	for _, engine := range slices.Sorted(maps.Keys(all.engines)) {
		fmt.Fprintf(out, "engine %s: %d\n", engine, all.engines[engine])
	}
	fmt.Fprintf(out, "walked and named: %d, to the stack's end: %d\n", all.walked, all.whole)
	list(out, "not to its end", all.cuts)
	list(out, "not seen", all.missed)
	list(out, "failure", all.failures)
	fmt.Fprintf(out, "left stopped or traced: %d\n", len(f.left))
	for _, thread := range f.left {
		fmt.Fprintln(out, "   ", thread)
	}
	return len(all.failures) == 0 && len(f.left) == 0 && all.captures() > 0
}

func list(out io.Writer, what string, counts map[string]int) {
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(out, "    %s: %s: %d\n", what, key, counts[key])
	}
}

func (t *tally) line(out io.Writer, kind string) {
	failures := 0
	for _, n := range t.failures {
		failures += n
	}
	slices.Sort(t.pauses)
	micros := func(share float64) float64 {
		if len(t.pauses) == 0 {
			return 0
		}
		return float64(t.pauses[int(share*float64(len(t.pauses)-1))].Nanoseconds()) / 1000
	}
	fmt.Fprintf(out, "%-29s %9d %9d %9.0f %8.1f %8.1f %8.1f %8d\n", kind, t.processes, t.captures(),
		float64(t.captures())/max(t.lived.Seconds(), 1e-9), micros(0.5), micros(0.99), micros(1), failures)
}
