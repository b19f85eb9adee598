package historycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/report/table"
)

// keys returns the keys by which totals are grouped. Without --by, this is the wait event.
func (f *historyFlags) keys() []string {
	if len(f.by) == 0 {
		return []string{"wait"}
	}
	return f.by
}

// checkCompare validates --compare, and returns the begin of the other span, with which the chosen one is compared.
func (f *historyFlags) checkCompare(since, until, now time.Time) (time.Time, error) {
	if f.format != console.FormatText && f.format != console.FormatJSON && f.format != console.FormatCSV {
		return now, fmt.Errorf("--compare needs the format text, json or csv, not %s", f.format)
	}
	if slices.Contains(f.by, "pid") {
		return now, errors.New("--by pid and --compare exclude each other: two spans have different processes")
	}
	before, err := console.ParseWhen(f.compare, now)
	if err != nil {
		return now, fmt.Errorf("--compare: %w", err)
	}
	if before.Equal(since) {
		return now, errors.New("--compare is the same time as --since")
	}
	if end := before.Add(until.Sub(since)); end.After(now) {
		return now, fmt.Errorf("the span to compare with ends in the future, at %s; choose an earlier --compare or a shorter span",
			end.Format(time.RFC3339))
	}
	return before, nil
}

// Comparison is the JSON of --compare: how the numbers of sessions of two spans differ.
type Comparison struct {
	Cluster       string          `json:"cluster"`
	ServerVersion string          `json:"server_version"`
	Zone          string          `json:"time_zone"`
	Summary       store.Summary   `json:"summary"`
	Before        store.Summary   `json:"summary_before"`
	Changes       []historyChange `json:"changes"`

	own, ownBefore ownRows
}

// historyChange has the totals of the samples with the same keys in two spans. Averages are numbers of sessions.
type historyChange struct {
	Keys          map[string]string `json:"keys"`
	Average       float64           `json:"average_sessions"`
	AverageBefore float64           `json:"average_sessions_before"`
	// Change is Average minus AverageBefore.
	Change float64 `json:"change_sessions"`
	// Deprecated: read average_sessions.
	FormerAverage float64 `json:"average"`
	// Deprecated: read average_sessions_before.
	FormerBefore float64 `json:"average_before"`
	// Deprecated: read change_sessions.
	FormerChange  float64 `json:"change"`
	Seconds       float64 `json:"seconds"`
	SecondsBefore float64 `json:"seconds_before"`
	Samples       int     `json:"samples"`
	SamplesBefore int     `json:"samples_before"`

	texts []string // the keys as text, in the order of historyFlags.keys
}

// runCompare compares the totals of the span with the totals of another span of the same length, which begins at the
// time in the parameter before. It prints the differences.
func (f *historyFlags) runCompare(ctx context.Context, out, errOut io.Writer, since, until, before time.Time) error {
	r, id, err := f.reader()
	if err != nil {
		return err
	}
	meta, _ := r.Meta()
	p := f.printer(out, errOut, id, &meta)
	p.zone = since.Location()
	c := Comparison{Cluster: id, ServerVersion: meta.ServerVersion, Zone: p.zone.String()}
	if c.Summary, err = p.count(ctx, r, since, until); err != nil {
		return err
	}
	p.totals.Other()
	r.Damage, c.own, p.own = nil, p.own, ownRows{}
	if c.Before, err = p.count(ctx, r, before, before.Add(until.Sub(since))); err != nil {
		return err
	}
	c.ownBefore = p.own
	if err := p.stacksOfBoth(ctx, r, &c); err != nil {
		return err
	}
	p.compare(&c)
	return p.printComparison(&c)
}

// count adds a span to the totals. It returns an error if the span has no sweep.
func (p *historyPrinter) count(ctx context.Context, r *store.Reader, since, until time.Time) (store.Summary, error) {
	s, err := store.ReadSpan(ctx, r, since, until, func(w *store.SpanSweep, _ *store.Gap) error {
		p.own.begin(w)
		p.totals.Add(w)
		return nil
	})
	if err == nil {
		err = noSweeps(r, &s)
	}
	return s, err
}

