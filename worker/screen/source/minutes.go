package source

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sort"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
)

// A minute is a sample of kind KindMinute that replaces the samples of up to a minute. Its rows are means over that time: one
// row for all sessions with the same properties, without process ids.

// sumKey has the properties that a row of a minute keeps.
type sumKey struct {
	class                                           int8
	event, query, user, database, app, phrase, kind uint32
}

func keyOf(r *row) sumKey {
	return sumKey{r.class, r.event, r.query, r.user, r.database, r.app, r.phrase, r.kind}
}

func (k sumKey) row(weight float32) row {
	return row{
		class: k.class, weight: weight, event: k.event, query: k.query, user: k.user, database: k.database, app: k.app,
		phrase: k.phrase, kind: k.kind,
	}
}

// minutes returns the number of samples that are minutes. They are the first elements of p.samples, because they are the
// oldest.
func (p *past) minutes() int {
	i, _ := slices.BinarySearchFunc(p.samples, KindMinute, func(s sample, k Kind) int {
		if s.kind == k {
			return -1
		}
		return 1
	})
	return i
}

// sumMinute replaces the oldest single samples by one minute. It returns false, and changes nothing, if all single samples are
// of the newest minute.
func (p *past) sumMinute() bool {
	first := p.minutes()
	if first >= len(p.samples) {
		return false
	}
	begin := p.samples[first].at.Truncate(time.Minute)
	end := first
	for end < len(p.samples) && p.samples[end].at.Before(begin.Add(time.Minute)) {
		end++
	}
	if end == len(p.samples) {
		return false
	}
	list := p.samples[first:end]
	sum := sample{at: list[len(list)-1].at, kind: KindMinute, before: list[0].before}
	var seconds float64
	for i := range list {
		sum.period += list[i].period
		seconds += list[i].period.Seconds()
	}
	if seconds == 0 {
		sum.period, seconds = time.Millisecond, time.Millisecond.Seconds()
	}
	weights, found := map[sumKey]float64{}, map[uint32]float64{}
	for i := range list {
		part := list[i].period.Seconds() / seconds
		for j := range list[i].rows {
			weights[keyOf(&list[i].rows[j])] += float64(list[i].rows[j].weight) * part
		}
		for _, f := range list[i].found {
			found[f.key] += float64(f.active) * part
		}
	}
	p.uncount(list)
	sum.fill(weights)
	for key, n := range found {
		sum.found = append(sum.found, foundOf(key, n))
	}
	p.samples = slices.Replace(p.samples, first, end, sum)
	p.rows, p.minuteRows = p.rows+len(sum.rows), p.minuteRows+len(sum.rows)
	return true
}

func foundOf(key uint32, n float64) found { return found{key, float32(n)} }

// fill adds a row for each key of weights. A weight is a mean number of sessions.
func (s *sample) fill(weights map[sumKey]float64) {
	for k, n := range weights {
		s.rows = append(s.rows, k.row(float32(n)))
		if k.class != idleClass {
			s.sums[k.class] += n
		}
	}
}

// recordedMinute has the data of one minute from the recorder's files.
type recordedMinute struct {
	at     time.Time // time of the last sweep in this minute
	period time.Duration
	before string
	sums   []store.Sum
}

// readMinutes reads the recorded minutes of a span, which must begin with a full minute, and a minute after it. The time of the
// first sweep may begin before the span.
func (r *Recorded) readMinutes(ctx context.Context, s Span) ([]*recordedMinute, error) {
	reader, err := store.OpenReader(r.dir, r.id)
	if err != nil {
		return nil, err
	}
	// The files have sums of whole minutes only. A sweep stands for the time before it, so the minute after the span has the sweep
	// for the end of the span, and the minute before the span has the sweep at which the first one's time begins.
	s.To = s.To.Truncate(time.Minute).Add(2 * time.Minute)
	var infos []store.SweepInfo
	err = reader.Sweeps(ctx, s.From.Add(-time.Minute), s.To, func(i store.SweepInfo) error {
		infos = append(infos, i)
		return nil
	})
	if err != nil {
		return nil, err
	}
	list := minutesOf(infos, s.From)
	byTime := make(map[int64]*recordedMinute, len(list))
	for _, m := range list {
		byTime[m.at.Truncate(time.Minute).UnixMicro()] = m
	}
	texts := map[int64]string{}
	err = reader.Sums(ctx, store.SumOptions{Since: s.From, Until: s.To, ByMinute: true}, func(x *store.Sum) error {
		if m := byTime[x.Time]; m != nil {
			m.sums = append(m.sums, *x)
			texts[x.QueryID] = cmp.Or(texts[x.QueryID], x.Query)
		}
		return nil
	})
	delete(texts, 0)
	if err != nil || !slices.Contains(slices.Collect(maps.Values(texts)), "") {
		return withTexts(list, texts), err
	}
	// Only the sums of whole hours have texts.
	hours := store.SumOptions{Since: s.From.Truncate(time.Hour), Until: s.To.Truncate(time.Hour).Add(time.Hour)}
	err = reader.Sums(ctx, hours, func(x *store.Sum) error {
		texts[x.QueryID] = cmp.Or(texts[x.QueryID], x.Query)
		return nil
	})
	return withTexts(list, texts), err
}

