package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// noiseFloor is the length in microseconds from which a gap that no tool made counts as the machine's noise.
const noiseFloor = 10

// report contains all results; its JSON is the source of the figures in doc/internals/benchmarks.md.
type report struct {
	Date       time.Time      `json:"date"`
	Machine    machine        `json:"machine"`
	PostgreSQL string         `json:"postgresql"`
	Rounds     int            `json:"rounds"`
	Interval   string         `json:"interval"`
	Results    []*result      `json:"results"`
	Noise      noise          `json:"noise"`
	SQL        []sqlFigure    `json:"sql,omitempty"`
	Worker     *workerFigures `json:"worker,omitempty"`
	Load       []*loadFigure  `json:"load,omitempty"`
	Notes      []string       `json:"notes,omitempty"`

	noisePerSecond []int
	noiseLongest   []float64
}

// machine is where the figures are from.
type machine struct {
	Kernel     string `json:"kernel"`
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	Load       string `json:"load_before"` // of the last 1, 5 and 15 minutes
}

// noise is the gaps of the C loop while no tool is running.
type noise struct {
	PerSecond int     `json:"gaps_over_10us_per_second"` // median of the rounds
	Longest   summary `json:"longest_in_a_second_us"`
}

func newReport(o options, s *server) *report {
	r := &report{
		Date: time.Now().UTC().Truncate(time.Second), PostgreSQL: s.Version, Rounds: o.Rounds, Interval: o.Interval.String(),
		Machine: machine{
			Kernel: firstLine("/proc/sys/kernel/osrelease", ""), Processor: firstLine("/proc/cpuinfo", "model name"),
			Processors: runtime.NumCPU(), Load: firstLine("/proc/loadavg", ""),
		},
	}
	r.busy()
	return r
}

// busy records whether the machine had other work.
func (r *report) busy() {
	var load float64
	if _, err := fmt.Sscan(r.Machine.Load, &load); err == nil && load > float64(r.Machine.Processors)/4 {
		r.notef("the machine had other work before the run (load %.2f): repeat it on a quiet one", load)
	}
}

// firstLine is the first line of a file that starts with key, without the key and its colon.
func firstLine(file, key string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, key); found {
			return strings.Trim(rest, ": \t\n")
		}
	}
	return ""
}

func (r *report) notef(format string, arguments ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, arguments...))
}

// ours is our own result at a target.
func (r *report) ours(target string) *result {
	for _, one := range r.Results {
		if one.Target == target && one.Tool == ours {
			return one
		}
	}
	return &result{}
}

func (r *report) finish() {
	r.Noise = noise{PerSecond: percentile(r.noisePerSecond, 50), Longest: summarize(r.noiseLongest)}
	for _, one := range r.Results {
		mine := r.ours(one.Target)
		one.Against = map[string]string{
			"p50": ratio(one.Pause.P50, mine.Pause.P50), "p99": ratio(one.Pause.P99, mine.Pause.P99),
		}
	}
}

func (r *report) write(file string) error {
	r.finish()
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

func (r *report) print(w io.Writer) {
	r.finish()
	_, _ = fmt.Fprintf(w, "PostgreSQL %s, Linux %s, %d x %s, load before %s\n", r.PostgreSQL, r.Machine.Kernel,
		r.Machine.Processors, r.Machine.Processor, r.Machine.Load)
	_, _ = fmt.Fprintf(w, "%d rounds, %s between captures; p50 and p99 are medians over the rounds, "+
		"± is half the rounds' range\n", r.Rounds, r.Interval)
	target := ""
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, one := range r.Results {
		if one.Target != target {
			target = one.Target
			_ = table.Flush()
			_, _ = fmt.Fprintf(w, "\n%s, %d frames\n", target, r.ours(target).Depth)
			_, _ = fmt.Fprintln(table, "tool\tpause\t±\tp99\tto ours\twindow\tp99\tseen by target\tp99\tcall\tp99\t")
		}
		row(table, one)
	}
	_ = table.Flush()
	r.printRest(w)
}

func row(w io.Writer, r *result) {
	if r.Absent != "" {
		_, _ = fmt.Fprintf(w, "%s\t%s\t\t\t\t\t\t\t\t\t\t\n", r.Tool, r.Absent)
		return
	}
	pair := func(f *figure) string {
		if f == nil || f.P50 == 0 {
			return "\t"
		}
		return micros(f.P50) + "\t" + micros(f.P99)
	}
	pause := "\t\t\t"
	if r.Pause.P50 != 0 {
		spread := micros((r.Pause.High - r.Pause.Low) / 2)
		pause = fmt.Sprintf("%s\t%s\t%s\t%s", micros(r.Pause.P50), spread, micros(r.Pause.P99), r.Against["p50"])
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", r.Tool, pause, pair(r.Window), pair(r.Seen), pair(&r.Call))
}

func (r *report) printRest(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\nNoise: the C loop alone is stopped %d times a second for more than %d µs; "+
		"longest in a second %s (median)\n", r.Noise.PerSecond, noiseFloor, micros(r.Noise.Longest.P50))
	for _, one := range r.Results {
		if mine := r.ours(one.Target); one.Tool == floor {
			_, _ = fmt.Fprintf(w, "Our pause to the C floor's at the %s: %s, p99 %s\n", one.Target,
				ratio(mine.Pause.P50, one.Pause.P50), ratio(mine.Pause.P99, one.Pause.P99))
		}
	}
	for _, one := range r.Results {
		if one.Tool == ours && len(one.Parts) > 0 {
			_, _ = fmt.Fprintf(w, "Of our call at the %s: unwinding %s, names %s, the server's own words %s\n", one.Target,
				micros(one.Parts["unwind"].P50), micros(one.Parts["symbolize"].P50), micros(one.Parts["context"].P50))
		}
	}
	for _, s := range r.SQL {
		_, _ = fmt.Fprintf(w, "%s %s: %s, p99 %s (%d calls)\n",
			s.Statement, s.Target, micros(s.US.P50), micros(s.US.P99), s.Count)
	}
	if r.Worker != nil {
		_, _ = fmt.Fprintf(w, "Worker: ready after %.0f ms; "+
			"%.0f MiB after its start, %.0f MiB after the calls, %.0f MiB at most\n",
			r.Worker.ReadyMS.P50, r.Worker.StartRSS, r.Worker.LoadedRSS, r.Worker.PeakRSS)
	}
	for _, l := range r.Load {
		if l.Absent != "" {
			_, _ = fmt.Fprintf(w, "pgbench beside %s: %s\n", l.Tool, l.Absent)
			continue
		}
		_, _ = fmt.Fprintf(w, "pgbench select-only beside %s, %.0f captures/s of each backend: %.0f tps, "+
			"%.2f %% lost (turns %.2f to %.2f; mean %.2f, standard error %.2f, %d spans)\n",
			l.Tool, l.Rate, l.TPS, l.Loss, l.Low, l.High, l.Mean, l.Error, l.Spans)
	}
	for _, n := range r.Notes {
		_, _ = fmt.Fprintln(w, "Note:", n)
	}
}