// stacksOfBoth reads the frames of the stacks that either span has.
func (p *historyPrinter) stacksOfBoth(ctx context.Context, r *store.Reader, c *Comparison) error {
	at := slices.Index(p.f.keys(), stackKey)
	if at < 0 {
		return nil
	}
	list, _ := p.totals.List()
	p.stacks = map[string][]string{}
	for _, s := range []*store.Summary{&c.Summary, &c.Before} {
		found, err := store.StacksOf(ctx, r, s.Since, s.Until, list, at)
		if err != nil {
			return err
		}
		maps.Copy(p.stacks, found)
	}
	return nil
}

// compare sets c.Changes: the largest changes between the two spans, at most --limit of them.
func (p *historyPrinter) compare(c *Comparison) {
	list := p.totals.Changes(c.Summary.Seconds, c.Before.Seconds, p.keyText)
	if p.f.limit > 0 && len(list) > p.f.limit {
		list = list[:p.f.limit]
	}
	c.Changes = make([]historyChange, len(list))
	for i, t := range list {
		now, before := share(t.Seconds, c.Summary.Seconds), share(t.Before.Seconds, c.Before.Seconds)
		change := historyChange{
			Keys: map[string]string{}, Average: now, AverageBefore: before, Change: now - before, Seconds: t.Seconds,
			FormerAverage: now, FormerBefore: before, FormerChange: now - before,
			SecondsBefore: t.Before.Seconds, Samples: t.Samples, SamplesBefore: t.Before.Samples,
			texts: t.Keys,
		}
		for j, by := range p.f.keys() {
			change.Keys[by] = t.Keys[j]
		}
		c.Changes[i] = change
	}
}

func (p *historyPrinter) printComparison(c *Comparison) error {
	switch p.f.format {
	case console.FormatJSON:
		return p.json.Encode(c)
	case console.FormatCSV:
		err := p.csvComparison(c)
		p.problemsOfBoth(p.errOut, c)
		return err
	}
	p.begin(c.Summary.Since, c.Summary.Until)
	_, _ = fmt.Fprintf(p.out, "compared with %s to %s\n", c.Before.Since.Format(historyTime), c.Before.Until.Format(historyTime))
	w := p.keyTable(p.f.keys())
	w.Row(append([]string{"sessions", "before", "change"}, p.f.keys()...)...)
	for i := range c.Changes {
		h := &c.Changes[i]
		row := []string{fmt.Sprintf("%.2f", h.Average), fmt.Sprintf("%.2f", h.AverageBefore), fmt.Sprintf("%+.2f", h.Change)}
		for _, k := range h.texts {
			row = append(row, cutQuery(k, p.queryWidth()))
		}
		w.Row(row...)
	}
	left, err := w.Flush()
	if err == nil {
		err = table.NoRoom(p.out, left)
	}
	if err != nil {
		return err
	}
	p.problemsOfBoth(p.out, c)
	return nil
}

// problemsOfBoth prints, for each of both spans, how much of it was recorded, and its gaps.
func (p *historyPrinter) problemsOfBoth(out io.Writer, c *Comparison) {
	for _, s := range []*store.Summary{&c.Summary, &c.Before} {
		p.gaps(out, s)
	}
	p.problems(out, &c.Summary, &c.own)
	_, _ = fmt.Fprint(out, "before: ")
	p.problems(out, &c.Before, &c.ownBefore)
}

func (p *historyPrinter) csvComparison(c *Comparison) error {
	w := table.CSV(p.out)
	w.Row(append([]string{
		"average", "average_before", "change", "seconds", "seconds_before", "samples", "samples_before",
	}, p.f.keys()...)...)
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }
	for i := range c.Changes {
		h := &c.Changes[i]
		row := []string{
			number(h.Average), number(h.AverageBefore), number(h.Change), number(h.Seconds), number(h.SecondsBefore),
			strconv.Itoa(h.Samples), strconv.Itoa(h.SamplesBefore),
		}
		w.Row(append(row, h.texts...)...)
	}
	return w.Flush()
}
