package view

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/screen/source"
)

// night returns the data of an earlier span with two gaps.
func night() *Data {
	d := incident()
	d.Info.Past, d.Info.Recorded, d.Info.Last = true, "/var/lib/psb", ago(9*time.Hour-time.Minute)
	d.Load.Span = source.Span{From: *ago(9*time.Hour + 2*time.Minute), To: *ago(9*time.Hour - 3*time.Minute)}
	for i := range d.Load.Columns {
		x := &d.Load.Columns[i]
		x.Time = x.Time.Add(3*time.Minute - 9*time.Hour)
		x.Kind, x.Active = source.KindRecorded, []float64{1, float64(i % 7)}
		if i < 20 {
			x.Kind = source.KindMinute
		}
		if i >= 20 && i < 40 || i == 50 {
			x.Kind, x.Active = source.KindNone, nil
		}
	}
	at := func(i int) time.Time { return d.Load.Columns[i].Time }
	d.Load.Gaps = []source.Gap{
		{Span: source.Span{From: at(20), To: at(40)}, Reason: "the recorder did not run, or could not read the server"},
		{Span: source.Span{From: at(50), To: at(51)}, Reason: "2 sweeps could not be written"},
	}
	return d
}

// inThePast shows the span of night.
func inThePast(s *State, _ *Grid) {
	s.Span, s.Moment = night().Load.Span, *ago(9*time.Hour - time.Minute)
}

// when reads a clock time of the day of now.
func when(text string, now time.Time) (time.Time, error) {
	t, err := time.Parse("15:04", strings.TrimSpace(text))
	if err != nil {
		return t, errors.New("no time")
	}
	return time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), 0, 0, now.Location()), nil
}

// TestKeysChooseATime: each key, the span and the moment after it, in seconds before noon.
func TestKeysChooseATime(t *testing.T) {
	d := incident()
	for _, c := range []struct {
		keys             string
		from, to, moment float64 // before noon; to 0 with from 0: live
	}{
		{"<", 450, 150, -1}, {"< <", 600, 300, -1}, {"< < >", 450, 150, -1}, {"< >", 0, 0, -1}, {"< 0", 0, 0, -1}, {"< esc", 0, 0, -1},
		{">", 0, 0, -1}, {"]", 0, 0, -1}, {"right", 0, 0, -1}, {"left", 300, 0, 3}, {"[ [ [ ]", 300, 0, 6},
		{"left +", 60, 0, 3}, {"< +", 330, 270, -1}, {"< + +", 330, 270, -1}, {"< -", 900, 0, -1}, {"< - -", 3600, 0, -1},
		{"< + -", 450, 150, -1}, {"left <", 450, 150, 153}, {"3 [", 300, 0, 3}, {"2 left", 0, 0, -1},
		{"t 0 3 : 0 0 enter", 9*3600 + 150, 9*3600 - 150, 9 * 3600}, {"t 0 3 : 0 0 . . 0 3 : 1 0 enter", 9 * 3600, 9*3600 - 600, -1},
		{"t 2 3 : 0 0 enter", 13*3600 + 150, 13*3600 - 150, 13 * 3600}, {"t 1 2 : 0 0 enter", 300, 0, 0}, {"t x enter", 0, 0, -1},
		{"t 0 3 : 0 0 esc", 0, 0, -1}, {"t 0 3 : 0 0 enter t enter", 0, 0, -1}, {"t 0 3 : 1 0 . . 0 3 : 0 0 enter", 0, 0, -1},
		{"t 0 3 : 0 0 enter [", 9*3600 + 150, 9*3600 - 150, 9*3600 + 3}, {"t 1 1 : 5 9 enter", 300, 0, 60},
	} {
		s := NewState("")
		s.When = when
		press(s, d, strings.Fields(c.keys)...)
		before := func(t time.Time) float64 { return noon.Sub(t).Seconds() }
		switch {
		case c.from == 0:
			if !s.Live() || !s.Moment.IsZero() {
				t.Errorf("%s: %+v %s", c.keys, s.Span, s.Moment)
			}
		case s.Live() || before(s.Span.From) != c.from || before(s.Span.To) != c.to:
			t.Errorf("%s: %g to %g, moment %g", c.keys, before(s.Span.From), before(s.Span.To), before(s.Moment))
		case c.moment < 0 && !s.Moment.IsZero() || c.moment >= 0 && before(s.Moment) != c.moment:
			t.Errorf("%s: moment %s, %g", c.keys, s.Moment, before(s.Moment))
		}
	}
	s := NewState("/srv/pg")
	s.When = when
	press(s, d, "t", "2", "5", "enter")
	if s.Message != "no time" || !s.Live() {
		t.Errorf("%q", s.Message)
	}
	inThePast(s, nil)
	want := "pg_stat_backtrace top -D /srv/pg --batch --since 2026-03-01T02:58:00Z --until 2026-03-01T03:03:00Z --at 2026-03-01T03:01:00Z --record-dir /var/lib/psb"
	for page, more := range map[Page]string{PageLoad: "", PageBlocking: " --view blocking", PageSession: " --pid 4712"} {
		s.Page, s.PID = page, 4712
		if got := Command(s, night()); got != want+more {
			t.Errorf("%q", got)
		}
	}
	for _, page := range []Page{PageLoad, PageWho, PageBlocking, PageSession, PageFlame} { // no data yet
		s.Page = page
		for _, key := range []string{"[", "<", "-", "+", "t", "enter", "0"} {
			Handle(s, nil, key)
		}
	}
}

