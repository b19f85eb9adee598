package source

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// at returns a moment some seconds after noon.
func at(second float64, sessions ...moment.Session) *moment.Moment {
	return &moment.Moment{Time: noon.Add(time.Duration(second * float64(time.Second))), Sessions: sessions}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestLoadOverTime(t *testing.T) {
	var p past
	for i := range 10 {
		p.add(at(float64(i), client(1, stateActive, ""), client(2, stateActive, "Lock:tuple"), client(3, stateIdle, "")), KindSampled, 2*time.Second)
	}
	p.add(at(20, client(1, stateActive, "")), KindSampled, 2*time.Second)
	q := Query{Span: Span{noon.Add(-10 * time.Second), noon.Add(20 * time.Second)}}
	l := p.load(q, 30, time.Second, "")
	if l.ColumnSeconds != 1 || strings.Join(l.Classes, " ") != "CPU Lock" {
		t.Fatalf("%+v", l)
	}
	for _, c := range l.Columns {
		s := c.Time.Sub(noon).Seconds()
		switch {
		case s >= -2 && s < 9:
			if len(c.Active) != 2 || !near(c.Active[0], 1) || !near(c.Active[1], 1) || c.Kind != KindSampled {
				t.Errorf("second %g: %+v", s, c)
			}
		case s >= 18 && s < 20:
			if len(c.Active) != 2 || !near(c.Active[1], 0) {
				t.Errorf("second %g: %+v", s, c)
			}
		case c.Active != nil || c.Kind != KindNone:
			t.Errorf("second %g has no sample, but %+v", s, c)
		}
	}
	// 11 s with two sessions, and 2 s with one.
	if !near(l.Seconds, 13) || !near(l.Active[0], 1) || !near(l.Active[1], 11.0/13) {
		t.Errorf("%g s, %v", l.Seconds, l.Active)
	}
}

func TestWhoDrills(t *testing.T) {
	var p past
	a, b := client(1, stateActive, "Lock:tuple"), client(2, stateActive, "IO:DataFileRead")
	a.Query, b.Query = "select 1 from a", "select 2 from a"
	b.User, b.UserOID, b.Application = "cron", 11, "nightly"
	for i := range 4 {
		p.add(at(float64(i), a, b), KindSampled, time.Second)
	}
	span := Span{noon.Add(-time.Second), noon.Add(3 * time.Second)}
	w := p.shares(Query{Span: span}, ByQuery, 0)
	if len(w.Rows) != 1 || w.Rows[0].Name != "select ? from a" || !near(w.Rows[0].Share, 100) || !near(w.Active, 2) {
		t.Fatalf("%+v", w)
	}
	if strings.Contains(w.Rows[0].Key, "select") {
		t.Errorf("the key %q has a text", w.Rows[0].Key)
	}
	f := Filter{{By: ByQuery, Key: w.Rows[0].Key}}
	w = p.shares(Query{Span: span, Filter: f}, ByUser, 0)
	if len(w.Rows) != 2 || w.Rows[1].Key != "web" || w.Rows[1].Name != "web" || !near(w.Rows[0].Share, 50) {
		t.Fatalf("%+v", w)
	}
	f = append(f, Condition{By: ByUser, Key: "cron"}) // a name, as on a command line
	w = p.shares(Query{Span: span, Filter: f}, ByEvent, 0)
	if len(w.Rows) != 1 || w.Rows[0].Name != "IO:DataFileRead" || !near(w.Rows[0].Share, 100) || !near(w.Active, 1) {
		t.Fatalf("%+v", w)
	}
	w = p.shares(Query{Span: span}, ByApplication, 1)
	if len(w.Rows) != 1 || w.Others == nil || w.Others.Count != 1 || !near(w.Others.Share, 50) {
		t.Fatalf("%+v", w)
	}
	if w = p.shares(Query{Span: span, Filter: Filter{{By: ByUser, Key: "nobody"}}}, ByUser, 0); w.Active != 0 || len(w.Rows) != 0 {
		t.Fatalf("%+v", w)
	}
}

// TestEventsOfOneName: until PostgreSQL 16, events of different types can have one name.
func TestEventsOfOneName(t *testing.T) {
	var p past
	p.add(at(0, client(1, stateActive, "LWLock:WALWrite")), KindSampled, time.Second)
	p.add(at(1, client(1, stateActive, "IO:WALWrite")), KindSampled, time.Second)
	w := p.shares(Query{Span: Span{noon.Add(-time.Second), noon.Add(time.Second)}}, ByEvent, 0)
	if len(w.Rows) != 2 || w.Rows[0].Name != "IO:WALWrite" || !near(w.Rows[0].Share, 50) || w.Rows[1].Name != "LWLock:WALWrite" {
		t.Errorf("%+v", w.Rows)
	}
}

func TestWaitsOfASession(t *testing.T) {
	var p past
	p.add(at(0, client(1, stateActive, "Lock:tuple")), KindSampled, time.Second)
	p.add(at(1, client(1, stateActive, "Lock:tuple")), KindSampled, time.Second)
	p.add(at(2, client(1, idleInTx, "Client:ClientRead")), KindSampled, time.Second)
	p.add(at(3, client(1, stateIdle, "Client:ClientRead")), KindSampled, time.Second)
	list := p.waits(1, Span{noon.Add(-time.Minute), noon.Add(time.Minute)})
	if len(list) != 2 || list[0].Event != "Lock:tuple" || list[0].To.Sub(list[0].From) != 2*time.Second ||
		list[1].Event != idleInTx || list[1].Class != "" {
		t.Fatalf("%+v", list)
	}
}

// TestPastIsBounded: many different names and sessions, and a clock that goes back.
func TestPastIsBounded(t *testing.T) {
	p := past{most: 20_000}
	for i := range 300 {
		m := at(float64(i))
		for k := range 200 {
			s := client(k+1, stateActive, "")
			s.Application = fmt.Sprintf("app %d %d", i, k)
			m.Sessions = append(m.Sessions, s)
		}
		p.add(m, KindSampled, time.Second)
	}
	if p.minuteRows > p.most || p.rows-p.minuteRows > p.most || len(p.names.list) > maxNames+5000 || len(p.samples) < 60 {
		t.Fatalf("%d samples with %d rows and %d names", len(p.samples), p.rows, len(p.names.list))
	}
	w := p.shares(Query{Span: Span{noon.Add(298 * time.Second), noon.Add(299 * time.Second)}}, ByApplication, 0)
	if len(w.Rows) != 200 || !strings.HasPrefix(w.Rows[0].Name, "app 299 ") {
		t.Fatalf("%d rows: %+v", len(w.Rows), w.Rows[:min(2, len(w.Rows))])
	}
	before := len(p.samples)
	p.add(at(100), KindSampled, time.Second)
	if n := len(p.samples); n > before || !p.samples[n-1].at.Equal(noon.Add(100*time.Second)) {
		t.Errorf("the clock went back: %d samples after %d", n, before)
	}
	long := client(1, stateActive, "")
	long.Application = strings.Repeat("ä", 10<<20)
	p.add(at(101, long), KindSampled, time.Second)
	if p.names.bytes > maxBytes {
		t.Errorf("%d bytes of names", p.names.bytes)
	}
}

func TestClassOf(t *testing.T) {
	aux := func(wait string) moment.Session {
		s := client(1, "", wait)
		s.Type = "checkpointer"
		return s
	}
	for _, c := range []struct {
		s    moment.Session
		want string
	}{
		{client(1, stateActive, ""), CPU},
		{client(1, stateActive, "Lock:tuple"), Lock},
		{client(1, stateActive, "Strange:Event"), Other},
		{client(1, stateIdle, "Client:ClientRead"), ""},
		{client(1, idleInTx, "Client:ClientRead"), ""},
		{client(1, stateDisabled, "Client:ClientRead"), ""},
		{client(1, stateDisabled, "IO:DataFileRead"), IO},
		{aux("Activity:CheckpointerMain"), ""},
		{aux("Timeout:CheckpointWriteDelay"), ""},
		{aux("IO:DataFileFlush"), IO},
		{client(1, stateActive, "Buffer:BufferCleanup"), BufferPin},
		{client(1, stateActive, "Buffer:BufferShared"), LWLock},
		{aux("Buffer:BufferShareExclusive"), LWLock},
		{aux("Buffer:BufferExclusive"), LWLock},
		{client(1, "", ""), ""},
	} {
		if got := ClassOf(&c.s); got != c.want {
			t.Errorf("%s %q %+v: %q, want %q", c.s.Type, c.s.State, c.s.Wait, got, c.want)
		}
	}
}

// TestRenamedUsers exchanges the names of two users, and gives a former name to a new user. Each user's time must be shown under
// its own name, and a key must select the user that has the name now.
func TestRenamedUsers(t *testing.T) {
	var p past
	sample := func(second float64, users ...string) {
		var sessions []moment.Session
		for i, user := range users {
			s := client(i+1, stateActive, "Lock:tuple")
			s.User, s.UserOID = user, uint32(20+i)
			sessions = append(sessions, s)
		}
		p.add(at(second, sessions...), KindSampled, time.Second)
	}
	sample(0, "anna", "ben")
	sample(1, "ben", "anna", "carl")
	sample(2, "dora", "anna", "carl")
	sample(3, "dora", "anna", "carl", "ben")
	for range 2 {
		span := Span{noon.Add(-time.Second), noon.Add(3 * time.Second)}
		w := p.shares(Query{Span: span}, ByUser, 0)
		got := map[string]float64{}
		for _, row := range w.Rows {
			if row.Key != row.Name {
				t.Errorf("the key of %s is %s", row.Name, row.Key)
			}
			got[row.Name] = math.Round(4 * row.Active)
			one := p.shares(Query{Span: span, Filter: Filter{{By: ByUser, Key: row.Key}}}, ByUser, 0)
			if len(one.Rows) != 1 || one.Rows[0].Name != row.Name {
				t.Errorf("the key %s selects %+v", row.Key, one.Rows)
			}
		}
		if want := map[string]float64{"dora": 4, "anna": 4, "carl": 3, "ben": 1}; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		p.renumber()
	}
}
