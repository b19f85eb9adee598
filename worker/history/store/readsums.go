package store

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Lengths of the span of a Sum, in seconds.
const (
	minuteSeconds = 60
	hourSeconds   = 3600
)

// SumOptions are the options of Reader.Sums.
type SumOptions struct {
	// Since and Until are the span. Samples outside of it are not counted, also within a minute.
	Since, Until time.Time
	// ByMinute asks for Sums of minutes even in hours that are completely in the span.
	ByMinute bool
	// Enough, if not nil, reports whether the caller needs no Sums of the time from the argument on. Reader.Sums calls it before
	// each closed hour, and before each minute of the journal.
	Enough func(from time.Time) bool
}

// Sums passes the Sums of a span to the callback each, one by one. A closed hour that is completely in the span has Sums of an
// hour, other parts of the span have Sums of minutes. Sum.Time is the begin of the minute or hour, also if the span begins within
// that minute. The callback must not keep the pointer.
func (r *Reader) Sums(ctx context.Context, o SumOptions, each func(*Sum) error) error {
	lo, hi := o.Since.UnixMicro(), o.Until.UnixMicro()
	enough := func(from time.Time) bool { return o.Enough != nil && o.Enough(from) }
	found, err := r.find(o.Since, o.Until)
	if err != nil {
		return err
	}
	defer found.close()
	for i := range found.hours {
		h := &found.hours[i]
		if enough(h.from) {
			continue
		}
		s := hourSums{r: r, hour: h, each: each}
		from, to := max(lo, h.from.UnixMicro()), min(hi, h.from.Add(time.Hour).UnixMicro())
		if err := s.read(ctx, from, to, o.ByMinute); err != nil {
			return err
		}
	}
	if found.journal == nil {
		return nil
	}
	return r.liveSums(ctx, found.journal, &journalReader{lo: lo, hi: hi, enough: enough, each: each})
}

// liveSums passes the Sums of the journal to j.each.
func (r *Reader) liveSums(ctx context.Context, f *os.File, j *journalReader) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if j.frames, err = openFrames(f, st.Size()); err != nil {
		return r.damaged(err)
	}
	defer j.frames.close()
	err = j.read(ctx)
	r.Damage = append(r.Damage, j.frames.damage...)
	return r.damaged(err)
}

// hourSums reads the Sums of a closed hour.
type hourSums struct {
	r    *Reader
	hour *closedHour
	each func(*Sum) error
}

// read passes the Sums of a span within the hour to h.each.
func (h *hourSums) read(ctx context.Context, from, to int64, byMinute bool) error {
	if !byMinute && to-from == time.Hour.Microseconds() {
		return h.whole(ctx, from, to, hourSeconds)
	}
	first, last := spanOf(from+time.Minute.Microseconds()-1, minuteSeconds), spanOf(to, minuteSeconds)
	if last < first { // the span is within one minute
		return h.part(ctx, from, to)
	}
	if err := h.part(ctx, from, first); err != nil {
		return err
	}
	if err := h.whole(ctx, first, last, minuteSeconds); err != nil {
		return err
	}
	return h.part(ctx, last, to)
}

// whole passes to h.each the stored Sums that begin between from and to. seconds selects the Sums of a minute or of an hour.
func (h *hourSums) whole(ctx context.Context, from, to int64, seconds int32) error {
	if from >= to {
		return nil
	}
	for _, path := range h.hour.files("sums") {
		impossible := 0
		err := readGroups(ctx, path, from, to, func(p *parquetFile, g int) error {
			if leaf, found := p.groups[g].Schema().Lookup("bucket_seconds"); found {
				if lo, hi, ok := p.integers(g, leaf.ColumnIndex); ok && (int64(seconds) < lo || int64(seconds) > hi) {
					return nil
				}
			}
			return readSums(ctx, p, g, func(s *Sum) error {
				if s.Seconds != seconds || s.Time < from || s.Time >= to {
					return nil
				}
				if !s.possible() {
					impossible++
					return nil
				}
				return h.each(s)
			})
		})
		if err := h.r.damaged(err); err != nil {
			return err
		}
		h.r.impossible(path, "sum", impossible)
	}
	return nil
}

