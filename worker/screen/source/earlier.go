package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/units"
)

// Historian is a source that also has data of earlier times.
type Historian interface {
	// Past returns a source for an earlier span. Its methods Load, `Who` and Flame have the data of the span. Sessions, Blocking,
	// Findings and Session have the data of the newest sample at or before the time at, which is in the span; zero: the end of
	// the span. The error says why there is no such source, for example ErrNotRecorded.
	Past(ctx context.Context, s Span, at time.Time) (Source, error)
}

// Gap is a part of a span without data.
type Gap struct {
	Span

	// Reason says why there is no data.
	Reason string `json:"reason"`
}

// Bounds of earlier spans.
const (
	longestSpan    = 10 * 24 * time.Hour
	sweepsSpan     = 15 * time.Minute // longest span of which each recorded sweep is read; of longer spans, the sums of minutes
	momentSpan     = time.Minute      // time before a moment that is read too, for the ages of findings and for waits
	readTime       = 15 * time.Second // time limit for reading one span
	spansKept      = 2
	momentsKept    = 8
	freshSpan      = 5 * time.Second // a span that ended less than settled ago is read again after this time
	settled        = time.Minute     // the recorder has written all sweeps of a span this long after its end
	maxGaps        = 100
	rowsOfOneSpan  = 400_000
	sweepsOfMoment = 200
)

// The reasons of gaps.
const (
	reasonNotRecorded = "the recorder did not run, or could not read the server"
	reasonNotSampled  = "this program did not read the server, and no recorder's files are known"
	reasonNeither     = "neither the recorder nor this program read the server"
	reasonReading     = "the recorder's files are being read"
	reasonUnread      = "the recorder's files could not be read: " // the text of the error follows
	reasonDropped     = "older samples have been dropped"
	reasonUnreadable  = "the server could not be read: " // the text of the error follows
)

// ErrNotRecorded means that there are no files of a recorder.
var ErrNotRecorded = errors.New("earlier times need a recorder's files: run the worker with --record-dir, and top with the same option")

// errNothing is the error for a moment without a sweep.
var errNothing = errors.New("nothing is recorded for this moment")

// errSessions is the error for the sessions of a moment if there is no recorder.
var errSessions = errors.New("sessions of earlier times need a recorder's files: run the worker with --record-dir")

// gapReason says why sweeps are missing before a sweep. lost is the number of sweeps that the recorder could not write.
func gapReason(lost int) string {
	if lost > 0 {
		return units.Count(lost, "sweep") + " could not be written"
	}
	return reasonNotRecorded
}

// earlierSource is a source for an earlier span.
type earlierSource struct {
	live   *Live
	info   Info
	sweeps *recordedSweeps // nil: the samples in the memory of live are used
	at     *recordedMoment // nil: there are no recorded files, or the files have no sweep of the moment
	reason error           // the reason why at is nil
}

// earlierTimes keeps the spans and moments that were read last from the recorder's files.
type earlierTimes struct {
	gate // locked while files are read, so that only one span is read at a time

	spans   []*recordedSweeps
	moments []*recordedMoment
}

