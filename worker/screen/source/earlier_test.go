package source

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
)

// record writes sweeps of a span to a new history. With a gap, there are no sweeps in that time.
func record(t *testing.T, s Span, step time.Duration, gap Span, rows func(at time.Time) []store.Row) *Recorded {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	const id = "7577921432"
	w, err := store.Open(store.Options{Dir: dir, Meta: store.Meta{SystemID: id}, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	for at := s.From; at.Before(s.To); at = at.Add(step) {
		if !at.Before(gap.From) && at.Before(gap.To) {
			continue
		}
		x := &store.Sweep{Time: at, Period: step, Rows: rows(at)}
		for i := range x.Rows {
			x.Rows[i].Time = at.UnixMicro()
			if n := x.Rows[i].Stack; n != 0 {
				x.Stacks = append(x.Stacks, store.Stack{ID: n, Frames: []string{fmt.Sprint("inner", n), "main"}})
			}
		}
		if err := w.Append(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	reader, err := store.OpenReader(dir, id)
	if err != nil {
		t.Fatal(err)
	}
	return &Recorded{dir, id, reader}
}

// recordedLive returns a source that has only a recorder's files.
func recordedLive(r *Recorded) *Live {
	l := &Live{o: Options{Interval: time.Second}}
	l.recorded.Store(r)
	l.info.DataDir = "/srv/pg"
	return l
}

// anHour is a history of 2.5 hours that ended three days ago, with a gap of ten minutes. A random number of sessions of two
// users is active. From 40 minutes on, process 1 blocks process 2.
func anHour(t *testing.T) (r *Recorded, from time.Time) {
	t.Helper()
	from = time.Now().Add(-75 * time.Hour).Truncate(time.Hour).Add(30 * time.Minute).UTC()
	random := rand.New(rand.NewPCG(1, 2))
	r = record(t, Span{from, from.Add(150 * time.Minute)}, 10*time.Second,
		Span{from.Add(80 * time.Minute), from.Add(90 * time.Minute)}, func(at time.Time) []store.Row {
			list := []store.Row{
				{PID: 1, Start: 1, Type: clientBackend, State: idleInTx, WaitType: "Client", WaitEvent: "ClientRead", User: "web", App: "root"},
				{PID: 2, Start: 1, Type: clientBackend, State: stateActive, User: "web", App: "waiter", QueryID: 7, Query: "select ?", Stack: 5},
			}
			if at.Sub(from) >= 40*time.Minute {
				list[1].WaitType, list[1].WaitEvent = "Lock", "relation"
				list[1].BlockedBy = []store.Blocker{{PID: 1, Lock: "relation", Mode: "ShareLock", Object: "5/7"}}
			}
			for pid := range random.IntN(4) {
				list = append(list, store.Row{PID: int32(10 + pid), Start: 1, Type: clientBackend, State: stateActive,
					User: []string{"cron", "web"}[random.IntN(2)], Database: "shop", App: "job", QueryID: random.Int64N(3) + 1, Query: "update ?"})
			}
			return list
		})
	return r, from
}

// TestEarlier reads a history that ended three days ago.
func TestEarlier(t *testing.T) {
	r, from := anHour(t)
	t.Run("moment", func(t *testing.T) { earlierMoment(t, r, from) })
	t.Run("gaps", func(t *testing.T) { gapsOfSpans(t, r, from) })
	t.Run("comparison", func(t *testing.T) { comparedSpans(t, r, from) })
	t.Run("minutes", func(t *testing.T) { minutesEqualSweeps(t, r, from) })
}

// earlierMoment: the sessions, the findings and the stacks are of the chosen moment. The load is of the span around it.
func earlierMoment(t *testing.T, r *Recorded, from time.Time) {
	t.Helper()
	l := recordedLive(r)
	span := Span{from.Add(35 * time.Minute), from.Add(45 * time.Minute)}
	for after, blocked := range map[time.Duration]int{39 * time.Minute: 0, 41*time.Minute + 3*time.Second: 1} {
		src, err := l.Past(t.Context(), span, from.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		b, err1 := src.Blocking(t.Context())
		s, err2 := src.Sessions(t.Context(), nil, 0)
		f, err3 := src.Findings(t.Context(), span)
		i, err4 := src.Info(t.Context())
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			t.Fatal(err)
		}
		at := from.Add(after).Truncate(10 * time.Second)
		if b.Waiting != blocked || !s.Time.Equal(at) || len(only(f.Findings, RuleBlocks)) != blocked || !i.Past || !i.Last.Equal(at) || i.Sessions.Waiting != blocked {
			t.Errorf("%s: %d wait, sessions of %s, findings %+v, info %+v", after, b.Waiting, s.Time, f.Findings, i)
		}
		x, err := src.Session(t.Context(), 2, span)
		if err != nil || x.Now == nil || len(x.Waits) != 2 || x.Waits[1].Event != "Lock:relation" || len(x.Now.Blockers) != blocked {
			t.Errorf("%+v, %v", x, err)
		}
		stack, err := src.(Prober).Stack(t.Context(), 2)
		if err != nil || len(stack.Frames) != 2 || stack.Frames[0].Function != "inner5" || stack.Engine != "recorded" {
			t.Errorf("%+v, %v", stack, err)
		}
		if _, err := src.(Prober).Stack(t.Context(), 1); err == nil {
			t.Error("a stack that was not recorded")
		}
		flame, err := src.(Flamer).Flame(t.Context(), Query{Span: span}, Both)
		if err != nil || flame.Recorded == 0 || flame.Sampled != 0 {
			t.Errorf("%+v, %v", flame, err)
		}
	}
	before := Span{from.Add(-3 * time.Hour), from.Add(-2 * time.Hour)}
	early, errEarly := l.Past(t.Context(), before, time.Time{})
	if errEarly != nil {
		t.Fatal(errEarly)
	}
	first, _ := r.reader.Span()
	want := "nothing is recorded for this moment: the oldest recorded hour begins at " + first.Local().Format("2006-01-02 15:04 MST")
	if _, err := early.Sessions(t.Context(), nil, 0); err == nil || err.Error() != want {
		t.Errorf("before the recorded time: %v, want %s", err, want)
	}
	for _, length := range []time.Duration{5 * time.Minute, 40 * time.Minute} { // nothing was recorded at the end
		gap := Span{from.Add(85*time.Minute - length), from.Add(85 * time.Minute)}
		for at, want := range map[time.Time]bool{{}: length > 5*time.Minute, gap.To: false} {
			src, err := l.Past(t.Context(), gap, at)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := src.Blocking(t.Context()); (err == nil && b.Waiting == 1) != want {
				t.Errorf("%s until a gap, moment %s: %+v, %v", length, at, b, err)
			}
		}
	}
	for what, x := range map[string]struct {
		span Span
		at   time.Time
	}{
		"is empty":    {Span{span.To, span.From}, time.Time{}},
		"at most":     {Span{from, from.Add(longestSpan + 1)}, time.Time{}},
		"not in the":  {span, span.To.Add(1)},
		"is not in t": {span, span.From.Add(-1)},
	} {
		if _, err := l.Past(t.Context(), x.span, x.at); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := recordedLive(nil).Past(t.Context(), span, time.Time{}); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("without a recorder: %v", err)
	}
	// Without names, the same sessions.
	src, err := NewNameless(l).Past(t.Context(), span, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := src.Sessions(t.Context(), nil, 0)
	if err != nil || len(s.Sessions) < 2 || s.Sessions[0].User != "" || s.Sessions[0].Query != "" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, ok := src.(Prober); ok {
		t.Error("a reader without names may read stacks")
	}
}

// gapsOfSpans: a gap has its begin, its end and its reason, whether the span is read by sweeps or by minutes.
func gapsOfSpans(t *testing.T, r *Recorded, from time.Time) {
	t.Helper()
	l := recordedLive(r)
	for _, span := range []Span{
		{from.Add(79 * time.Minute), from.Add(91 * time.Minute)}, {from, from.Add(150 * time.Minute)},
		{from.Add(81 * time.Minute), from.Add(83 * time.Minute)}, {from.Add(-3 * time.Hour), from.Add(81 * time.Minute)},
	} {
		src, err := l.Past(t.Context(), span, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		x, err := src.Load(t.Context(), Query{Span: span}, 100)
		if err != nil {
			t.Fatal(err)
		}
		var missing time.Duration
		for _, g := range x.Gaps {
			if g.Reason != reasonNotRecorded || g.From.Before(span.From) || g.To.After(span.To) {
				t.Errorf("%+v", g)
			}
			missing += g.To.Sub(g.From)
		}
		want := earlier(span.To, from.Add(90*time.Minute)).Sub(later(span.From, from.Add(80*time.Minute)))
		if span.From.Before(from) {
			want += from.Sub(span.From)
		}
		if (missing - want).Abs() > 10*time.Second {
			t.Errorf("%s to %s: %s are missing, want %s: %+v", span.From, span.To, missing, want, x.Gaps)
		}
	}
}

// minutesEqualSweeps: a long span, read by minutes, has the same shares as its sweeps, with filters too.
func minutesEqualSweeps(t *testing.T, r *Recorded, from time.Time) {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	long := recordedLive(r)
	for range 4 {
		begin := from.Add(time.Duration(1+random.IntN(60)) * time.Minute)
		span := Span{begin, begin.Add(time.Duration(16+random.IntN(60)) * time.Minute)}
		src, err := long.Past(t.Context(), span, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		whole, err := recordedLive(r).readSweeps(t.Context(), span)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []Filter{nil, {{By: ByUser, Key: "cron"}}, {{By: ByEvent, Key: "Lock:relation"}, {By: ByApplication, Key: "waiter"}}} {
			q := Query{Span: span, Filter: f}
			for _, by := range []By{ByUser, ByEvent, ByQuery, ByDatabase, ByApplication, ByType, ByClass} {
				got, err := src.Who(t.Context(), q, by, 0)
				if err != nil {
					t.Fatal(err)
				}
				want := whole.past.shares(q, by, 0)
				if len(got.Rows) != len(want.Rows) || math.Abs(got.Active-want.Active) > 0.02 {
					t.Fatalf("%s %v of %s: %+v, want %+v", by, f, span.To.Sub(span.From), got, want)
				}
				shares := map[string]float64{}
				for _, x := range want.Rows {
					shares[x.Key] = x.Share
				}
				for _, x := range got.Rows {
					if math.Abs(x.Share-shares[x.Key]) > 1 {
						t.Errorf("%s %s: %g %%, want %g %%", by, x.Name, x.Share, shares[x.Key])
					}
				}
			}
			got, err := src.Load(t.Context(), q, 50)
			if err != nil {
				t.Fatal(err)
			}
			if f == nil && got.Columns[len(got.Columns)/2].Kind != KindMinute && len(got.Gaps) == 0 {
				t.Errorf("%+v", got.Columns[len(got.Columns)/2])
			}
		}
	}
}

// comparedSpans: the figures are those of the command history --compare. That command counts open transactions too.
func comparedSpans(t *testing.T, r *Recorded, from time.Time) {
	t.Helper()
	l := recordedLive(r)
	now, before := Span{from.Add(41 * time.Minute), from.Add(52 * time.Minute)}, Span{from.Add(3 * time.Minute), from.Add(14 * time.Minute)}
	totals := store.NewComparison([]string{"wait", "user", "state"})
	var seconds [2]float64
	var list [2]*Who
	for i, span := range []Span{now, before} {
		if i == 1 {
			totals.Other()
		}
		summary, err := store.ReadSpan(t.Context(), r.reader, span.From, span.To, func(w *store.SpanSweep, _ *store.Gap) error {
			totals.Add(w)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		seconds[i] = summary.Seconds
		src, err := l.Past(t.Context(), span, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if list[i], err = src.Who(t.Context(), Query{Span: span}, ByUser, 0); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]Change{}
	for _, x := range totals.Changes(seconds[0], seconds[1], func(_, key string) string { return key }) {
		if x.Keys[2] != stateActive {
			continue
		}
		c := want[x.Keys[1]]
		c.Active, c.Before = c.Active+x.Seconds/seconds[0], c.Before+x.Before.Seconds/seconds[1]
		want[x.Keys[1]] = c
	}
	got := Compare(list[0], list[1], 0)
	if len(got.Rows) != 2 || len(want) != 2 {
		t.Fatalf("%+v, want %+v", got.Rows, want)
	}
	for _, x := range got.Rows {
		// A sweep stands for the time before it, so the first one of a span counts in part.
		if w := want[x.Name]; math.Abs(x.Active-w.Active) > 0.05 || math.Abs(x.Before-w.Before) > 0.05 || !near(x.Change, x.Active-x.Before) {
			t.Errorf("%+v, want %+v", x, w)
		}
	}
}

// TestLiveReachesBack: a live source has the recorded minutes before its first sample, without a gap between these minutes and the
// recorder's rows, at each second of the clock. A user with a name and the same user with an id only are one row.
func TestLiveReachesBack(t *testing.T) {
	minute := time.Now().UTC().Truncate(time.Minute)
	for _, phase := range []time.Duration{0, 10 * time.Second} { // of the sweeps in a minute
		from, end := minute.Add(phase-3*time.Hour), minute.Add(time.Minute)
		whole := record(t, Span{from, end}, 20*time.Second, Span{}, func(time.Time) []store.Row {
			return []store.Row{{PID: 1, Start: 1, Type: clientBackend, State: stateActive, User: "web", UserID: 10}}
		})
		for _, second := range []time.Duration{0, 10, 20, 30, 50} {
			t.Run(fmt.Sprintf("sweeps at %s, now %d", phase, second), func(t *testing.T) {
				liveReachesBack(t, &Recorded{whole.dir, whole.id, whole.reader}, minute.Add(second*time.Second))
			})
		}
	}
}

func liveReachesBack(t *testing.T, r *Recorded, now time.Time) {
	t.Helper()
	l := recordedLive(r)
	r.fill(now, &l.past, &l.rules)
	rows := l.past.samples[0].at.Add(-l.past.samples[0].period) // the recorder's rows begin here
	m := at(0, client(1, stateActive, ""))
	m.Time = now
	l.past.add(m, KindSampled, 2*time.Second)
	for _, length := range []time.Duration{30 * time.Minute, 2 * time.Hour} { // the second one reads the hours before the first one's
		span := Span{now.Add(-length), now}
		pgtest.Wait(t, "the recorded minutes", func() bool {
			w, err := l.Who(t.Context(), Query{Span: span}, ByUser, 0)
			if err != nil {
				t.Fatal(err)
			}
			return math.Abs(w.Seconds-length.Seconds()) < 60
		})
	}
	r.dir = "/nonexistent" // nothing is read again
	span := Span{now.Add(-2 * time.Hour), now}
	w, err := l.Who(t.Context(), Query{Span: span}, ByUser, 0)
	if err != nil || len(w.Rows) != 1 || math.Abs(w.Active-1) > 0.001 || math.Abs(w.Seconds-7200) > 25 {
		t.Fatalf("%+v, %v", w, err)
	}
	x, err := l.Load(t.Context(), Query{Span: Span{span.From, rows.Add(time.Minute)}}, 100)
	if err != nil || len(x.Gaps) > 0 || x.Columns[1].Kind != KindMinute || x.Columns[len(x.Columns)-1].Kind != KindRecorded {
		t.Fatalf("the rows begin at %s: %+v, %+v, %v", rows, x.Gaps, x, err)
	}
}

// TestLateRecorder: a source finds a recorder that was started later, and then has the earlier times of its files.
func TestLateRecorder(t *testing.T) {
	r, from := anHour(t)
	span := Span{from, from.Add(10 * time.Minute)}
	var found *Recorded
	calls := 0
	l := &Live{o: Options{Interval: time.Second, FindRecorded: func() *Recorded { calls++; return found }}}
	l.search()
	if _, err := l.Past(t.Context(), span, time.Time{}); !errors.Is(err, ErrNotRecorded) {
		t.Fatalf("without a recorder: %v", err)
	}
	found = r
	l.search() // too early for another search
	if calls != 1 {
		t.Errorf("%d searches at once", calls)
	}
	l.searched = time.Time{}
	l.search()
	src, err := l.Past(t.Context(), span, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := src.Sessions(t.Context(), nil, 0)
	if err != nil || len(s.Sessions) == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if i, err := l.Info(t.Context()); err != nil || i.Recorded != r.Dir() {
		t.Errorf("%+v, %v", i, err)
	}
}

// TestFollowedStacks: stacks of followed sweeps that were written before are read when Flame needs them.
func TestFollowedStacks(t *testing.T) {
	var p past
	m := at(0, client(1, stateActive, ""), client(2, stateActive, ""), client(3, stateActive, ""))
	w := &store.SpanSweep{Time: noon, Period: time.Second, Rows: []store.Row{{PID: 1, Stack: 5}, {PID: 2, Stack: 6}, {PID: 9, Ended: true}, {PID: 3}}}
	if !p.addRecordedStacks(w, m, map[int64][]string{5: {"known", "main"}}) {
		t.Error("no stack was added")
	}
	unknown := p.stacks.unknownStacks()
	if len(unknown) != 1 || !unknown[6] {
		t.Fatalf("%v", unknown)
	}
	p.stacks.setFrames(map[int64]store.Stack{6: {Frames: []string{"found", "main"}}})
	f := p.flame(Query{Span: Span{noon.Add(-time.Second), noon}}, Both)
	text := fmt.Sprint(f.Nodes)
	if len(p.stacks.unknownStacks()) != 0 || !strings.Contains(text, "known") || !strings.Contains(text, "found") || strings.Contains(text, stackMark) || !near(f.Nodes[0].Active, 3) {
		t.Errorf("%+v", f.Nodes)
	}
}

// TestFollowedStandby: a sweep has no startup process that waits for WAL, but the server is a standby nevertheless.
func TestFollowedStandby(t *testing.T) {
	for _, wait := range []string{"", "Activity:RecoveryWalStream"} {
		s := client(9, "", wait)
		s.Type = startupType
		l := &Live{following: following{looked: time.Now().Add(time.Hour), seen: map[session]*moment.Session{identityOf(&s): &s}}}
		m := at(0, client(1, stateActive, ""))
		l.addOwnLook(m)
		if startup(m) == nil || counts(m).Active != 1 {
			t.Errorf("%q: %+v", wait, m.Sessions)
		}
		if l.addOwnLook(m); len(m.Sessions) != 2 {
			t.Errorf("%q: the startup process is there %d times", wait, len(m.Sessions)-1)
		}
	}
}

// TestPartOfAMinute: the means of a minute are over the time that was recorded.
func TestPartOfAMinute(t *testing.T) {
	var infos []store.SweepInfo
	for i := range 3 {
		infos = append(infos, store.SweepInfo{Time: noon.Add(time.Duration(40+5*i) * time.Second).UnixMicro(), Period: 5})
	}
	list := minutesOf(infos, noon)
	if len(list) != 1 || list[0].period != 15*time.Second || list[0].before != reasonNotRecorded {
		t.Fatalf("%+v", list[0])
	}
	list[0].sums = []store.Sum{{Type: clientBackend, User: "web", Weight: 30}}
	var p past
	p.insert(Span{noon, noon.Add(45 * time.Second)}, list, noon) // the last sweep is after the span
	w := p.shares(Query{Span: Span{noon, noon.Add(time.Minute)}}, ByUser, 0)
	if len(w.Rows) != 1 || !near(w.Active, 2) || !near(w.Seconds, 10) {
		t.Errorf("%+v", w)
	}
}

// TestFramesAreReadOnce: stacks that were read, or that the files do not have, are known for later sweeps.
func TestFramesAreReadOnce(t *testing.T) {
	at10 := time.Now().Truncate(time.Second)
	r := record(t, Span{at10.Add(-5 * time.Second), at10}, time.Second, Span{}, func(time.Time) []store.Row {
		return []store.Row{{PID: 1, Start: 1, Type: clientBackend, State: stateActive, Stack: 5}}
	})
	l := recordedLive(r)
	w := &store.SpanSweep{Time: at10, Period: time.Second, Rows: []store.Row{{PID: 1, Stack: 5}, {PID: 2, Stack: 6}}}
	m := at(0, client(1, stateActive, ""), client(2, stateActive, ""))
	for range 2 {
		l.past.addRecordedStacks(w, m, l.following.frames)
		if err := l.nameStacks(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := l.past.stacks.unknownStacks(); len(n) != 0 {
			t.Errorf("%v", n)
		}
		r.reader = nil // it would panic
		w.Time = w.Time.Add(time.Second)
	}
	if f := l.following.frames; len(f[5]) != 2 || f[6] == nil || len(f[6]) != 0 {
		t.Errorf("%v", f)
	}
}

// TestRecorderRuns: a recorder without a sweep for longer than its period does not run.
func TestRecorderRuns(t *testing.T) {
	for late, want := range map[time.Duration]bool{0: true, 16 * time.Second: true, 18 * time.Second: false, -time.Second: true, -time.Hour: false} {
		w := following{newest: noon, period: 5 * time.Second}
		if got := w.runs(noon.Add(late)); got != want {
			t.Errorf("%s after the last sweep: %v", late, got)
		}
	}
	if (&following{}).runs(noon) {
		t.Error("a recorder without a sweep runs")
	}
}

// TestOldSamplesBecomeMinutes: beyond the bound, samples are summed by minutes, and the shares stay.
func TestOldSamplesBecomeMinutes(t *testing.T) {
	p := past{most: 2000}
	for i := range 3600 {
		p.add(at(float64(i), client(1, stateActive, "Lock:tuple"), client(2, stateActive, ""), client(3, idleInTx, "Client:ClientRead")), KindSampled, time.Second)
	}
	w := p.shares(Query{Span: Span{noon, noon.Add(time.Hour)}}, ByEvent, 0)
	if len(w.Rows) != 2 || !near(w.Rows[0].Active, 1) || !near(w.Active, 2) || math.Abs(w.Seconds-3600) > 2 {
		t.Errorf("%+v", w)
	}
	for _, src := range []Source{&Live{past: p}, NewNameless(&Live{past: p})} {
		w, err := src.Who(t.Context(), Query{Span: Span{noon, noon.Add(time.Minute)}}, BySession, 0)
		if err != nil || len(w.Rows) != 1 || w.Rows[0].Name != "(means over minutes, without process ids)" {
			t.Errorf("%T: %+v, %v", src, w, err)
		}
	}
	if p.rows > 2500 || p.minutes() < 45 {
		t.Errorf("%d rows, %d minutes of %d samples", p.rows, p.minutes(), len(p.samples))
	}
	count := 0
	for i := range p.samples {
		count += len(p.samples[i].rows)
	}
	if count != p.rows {
		t.Errorf("%d rows are counted, there are %d", p.rows, count)
	}
}