// historian is a source with earlier times.
type historian struct {
	asked

	span source.Span
	at   time.Time
	err  error
}

func (h *historian) Past(_ context.Context, s source.Span, at time.Time) (source.Source, error) {
	h.span, h.at = s, at
	return &asked{n: h.n}, h.err
}

// TestPastIsRead: the data of an earlier time comes from the historian. If it returns an error, the page shows the
// error in place of all data.
func TestPastIsRead(t *testing.T) {
	h := &historian{asked: asked{n: map[string]int{}}}
	s := NewState("")
	s.Page = PageWho
	inThePast(s, nil)
	d := Fetch(t.Context(), h, s, nil, noon, false, false)
	if h.span != s.Span || !h.at.Equal(s.Moment) || h.n["who"] != 1 || d.Errors["who"] != "no data" {
		t.Errorf("%+v, %v, errors %v", h.span, h.n, d.Errors)
	}
	h.err = errors.New("too long")
	if d = Fetch(t.Context(), h, s, nil, noon, false, false); h.n["who"] != 1 || d.Errors["who"] != "too long" || d.Info == nil {
		t.Errorf("%v, errors %v", h.n, d.Errors)
	}
	for page := range numPages {
		s.Page, s.PID = page, 4712
		if text := picture(page, 80, 24, d, inThePast); !strings.Contains(text, "✗ too long") {
			t.Errorf("page %d:\n%s", page, text)
		}
	}
	if d = Fetch(t.Context(), &h.asked, s, nil, noon, false, false); d.Errors["load"] != source.ErrNotRecorded.Error() {
		t.Errorf("errors %v", d.Errors)
	}
}

// TestComparison: the key v begins a comparison with a time, and ends it. The table has the largest change first, and its
// rows filter.
func TestComparison(t *testing.T) {
	d := night()
	for keys, want := range map[string]string{
		"v enter": "02:53:00", "v - 2 4 enter": "02:34:00", "v 0 1 : 0 0 enter": "01:00:00", "v enter v": "00:00:00", "v 1 3 : 0 0 enter": "00:00:00",
		"v esc": "00:00:00",
	} {
		s := NewState("")
		inThePast(s, nil)
		s.When = func(text string, now time.Time) (time.Time, error) {
			if text == "-24" {
				return now.Add(-24 * time.Minute), nil
			}
			return when(text, now)
		}
		press(s, d, strings.Fields(keys)...)
		if got := s.Compare.UTC().Format("15:04:05"); got != want || want != "00:00:00" && s.Page != PageWho {
			t.Errorf("%s: %s, want %s, message %q", keys, got, want, s.Message)
		}
	}
	who := func(rows ...source.WhoRow) *source.Who {
		return &source.Who{By: source.ByQuery, Rows: rows, Active: 3, Seconds: 300}
	}
	row := func(key string, active float64) source.WhoRow {
		return source.WhoRow{Key: key, Name: "name of " + key, Active: active}
	}
	now, before := who(row("a", 2), row("b", 1), row("c", 0.5)), who(row("b", 1.1), row("d", 1.8), row("c", 0.5))
	before.Span = source.Span{From: *ago(33 * time.Hour), To: *ago(33*time.Hour - 5*time.Minute)}
	before.Seconds = 200
	d.Comparison = source.Compare(now, before, 3)
	if x := d.Comparison; len(x.Rows) != 3 || x.More != 1 || x.Rows[0].Key != "a" || x.Rows[1].Key != "d" || x.Rows[1].Change != -1.8 || x.Rows[2].Key != "b" {
		t.Fatalf("%+v", x)
	}
	s := NewState("/srv/pg")
	inThePast(s, nil)
	s.Page, s.Compare, d.page = PageWho, before.From, PageWho
	g := NewGrid(80, 24)
	Draw(g, s, d, noon)
	for _, want := range []string{"compared with 2026-02-28 03:00:00 to 03:05:00 UTC", "2.0", "+2.0", "-1.8  name of d", "1 min 40 s without data", "and 1 more"} {
		if !strings.Contains(g.Plain(), want) {
			t.Errorf("%q is missing:\n%s", want, g.Plain())
		}
	}
	if got := Command(s, d); !strings.HasSuffix(got, "--view who --by query --compare 2026-02-28T03:00:00Z") {
		t.Errorf("%q", got)
	}
	press(s, d, "down", "enter")
	if len(s.Filter) != 1 || s.Filter[0].Key != "d" {
		t.Errorf("%+v", s.Filter)
	}
}