// Past implements Historian.Past.
func (l *Live) Past(ctx context.Context, s Span, at time.Time) (Source, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	chosen := !at.IsZero()
	switch at = cmp.Or(at, s.To); {
	case s.To.Sub(s.From) > longestSpan:
		return nil, fmt.Errorf("a span has at most %s", units.Age(longestSpan))
	case at.Before(s.From) || at.After(s.To):
		return nil, errors.New("the moment is not in the span")
	}
	own, first := l.ownSamples()
	if l.recorded.Load() == nil {
		if first.IsZero() || !s.To.After(first) {
			return nil, ErrNotRecorded
		}
		x := &earlierSource{live: l, reason: errSessions}
		x.describe(l, at)
		return x, nil
	}
	x := &earlierSource{live: l}
	err := l.readEarlier(ctx, func(ctx context.Context) (err error) {
		switch {
		case !own.IsZero() && !s.From.Before(own): // the whole span has samples in memory
		case s.To.Sub(s.From) <= sweepsSpan:
			x.sweeps, err = l.readSweeps(ctx, s)
		default:
			err = l.extend(ctx, s)
		}
		if err != nil {
			return err
		}
		x.at, err = l.readMoment(ctx, at)
		if newest := x.newest(s); errors.Is(err, errNothing) && !chosen && !newest.IsZero() { // show the newest sample of the span
			x.at, err = l.readMoment(ctx, newest)
		}
		if errors.Is(err, errNothing) {
			x.reason, err = l.nothingAt(at), nil
		}
		return err
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("the recorded span could not be read in %s: choose a shorter one", units.Age(readTime))
	case err != nil:
		return nil, err
	}
	x.describe(l, at)
	return x, nil
}

// readEarlier calls read, which reads the recorder's files, when no other such call runs. If the disk does not answer, it returns the
// error of a context after readTime, or when ctx ends, while read continues: then the caller must not use its results.
func (l *Live) readEarlier(ctx context.Context, read func(context.Context) error) error {
	wait, stop := context.WithTimeout(ctx, readTime)
	defer stop()
	if err := l.earlier.enter(wait); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer l.earlier.leave()
		done <- host.Catch("history", func() error { return read(ctx) })
	}()
	select {
	case err := <-done:
		if p := (*host.Panic)(nil); errors.As(err, &p) {
			panic(p) // for the shield of the caller
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nothingAt returns the error for a moment without a sweep. It says when the recorded files begin, if they begin later.
func (l *Live) nothingAt(at time.Time) error {
	first, _ := l.recorded.Load().reader.Span()
	if first.IsZero() || !at.Before(first) {
		return errNothing
	}
	return fmt.Errorf("%w: the oldest recorded hour begins at %s", errNothing, first.Local().Format("2006-01-02 15:04 MST"))
}

// newest returns the time of the newest sample in a span; zero: the span has no sample.
func (x *earlierSource) newest(s Span) (at time.Time) {
	x.samples(func(p *past) {
		p.between(s, func(y *sample, _ float64) { at = earlier(y.at, s.To) })
	})
	return at
}

// ownSamples returns two times about the samples in memory. From the time own on, they are single samples, not minutes (see
// minutes.go). first is the time of the first sample of either form. A zero time means that there are no such samples.
func (l *Live) ownSamples() (own, first time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.past
	if len(p.samples) > 0 {
		first = p.samples[0].at
	}
	if i := p.minutes(); i < len(p.samples) {
		own = p.samples[i].at.Add(-p.samples[i].period)
	}
	return own, first
}

// extend reads the recorded minutes of a span that are not in memory yet.
func (l *Live) extend(ctx context.Context, s Span) error {
	own, _ := l.ownSamples()
	end := s.To
	if !own.IsZero() {
		end = earlier(end, own)
	}
	var missing []Span
	l.mu.Lock()
	for hour := s.From.Truncate(time.Hour); hour.Before(end); hour = hour.Add(time.Hour) {
		if l.past.hours[hour.Unix()] {
			continue
		}
		to := hour.Add(time.Hour)
		if !own.IsZero() {
			to = earlier(to, own)
		}
		if n := len(missing); n > 0 && missing[n-1].To.Equal(hour) {
			missing[n-1].To = to
			continue
		}
		missing = append(missing, Span{hour, to})
	}
	l.mu.Unlock()
	for _, span := range missing {
		list, err := l.recorded.Load().readMinutes(ctx, span)
		if err != nil {
			return err
		}
		whole := span.To
		if !whole.Equal(own) { // the recorder may not have written the newest sweeps of the span yet
			whole = earlier(whole, time.Now().Add(-settled))
		}
		l.mu.Lock()
		l.past.insert(span, list, whole)
		l.mu.Unlock()
	}
	return nil
}

// describe sets x.info. at is the moment to show.
func (x *earlierSource) describe(l *Live, at time.Time) {
	l.mu.Lock()
	i := l.info
	l.mu.Unlock()
	x.info = Info{
		DataDir: i.DataDir, Version: i.Version, Port: i.Port, Processors: i.Processors, MaxConnections: i.MaxConnections,
		Recorded: i.Recorded, IntervalSeconds: i.IntervalSeconds, Texts: i.Texts, CostPercent: i.CostPercent, Past: true,
	}
	x.info.First, x.info.Last = i.First, &at
	switch {
	case x.at != nil:
		last := x.at.last.Time
		x.info.Last, x.info.Sessions, x.info.Missing = &last, counts(x.at.last), x.at.last.Missing
	case x.live.recorded.Load() != nil:
		x.info.Last = nil
	}
	if x.sweeps != nil {
		x.info.Missing = append(slices.Clone(x.info.Missing), x.sweeps.damage...)
	}
}

// recordedSweeps are the recorded sweeps of a span. They do not change after they were read.
type recordedSweeps struct {
	span   Span
	read   time.Time
	mu     sync.Mutex // also needed to read past, because queries may add names to it
	past   past
	damage []string // descriptions of the damaged parts of the files
}

// readSweeps reads the sweeps of a span, or returns those of an earlier call if no sweep can be missing in them.
func (l *Live) readSweeps(ctx context.Context, s Span) (*recordedSweeps, error) {
	list := &l.earlier.spans
	*list = slices.DeleteFunc(*list, func(x *recordedSweeps) bool { return !fresh(x.read, x.span.To) })
	if i := slices.IndexFunc(*list, func(x *recordedSweeps) bool { return x.span.From.Equal(s.From) && x.span.To.Equal(s.To) }); i >= 0 {
		x := (*list)[i]
		*list = append(slices.Delete(*list, i, i+1), x)
		return x, nil
	}
	reader, err := store.OpenReader(l.recorded.Load().dir, l.recorded.Load().id)
	if err != nil {
		return nil, err
	}
	x := &recordedSweeps{span: s, read: time.Now()}
	x.past.most, x.past.first, x.past.gap = rowsOfOneSpan, reasonNotRecorded, reasonNotRecorded
	var rules rules
	stacks := recordedStacks{wanted: map[int64]bool{}}
	summary, err := store.ReadSpan(ctx, reader, s.From, s.To, func(w *store.SpanSweep, gap *store.Gap) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := momentOf(w)
		x.past.addRecorded(w, gap, m, &rules)
		stacks.add(w, m)
		return nil
	})
	if err == nil {
		err = stacks.read(ctx, reader, s, &x.past)
	}
	if err != nil {
		return nil, err
	}
	x.damage = summary.Damage
	*list = append((*list)[max(0, len(*list)-spansKept+1):], x)
	return x, nil
}

// fresh reports whether data up to the time to, which was read at the time read, need not be read again.
func fresh(read, to time.Time) bool { return read.Sub(to) > settled || time.Since(read) < freshSpan }

// addRecorded adds the recorded sweep w, whose moment is m, as a sample. It returns the findings of the sweep. gap is the time
// without sweeps before w; nil: there is none.
func (p *past) addRecorded(w *store.SpanSweep, gap *store.Gap, m *moment.Moment, rules *rules) []Finding {
	list := rules.apply(&facts{m: m, interval: w.Period, older: true})
	s := p.add(m, KindRecorded, w.Period)
	if gap != nil {
		s.before = gapReason(w.Lost)
	} else if n := len(p.samples); n > 1 && s.at.Sub(p.samples[n-2].at) < 2*s.period { // a late sweep leaves no gap
		s.period = s.at.Sub(p.samples[n-2].at)
	}
	p.addFindings(s, list)
	return list
}

// recordedMoment has the newest recorded sweep at or before a moment. It does not change after it was read.
type recordedMoment struct {
	at, read time.Time
	mu       sync.Mutex
	past     past // the sweeps of the last momentSpan before the moment
	last     *moment.Moment
	findings *Findings
	stacks   map[int]int64 // number of the newest recorded stack, by process id
	stackAt  map[int]time.Time
	reader   *store.Reader // guarded by the gate of Live.earlier
}

// readMoment reads the newest sweeps before a moment, or returns the result of an earlier call if no sweep can be missing in it.
// Without a sweep, it returns errNothing.
func (l *Live) readMoment(ctx context.Context, at time.Time) (*recordedMoment, error) {
	list := &l.earlier.moments
	*list = slices.DeleteFunc(*list, func(x *recordedMoment) bool { return !fresh(x.read, x.at) })
	if i := slices.IndexFunc(*list, func(x *recordedMoment) bool { return x.at.Equal(at) }); i >= 0 {
		return (*list)[i], nil
	}
	reader, err := store.OpenReader(l.recorded.Load().dir, l.recorded.Load().id)
	if err != nil {
		return nil, err
	}
	x := &recordedMoment{at: at, read: time.Now(), reader: reader, stacks: map[int]int64{}, stackAt: map[int]time.Time{}}
	x.past.most = rowsOfOneSpan
	var rules rules
	_, err = store.ReadSpan(ctx, reader, at.Add(-momentSpan), at.Add(time.Microsecond), func(w *store.SpanSweep, gap *store.Gap) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		x.last = momentOf(w)
		found := x.past.addRecorded(w, gap, x.last, &rules)
		x.findings = &Findings{Time: w.Time, Findings: found, Unknown: []string{unknownEarlier}}
		for i := range w.Rows {
			if r := &w.Rows[i]; r.Stack != 0 {
				x.stacks[int(r.PID)], x.stackAt[int(r.PID)] = r.Stack, w.Time
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case x.last == nil:
		return nil, errNothing
	}
	*list = append((*list)[max(0, len(*list)-momentsKept+1):], x)
	return x, nil
}

// unknownEarlier says which rules cannot be applied to recorded sweeps, and why.
const unknownEarlier = "connections and processors: a recorder does not keep idle sessions and states of processes"

// samples calls the callback each once, with the past that has the samples of the span. The lock that guards this past is locked
// during the call.
func (x *earlierSource) samples(each func(*past)) {
	mu, p := &x.live.mu, &x.live.past
	if x.sweeps != nil {
		mu, p = &x.sweeps.mu, &x.sweeps.past
	}
	mu.Lock()
	defer mu.Unlock()
	each(p)
}

// Info implements Source.Info.
func (x *earlierSource) Info(context.Context) (*Info, error) {
	i := x.info
	return &i, nil
}

// Watch implements Source.Watch. The channel never receives a value, as the data does not change.
func (*earlierSource) Watch() (<-chan struct{}, func()) { return make(chan struct{}), func() {} }

// Load implements Source.Load.
func (x *earlierSource) Load(_ context.Context, q Query, columns int) (l *Load, err error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	after := reasonNotRecorded
	if q.To.After(time.Now()) {
		after = "it is in the future"
	}
	x.samples(func(p *past) { l = p.load(q, columns, time.Second, after) })
	return l, nil
}

// `Who` implements the method of Source.
func (x *earlierSource) Who(_ context.Context, q Query, by By, limit int) (w *Who, err error) {
	if err := errors.Join(q.check(), by.check()); err != nil {
		return nil, err
	}
	x.samples(func(p *past) { w = p.shares(q, by, limit) })
	return w, nil
}

// Flame implements Flamer.Flame.
func (x *earlierSource) Flame(_ context.Context, q Query, side Side) (f *Flame, err error) {
	if err := errors.Join(q.check(), side.check()); err != nil {
		return nil, err
	}
	if x.sweeps == nil && x.at != nil && q.To.Sub(q.From) > sweepsSpan {
		return nil, fmt.Errorf("recorded stacks can be shown for spans up to %s: choose a shorter time", units.Age(sweepsSpan))
	}
	x.samples(func(p *past) { f = p.flame(q, side) })
	return f, nil
}

// Findings implements Source.Findings.
func (x *earlierSource) Findings(_ context.Context, s Span) (f *Findings, err error) {
	if x.at == nil {
		return nil, x.reason
	}
	x.samples(func(p *past) { f = p.withShares(x.at.findings, s) })
	return f, nil
}

// Sessions implements Source.Sessions.
func (x *earlierSource) Sessions(_ context.Context, f Filter, limit int) (*Sessions, error) {
	if x.at == nil {
		return nil, x.reason
	}
	x.at.mu.Lock()
	defer x.at.mu.Unlock()
	return x.at.past.sessions(x.at.last, f, limit), nil
}

// Blocking implements Source.Blocking.
func (x *earlierSource) Blocking(context.Context) (*Blocking, error) {
	if x.at == nil {
		return nil, x.reason
	}
	return BlockingOf(x.at.last), nil
}

// Session implements Source.Session.
func (x *earlierSource) Session(_ context.Context, pid int, q Span) (*Session, error) {
	if x.at == nil {
		return nil, x.reason
	}
	waits := []WaitSpan{}
	x.samples(func(p *past) { waits = p.waits(pid, q) })
	if len(waits) == 0 { // samples that are minutes have no process ids
		x.at.mu.Lock()
		waits = x.at.past.waits(pid, Span{x.at.at.Add(-momentSpan), x.at.at})
		x.at.mu.Unlock()
	}
	return sessionOf(x.at.last, pid, waits)
}

// Stack implements Prober.Stack. It returns the newest recorded stack at or before the moment.
func (x *earlierSource) Stack(ctx context.Context, pid int) (*Stack, error) {
	if x.at == nil {
		return nil, x.reason
	}
	id := x.at.stacks[pid]
	if id == 0 {
		return nil, fmt.Errorf("no stack of this process was recorded in the %s before the moment", units.Age(momentSpan))
	}
	at := x.at.stackAt[pid]
	var found map[int64]store.Stack
	err := x.live.readEarlier(ctx, func(ctx context.Context) (err error) {
		found, err = x.at.reader.Stacks(ctx, at.Add(-time.Hour), at.Add(time.Second), map[int64]bool{id: true})
		return err
	})
	if err != nil {
		return nil, err
	}
	recorded, ok := found[id]
	if !ok {
		return nil, errors.New("the files of the recorder do not have this stack any more")
	}
	s := &Stack{Time: at, Engine: "recorded", Frames: []Frame{}, Stop: recorded.Cut}
	for i := range x.at.last.Sessions {
		if m := &x.at.last.Sessions[i]; m.ServerPID == pid {
			s.Phrase = m.Phrase
		}
	}
	for _, f := range recorded.Frames {
		s.Frames = append(s.Frames, Frame{Function: f, Named: true})
	}
	return s, nil
}

// Plan implements Prober.Plan.
func (*earlierSource) Plan(context.Context, int) (*Plan, error) {
	return nil, errors.New("a recorder does not keep plans; incidents do")
}

// Memory implements Prober.Memory.
func (*earlierSource) Memory(context.Context, int) (*Memory, error) {
	return nil, errors.New("a recorder does not keep the memory of processes; incidents do")
}

// Past implements Historian.Past.
func (n Nameless) Past(ctx context.Context, s Span, at time.Time) (Source, error) {
	historian, ok := n.of.(Historian)
	if !ok {
		return nil, ErrNotRecorded
	}
	src, err := historian.Past(ctx, s, at)
	switch {
	case errors.Is(err, ErrNotRecorded):
		return nil, ErrNotRecorded
	case err != nil:
		return nil, errors.New(hidden(err.Error()))
	}
	return NewNameless(src), nil
}
