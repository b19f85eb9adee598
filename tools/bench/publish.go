package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// The published figures are between these lines. publish replaces the text between them.
const (
	publishBegin = "<!-- figures: make bench -->"
	publishEnd   = "<!-- end of figures -->"
	chartName    = "pause.svg"
)

// publish writes the table and the chart into the output directory. If requested, it also writes the table into
// doc/internals/benchmarks.md and the chart beside it.
func (r *report) publish(o options) error {
	if !o.wants("captures") {
		return nil
	}
	r.finish()
	table, chart := r.markdown(), r.chart()
	if err := os.WriteFile(filepath.Join(o.Out, "table.md"), table, 0o644); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.Out, chartName), chart, 0o644); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if !o.Publish {
		return nil
	}
	if err := os.WriteFile(filepath.Join("doc", "internals", chartName), chart, 0o644); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	page, err := os.ReadFile("doc/internals/benchmarks.md")
	if err != nil {
		return fmt.Errorf("benchmarks: %w", err)
	}
	before, rest, ok1 := bytes.Cut(page, []byte(publishBegin+"\n"))
	_, after, ok2 := bytes.Cut(rest, []byte(publishEnd))
	if !ok1 || !ok2 {
		return fmt.Errorf("doc/internals/benchmarks.md has no %s … %s to put the table in", publishBegin, publishEnd)
	}
	text := fmt.Sprintf("%s%s\n%s%s%s", before, publishBegin, table, publishEnd, after)
	if err := os.WriteFile("doc/internals/benchmarks.md", []byte(text), 0o644); err != nil {
		return fmt.Errorf("benchmarks: %w", err)
	}
	return nil
}

// markdown returns the table for doc/internals/benchmarks.md.
func (r *report) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "![Pause of the target, by tool](%s)\n\n", chartName)
	fmt.Fprintf(&b, "PostgreSQL %s, Linux %s, %d × %s.\nMedians of %d rounds in which the tools took turns. The pause is "+
		"from the moment the tool knows of the stop\nto the end of the detach; the last column compares it with ours. "+
		"The whole call is one of many captures by a running program\n(C floor, pg_stat_backtrace, libunwind), "+
		"or a program from its start to its exit (the others).\n\n",
		r.PostgreSQL, r.Machine.Kernel, r.Machine.Processors, r.Machine.Processor, r.Rounds)
	b.WriteString("| target | tool | pause | 99 % | whole call | to ours |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, one := range r.Results {
		if one.Absent != "" {
			continue
		}
		pause, late := "", ""
		if one.Pause.P50 > 0 {
			pause, late = micros(one.Pause.P50), micros(one.Pause.P99)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", one.Target, one.Tool, pause, late, micros(one.Call.P50),
			one.Against["p50"])
	}
	b.WriteByte('\n')
	for _, s := range r.SQL {
		target := ""
		if s.Target != "" {
			target = ", " + s.Target
		}
		fmt.Fprintf(&b, "- `%s`%s: %s (99 %%: %s)\n", s.Statement, target, micros(s.US.P50), micros(s.US.P99))
	}
	for _, l := range r.Load {
		switch {
		case l.Absent != "":
		case l.Tool == loadNothing:
			fmt.Fprintf(&b, "- pgbench select-only with nothing beside it: %.1f %% slower (mean %.2f ± %.2f, %d spans)\n",
				l.Loss, l.Mean, l.Error, l.Spans)
		default:
			fmt.Fprintf(&b, "- pgbench select-only with all backends captured %.0f times a second each by %s: %.1f %% slower "+
				"(mean %.2f ± %.2f, %d spans)\n", l.Rate, l.Tool, l.Loss, l.Mean, l.Error, l.Spans)
		}
	}
	return b.Bytes()
}