// readSums calls each with the Sums of a row group.
func readSums(ctx context.Context, p *parquetFile, group int, each func(*Sum) error) error {
	c := newColumns(p, group)
	defer c.close()
	from, seconds := int64Column(c, "time"), int32Column(c, "bucket_seconds")
	waitType, waitEvent, query := textColumn(c, "wait_event_type"), textColumn(c, "wait_event"), int64Column(c, "query_id")
	kind, database, user := textColumn(c, "backend_type"), textColumn(c, "database"), textColumn(c, "user")
	samples, weight, text := int64Column(c, "samples"), float64Column(c, "active_seconds"), textColumn(c, "query")
	app, topStack, topCount := textColumn(c, "application_name"), int64Column(c, "top_stack"), int64Column(c, "top_samples")
	for {
		n, err := c.batch(ctx)
		if err != nil || n == 0 {
			return err
		}
		for i := range n {
			err := each(&Sum{
				Time: from.values[i], Seconds: seconds.values[i], WaitType: waitType.values[i], WaitEvent: waitEvent.values[i],
				QueryID: query.values[i], Type: kind.values[i], Database: database.values[i], User: user.values[i], App: app.values[i],
				Samples: samples.values[i], Weight: weight.values[i], Query: text.values[i], TopStack: topStack.values[i],
				TopCount: topCount.values[i],
			})
			if err != nil {
				return eachError{err}
			}
		}
	}
}

// part passes the Sums of a part of a minute to h.each. It adds them up from the rows, since the stored Sums are of whole
// minutes.
func (h *hourSums) part(ctx context.Context, from, to int64) error {
	if from >= to {
		return nil
	}
	periods := map[int64]time.Duration{} // of each sweep, by the sweep's time
	err := h.r.closedSweeps(ctx, h.hour, from, to, func(s SweepInfo) error {
		periods[s.Time] = seconds(s.Period)
		return nil
	})
	if err != nil {
		return err
	}
	m := newMinutes(h.each)
	for _, path := range h.hour.files("rows") {
		err := readGroups(ctx, path, from, to, func(p *parquetFile, g int) error {
			return readSamples(ctx, p, g, from, to, func(row *Row) error {
				period, found := periods[row.Time]
				if !found {
					period = time.Second // ReadSpan also assumes a second if the SweepInfo cannot be read
				}
				return m.add(row, period)
			})
		})
		if err := h.r.damaged(err); err != nil {
			return err
		}
	}
	return m.flush()
}

// readSamples calls each with the rows of a span. In these rows, only the columns that a Sum needs are set.
func readSamples(ctx context.Context, p *parquetFile, group int, from, to int64, each func(*Row) error) error {
	c := newColumns(p, group)
	defer c.close()
	at, ended, text := int64Column(c, "time"), boolColumn(c, "ended"), textColumn(c, "query")
	waitType, waitEvent, query := textColumn(c, "wait_event_type"), textColumn(c, "wait_event"), int64Column(c, "query_id")
	kind, database, user := textColumn(c, "backend_type"), textColumn(c, "database"), textColumn(c, "user")
	app, stack := textColumn(c, "application_name"), int64Column(c, "stack")
	for {
		n, err := c.batch(ctx)
		if err != nil || n == 0 {
			return err
		}
		for i := range n {
			if at.values[i] < from || at.values[i] >= to || ended.values[i] {
				continue
			}
			err := each(&Row{
				Time: at.values[i], Type: kind.values[i], Database: database.values[i], User: user.values[i], App: app.values[i],
				WaitType: waitType.values[i], WaitEvent: waitEvent.values[i], QueryID: query.values[i], Query: text.values[i],
				Stack: stack.values[i],
			})
			if err != nil {
				return eachError{err}
			}
		}
	}
}

// minutes adds up rows to the Sums of minutes.
type minutes struct {
	each  func(*Sum) error
	adder *adder
	texts map[int64]string // of queries
}

func newMinutes(each func(*Sum) error) *minutes {
	return &minutes{each: each, texts: map[int64]string{}}
}

// add counts a row. If the row is in another minute than the last row, it first passes the Sums of the last minute to m.each.
func (m *minutes) add(row *Row, period time.Duration) error {
	if m.adder != nil && m.adder.from != spanOf(row.Time, minuteSeconds) {
		if err := m.flush(); err != nil {
			return err
		}
	}
	if m.adder == nil {
		m.adder = newAdder(minuteSeconds)
	}
	if row.QueryID != 0 && row.Query != "" {
		m.texts[row.QueryID] = row.Query
	}
	m.adder.add(row, period)
	return nil
}

// flush passes the Sums of the last minute to m.each.
func (m *minutes) flush() error {
	if m.adder == nil {
		return nil
	}
	list := m.adder.sums(m.texts)
	m.adder = nil
	for i := range list {
		if err := m.each(&list[i]); err != nil {
			return err
		}
	}
	return nil
}