// withTexts sets the texts of the statements by their query ids.
func withTexts(list []*recordedMinute, texts map[int64]string) []*recordedMinute {
	for _, m := range list {
		for i := range m.sums {
			m.sums[i].Query = texts[m.sums[i].QueryID]
		}
	}
	return list
}

// minutesOf groups the sweeps at or after the time from by minute, without sums. A gap within a minute is shown before this minute.
func minutesOf(infos []store.SweepInfo, from time.Time) (list []*recordedMinute) {
	sort.Slice(infos, func(i, j int) bool {
		a, b := infos[i], infos[j]
		return cmp.Compare(a.Time, b.Time) < 0
	})
	last := from
	for i := range infos {
		at := time.UnixMicro(infos[i].Time).UTC()
		if at.Before(from) {
			last = at
			continue
		}
		period := min(time.Duration(infos[i].Period*float64(time.Second)), at.Sub(last))
		if at.Sub(last)-period < max(2*time.Second, period*9/10) { // a sweep that is only late leaves no gap
			period = at.Sub(last)
		}
		if n := len(list); n == 0 || !list[n-1].at.Truncate(time.Minute).Equal(at.Truncate(time.Minute)) {
			list = append(list, &recordedMinute{})
		}
		m := list[len(list)-1]
		if at.Sub(last) > period {
			m.before = gapReason(int(infos[i].Lost))
		}
		m.at, m.period, last = at, m.period+period, at
	}
	return list
}

// insert replaces the minutes of a span by recorded minutes. Hours of the span that end at or before the time whole are
// complete now: they are added to p.hours, so that they are not read again.
func (p *past) insert(s Span, list []*recordedMinute, whole time.Time) {
	after := func(t time.Time) int { // the index of the first sample after a time: a sample at this time is of the time before it
		i, _ := slices.BinarySearchFunc(p.samples, t, func(x sample, t time.Time) int { return cmp.Or(x.at.Compare(t), -1) })
		return i
	}
	first := after(s.From)
	end := max(first, min(after(s.To), p.minutes()))
	p.uncount(p.samples[first:end])
	samples := make([]sample, 0, len(list))
	for _, m := range list {
		x := sample{at: earlier(m.at, s.To), kind: KindMinute, before: m.before}
		if x.period = min(m.period-m.at.Sub(x.at), x.at.Sub(s.From)); x.period <= 0 {
			continue
		}
		weights := make(map[sumKey]float64, len(m.sums))
		for i := range m.sums {
			if k, ok := p.sumKey(&m.sums[i]); ok {
				weights[k] += m.sums[i].Weight / m.period.Seconds()
			}
		}
		x.fill(weights)
		p.rows, p.minuteRows = p.rows+len(x.rows), p.minuteRows+len(x.rows)
		samples = append(samples, x)
	}
	p.samples = slices.Replace(p.samples, first, end, samples...)
	if p.hours == nil {
		p.hours = map[int64]bool{}
	}
	for hour := s.From.Truncate(time.Hour); hour.Before(s.To) && !earlier(hour.Add(time.Hour), s.To).After(whole); hour = hour.Add(time.Hour) {
		p.hours[hour.Unix()] = true
	}
	if len(p.samples) > 0 {
		p.bound()
	}
}

// sumKey returns the properties of a store.Sum (recorded samples with equal properties, added up); false: the sum is not of
// active sessions. A sum does not have the state of its sessions. So a client backend that waits for its client counts as not
// active, because such a session is far more often idle in a transaction than active.
func (p *past) sumKey(s *store.Sum) (sumKey, bool) {
	m := momentOfSum(s)
	class := ClassOf(m)
	if class == "" || s.WaitType == Client && s.WaitEvent == "ClientRead" && s.Type == clientBackend {
		return sumKey{}, false
	}
	k := keyOf(new(p.row(m)))
	k.class = int8(slices.Index(Classes(), class))
	return k, true
}

// withoutState reports whether processes of a type have no state in pg_stat_activity.
func withoutState(kind string) bool {
	return slices.Contains([]string{
		"archiver", "autovacuum launcher", "background writer", "checkpointer", "io worker", "logger", "logical replication launcher",
		"slotsync worker", "startup", "walreceiver", "walsummarizer", "walwriter",
	}, kind)
}

// momentOfSum returns an active session with the properties of a store.Sum.
func momentOfSum(s *store.Sum) *moment.Session {
	m := &moment.Session{
		Type: s.Type, Database: s.Database, User: s.User, Application: s.App, QueryID: s.QueryID, Query: s.Query, State: stateActive,
	}
	if withoutState(s.Type) {
		m.State = ""
	}
	if s.WaitType != "" {
		m.Wait = &moment.Wait{Type: s.WaitType, Event: s.WaitEvent}
	}
	return m
}