// TestCompareAsks: a comparison requests the data of both spans, with the filter.
func TestCompareAsks(t *testing.T) {
	h := &historian{asked: asked{n: map[string]int{}}}
	s := NewState("")
	inThePast(s, nil)
	if err := s.SetCompare(*ago(33 * time.Hour), noon); err != nil {
		t.Fatal(err)
	}
	d := Fetch(t.Context(), h, s, nil, noon, false, false)
	if d.Errors["comparison"] != "no data" || h.n["who"] != 1 {
		t.Errorf("%v, %v", d.Errors, h.n)
	}
	if err := s.SetCompare(s.Span.From, noon); err == nil {
		t.Error("a span was compared with itself")
	}
	if err := s.SetCompare(*ago(time.Minute), noon); err == nil {
		t.Error("a span was compared with the future")
	}
}

// TestGapTexts: the text of a gap says only what the samples prove.
func TestGapTexts(t *testing.T) {
	const why = "the recorder did not run, or could not read the server"
	picture := func(change func(d *Data)) string {
		d := incident()
		for i := range d.Load.Columns[:40] {
			d.Load.Columns[i].Active = nil
		}
		d.Load.Gaps = []source.Gap{{Span: source.Span{From: d.Load.From, To: noon.Add(-100 * time.Second)}, Reason: why}}
		change(d)
		g := NewGrid(160, 50)
		Draw(g, NewState("/srv/pg"), d, noon)
		return g.Plain()
	}
	before := picture(func(*Data) {})
	if !strings.Contains(before, "no data before 11:58:20") || strings.Contains(before, "░ no data") {
		t.Errorf("before the first sample:\n%s", before)
	}
	later := picture(func(d *Data) { d.Info.First = new(d.Load.From.Add(-time.Minute)) })
	if strings.Contains(later, "no data before") || !strings.Contains(later, why) {
		t.Errorf("a gap after the first sample:\n%s", later)
	}
	short := picture(func(d *Data) {
		d.Info.First = new(d.Load.From.Add(-time.Minute))
		d.Load.Gaps = append(d.Load.Gaps, source.Gap{Span: source.Span{From: noon.Add(-24 * time.Second), To: noon.Add(-19 * time.Second)}, Reason: why})
	})
	if !strings.Contains(short, "░ no data for another 5.0 s: "+why) {
		t.Errorf("a short gap beside a long one:\n%s", short)
	}
	past := func(d *Data) { d.Info.Past, d.Info.Last = true, new(noon.Add(-time.Minute)) }
	if text := picture(past); !strings.Contains(text, "(at 11:59:00: 3;") {
		t.Errorf("a moment with a sample:\n%s", text)
	}
	if text := picture(func(d *Data) { past(d); d.Sessions = nil }); strings.Contains(text, "(at 11:59:00") {
		t.Errorf("a moment without a sample:\n%s", text)
	}
}

// TestProcessorLine: the line of the processors is at the height of its number on the axis.
func TestProcessorLine(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {120, 40}, {160, 50}} {
		g := NewGrid(size[0], size[1])
		Draw(g, NewState("/srv/pg"), incident(), noon)
		for line := range strings.SplitSeq(g.Plain(), "\n") {
			if strings.HasSuffix(strings.SplitN(line, "┤", 2)[0], " 2") && !strings.Contains(line, "─") {
				t.Errorf("%v: no line of 2 processors at %q", size, line)
			}
		}
	}
}
