package view

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/screen/source"
)

var update = flag.Bool("update", false, "write the pictures in testdata")

// noon is the time of all data here. Pictures are in UTC.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}

func ago(d time.Duration) *time.Time {
	t := noon.Add(-d)
	return &t
}

// line returns an active session.
func line(pid int, app, state, class, event string) source.SessionLine {
	s := source.SessionLine{Class: class, Session: moment.Session{
		PID: pid, ServerPID: pid, Type: "client backend", Application: app, State: state, User: "web", Database: "shop", Client: "local",
		QueryStart: ago(75 * time.Second), StateStart: ago(75 * time.Second), XactStart: ago(2 * time.Minute),
		Query: "update stock\n   set qty = qty - 1 where item = 'bolt'",
	}}
	if event != "" {
		s.Wait = &moment.Wait{Type: class, Event: event}
	}
	return s
}

// incident returns the data of all pages.
func incident() *Data {
	root := line(4711, "cron", "idle in transaction", "", "")
	root.Wait = nil
	blocked := line(4712, "web-1", "active", source.Lock, "transactionid")
	blocked.Blockers = []moment.Blocker{{PID: 4711}}
	blocked.Phrase = "waits for a row of stock, in take(text) line 4"
	second := line(4713, "web-2", "active", source.Lock, "tuple")
	cpu := line(4714, "report", "active", source.CPU, "")
	wait := func(pid int, lock, object string) []moment.LockWait {
		return []moment.LockWait{{PID: pid, Lock: lock, Mode: "ShareLock", Object: object, Since: ago(70 * time.Second)}}
	}
	d := &Data{Time: noon, Errors: map[string]string{}, PID: 4712}
	d.Info = &source.Info{
		DataDir: "/srv/pg", Version: 15, Port: 5432, Processors: 2, MaxConnections: 100, IntervalSeconds: 1, First: ago(100 * time.Second),
		Last: new(noon), CostPercent: new(2.5), Sessions: source.Counts{Active: 3, IdleInTransaction: 1, Idle: 7, Waiting: 2}, Texts: true,
	}
	d.Load = &source.Load{
		Span: source.Span{From: noon.Add(-5 * time.Minute), To: noon}, ColumnSeconds: 5, Classes: []string{source.CPU, source.Lock},
		Active: []float64{1, 1.7}, Seconds: 100,
	}
	for i := range 60 {
		column := source.Column{Time: noon.Add(time.Duration(5*i-300) * time.Second)}
		if i >= 40 {
			column.Kind, column.Active = source.KindSampled, []float64{1, float64(i-40) / 5}
		}
		if i >= 40 && i < 45 {
			column.Kind = source.KindRecorded
		}
		d.Load.Columns = append(d.Load.Columns, column)
	}
	d.Findings = &source.Findings{Time: noon, Findings: []source.Finding{
		{Key: "a", Rule: source.RuleBlocks, Severity: source.Critical, PID: 4711, Sessions: 2, Since: *ago(70 * time.Second), Share: new(63.0),
			Text: "PID 4711 (cron, idle in transaction for 1 min 15 s) blocks 2 sessions", Detail: "last statement: update stock"},
		{Key: "b", Rule: source.RuleEvent, Severity: source.Warning, Sessions: 4, Since: *ago(20 * time.Second), AtLeast: true, Share: new(0.2),
			Text: "4 of 7 active sessions wait for IO:DataFileRead", Filter: source.Filter{{By: source.ByEvent, Key: "IO:DataFileRead"}}},
	}, Unknown: []string{"connections: max_connections was not found"}}
	d.Sessions = &source.Sessions{Time: noon, Sessions: []source.SessionLine{blocked, second, cpu, root}, More: 3}
	d.Who = &source.Who{By: source.ByQuery, Active: 2.7, Seconds: 100, Rows: []source.WhoRow{
		{Key: "1", Name: "update stock set qty = qty - ? where item = ?", Active: 1.7, Share: 63, ByClass: map[string]float64{source.Lock: 1.7}},
		{Key: "2", Name: "select count(*) from stock", Active: 1, Share: 37, ByClass: map[string]float64{source.CPU: 0.5, source.IO: 0.5}},
	}, Others: &source.WhoRow{Count: 12, Active: 0.004, Share: 0.1}}
	d.Blocking = &source.Blocking{Time: noon, Waiting: 2, Trees: 2, Nodes: []source.BlockingNode{
		{PID: 4711, Session: &root, Blocks: 2, Directly: 1},
		{Depth: 1, PID: 4712, Session: &blocked, Waits: wait(4712, "transactionid", "740"), Blocks: 1, Directly: 1},
		{Depth: 2, PID: 4713, Session: &second, Waits: wait(4713, "tuple", "5/16384 (0,1)"), MoreBlockers: 1},
		{XID: 741, GID: "transfer", Blocks: 1, Directly: 1},
		{Depth: 1, PID: 4799, Waits: wait(4799, "relation", "5/16390")},
	}}
	d.Session = &source.Session{Time: noon, Now: &blocked, Blocker: "4711 (cron, idle in transaction for 1 min 15 s) until transaction 740 ends", Blocked: []int{4713},
		Used: &source.Used{Seconds: 1, ProcessorPercent: new(98.4), ReadBytes: new(3.5e6), WrittenBytes: new(0.0)}, Waits: []source.WaitSpan{
			{Span: source.Span{From: *ago(2 * time.Minute), To: *ago(time.Minute)}, Class: source.CPU, Event: source.CPU},
			{Span: source.Span{From: *ago(time.Minute), To: noon}, Class: source.Lock, Event: "Lock:transactionid"},
		}}
	d.Flame = &source.Flame{
		Span: source.Span{From: noon.Add(-5 * time.Minute), To: noon}, Side: source.Both, OnCPU: 1, OffCPU: 1.7, Sampled: 310, Seconds: 120, LeftOut: 3,
		Nodes: []source.FlameNode{
			{Active: 2.7, OnCPU: 1}, {Depth: 1, Functions: []string{"main", "PostmasterMain", "PostgresMain"}, Active: 2.7, OnCPU: 1},
			{Depth: 2, Functions: []string{"LockAcquire", "ProcSleep", "epoll_wait"}, Active: 1.7, Self: 1.7},
			{Depth: 2, Functions: []string{"ExecutorRun"}, Active: 1, Self: 0.1, OnCPU: 1},
			{Depth: 3, Functions: []string{"pl:total(integer) line 3", "ExecSort"}, Active: 0.9, Self: 0.9, OnCPU: 0.9},
		},
	}
	d.Stack = &source.Stack{Time: noon, Engine: "blocked", Phrase: blocked.Phrase, Advice: "The other session must end its transaction.",
		Frames: []source.Frame{
			{Function: "epoll_wait", Named: true, Place: "epoll_wait.c:30"}, {Function: "postgres+0x45d95d"},
			{Function: "heap_update", Named: true, Levels: []string{`while updating tuple (0,1) in relation "stock"`}},
		}, Stop: "no caller found"}
	d.Plan = &source.Plan{Time: noon, Engine: "blocked", Whole: true, Phrase: "runs Update on stock, 0 rows processed", Levels: []source.PlanLevel{
		{Statement: "update stock", Text: "=> Update on stock  (cost=0.00..25.88 rows=0 width=0)\n     ->  Seq Scan on stock\n"},
	}}
	d.Memory = &source.Memory{Time: noon, TotalBytes: 1 << 20, FreeBytes: 100 << 10, ResidentBytes: new(int64(20 << 20)),
		Contexts: []source.MemorySum{{Name: "CacheMemoryContext", Contexts: 1, TotalBytes: 512 << 10}, {Name: "index info", Contexts: 89, TotalBytes: 160 << 10}}}
	return d
}

// picture returns a page as text.
func picture(p Page, width, height int, d *Data, change func(*State, *Grid)) string {
	s := NewState("/srv/pg")
	s.Page, s.PID = p, 4712
	d.page = p
	g := NewGrid(width, height)
	if change != nil {
		change(s, g)
	}
	Draw(g, s, d, noon)
	return g.String()
}

// TestSmallest expects the findings on the smallest screen, and no text over another one.
func TestSmallest(t *testing.T) {
	for _, size := range [][2]int{{smallest, fewest}, {60, 12}} {
		got := picture(PageLoad, size[0], size[1], incident(), nil)
		if !strings.Contains(got, "findings 2") || !strings.Contains(got, "PID 4711") || !strings.Contains(got, " 5        ") || !strings.Contains(got, "? help") {
			t.Errorf("%dx%d:\n%s", size[0], size[1], got)
		}
	}
}

// TestPictures compares pages with the pictures in testdata. Run it with -update, look at the pictures, and commit them.
func TestPictures(t *testing.T) {
	mono := func(_ *State, g *Grid) { g.Mono, g.ASCII = true, true }
	for name, text := range map[string]string{
		"load-80x24":      picture(PageLoad, 80, 24, incident(), nil),
		"load-ascii":      picture(PageLoad, 80, 24, incident(), mono),
		"load-160x50":     picture(PageLoad, 160, 50, incident(), nil),
		"who-80x24":       picture(PageWho, 80, 24, incident(), func(s *State, _ *Grid) { s.Filter = source.Filter{{By: source.ByUser, Key: "10", Name: "web"}} }),
		"blocking-80x24":  picture(PageBlocking, 80, 24, incident(), nil),
		"blocking-160x50": picture(PageBlocking, 160, 50, incident(), nil),
		"session-80x24":   picture(PageSession, 80, 24, incident(), nil),
		"session-160x50":  picture(PageSession, 160, 50, incident(), nil),
		"flame-80x24":     picture(PageFlame, 80, 24, incident(), nil),
		"flame-ascii":     picture(PageFlame, 80, 24, incident(), mono),
		"past-80x24":      picture(PageLoad, 80, 24, night(), inThePast),
		"past-ascii":      picture(PageLoad, 80, 24, night(), func(s *State, g *Grid) { inThePast(s, g); mono(s, g) }),
		"past-160x50":     picture(PageLoad, 160, 50, night(), inThePast),
		"help-80x24":      picture(PageLoad, 80, 24, incident(), func(s *State, _ *Grid) { s.Help = true }),
	} {
		file := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != text {
			t.Errorf("%s differs:\n%s", name, text)
		}
	}
}

// TestErrorsInPlaceOfData: no pane is empty without a reason.
func TestErrorsInPlaceOfData(t *testing.T) {
	names := []string{"load", "findings", "sessions", "who", "blocking", "session", "stack", "plan", "memory"}
	for page, want := range map[Page][]string{
		PageLoad: {"load", "findings", "sessions"}, PageWho: {"who"}, PageBlocking: {"blocking"}, PageSession: {"session"},
	} {
		d := &Data{Time: noon, Info: &source.Info{Error: "permission denied", IntervalSeconds: 1, Last: ago(time.Minute)}, Errors: map[string]string{}}
		for _, name := range names {
			d.Errors[name] = "cannot read " + name
		}
		d.PID = 4712
		text := picture(page, 80, 24, d, nil)
		for _, name := range want {
			if !strings.Contains(text, "✗ cannot read "+name) {
				t.Errorf("page %d lacks the error of %s:\n%s", page, name, text)
			}
		}
		if !strings.Contains(text, "✗ permission denied") || !strings.Contains(text, "✗ 1 min old") {
			t.Errorf("page %d lacks the error or the age of the data:\n%s", page, text)
		}
	}
	d := incident()
	d.Stack, d.Errors = nil, map[string]string{"stack": "the process has ended"}
	if text := picture(PageSession, 80, 24, d, nil); !strings.Contains(text, "✗ the process has ended") {
		t.Errorf("%s", text)
	}
	if text := picture(PageLoad, 20, 5, d, nil); !strings.HasPrefix(text, "too small: 20x5") {
		t.Errorf("%q", text)
	}
}

// TestHostileTexts: names and statements with escapes, bidirectional text, wide and combining characters, and very long texts. Each
// cell must have one harmless character, at every size.
func TestHostileTexts(t *testing.T) {
	hostile := []string{
		"\x1b[2J\x1b]0;title\x07\x1b]52;c;QQ==\x07\x1bP\x1b\\\x9b31m\r\n\t\b\x00\x7f", "\u202eabc\u2066\u200b\u200d\ufeff\u2028\u00ad",
		"中文名字データベース", "e" + strings.Repeat("\u0301", 500), "👨\u200d👩\u200d👧\u200d👦🇩🇪🏳\ufe0f", "\xff\xfe\xc3(", strings.Repeat("w", 1<<20),
		strings.Repeat("中", 100<<10), "<script>alert(1)</script>", "\U000e0041\U000f0000\u3164\u115f",
	}
	for _, text := range hostile {
		d := incident()
		for _, s := range []*source.SessionLine{&d.Sessions.Sessions[0], d.Session.Now, d.Blocking.Nodes[1].Session} {
			s.Application, s.User, s.Database, s.Query, s.Phrase, s.Client, s.State = text, text, text, text, text, text, text
			s.Wait = &moment.Wait{Type: text, Event: text}
		}
		d.Blocking.Nodes[3].GID = text
		d.Blocking.Nodes[1].Waits[0].Object, d.Blocking.Nodes[1].Waits[0].Unknown = text, text
		d.Findings.Findings[0].Text, d.Findings.Findings[0].Detail, d.Findings.Unknown = text, text, []string{text}
		d.Who.Rows[0].Name, d.Info.Missing = text, []string{text, text}
		d.Stack.Phrase, d.Stack.Frames[0].Function, d.Stack.Frames[2].Levels[0], d.Stack.Frames[1].Place = text, text, text, text
		d.Plan.Levels[0].Text, d.Plan.Levels[0].Statement, d.Memory.Contexts[0].Name = text, text, text
		for _, size := range [][2]int{{80, 24}, {161, 50}, {41, 11}} {
			for p := range numPages {
				for _, ascii := range []bool{false, true} {
					s := NewState("/srv/" + text)
					s.Page, s.PID, d.page = p, 4712, p
					s.Filter = source.Filter{{By: source.ByApplication, Key: text, Name: text}}
					s.Search = text[:min(len(text), 100)]
					if p == PageLoad {
						s.Message = Command(s, d)[:min(len(Command(s, d)), 500)]
					}
					g := NewGrid(size[0], size[1])
					g.ASCII = ascii
					Draw(g, s, d, noon)
					checkCells(t, g, ascii)
				}
			}
		}
	}
}

func checkCells(t *testing.T, g *Grid, ascii bool) {
	t.Helper()
	for y := range g.Height {
		for x := range g.Width {
			switch r := g.At(x, y).Rune; {
			case r == 0:
				if x == 0 || g.At(x-1, y).Rune < 0x1100 {
					t.Fatalf("cell %d,%d belongs to no wide character", x, y)
				}
			case ascii && r > unicode.MaxASCII, unicode.In(r, unicode.C, unicode.M, unicode.Zl, unicode.Zp), r == unicode.ReplacementChar:
				t.Fatalf("cell %d,%d has %U", x, y, r)
			}
		}
	}
}

// press sends keys to a state.
func press(s *State, d *Data, keys ...string) (last Action) {
	for _, k := range keys {
		last = Handle(s, d, k)
		d.page = s.Page
	}
	return last
}

func TestKeysReachTheCause(t *testing.T) {
	d := incident()
	s := NewState("/srv/my pg")
	press(s, d, "enter") // the first finding is a tree
	if s.Page != PageBlocking || s.selected(d) != "node:4711" {
		t.Fatalf("page %d, %q", s.Page, s.selected(d))
	}
	press(s, d, "down", "enter")
	if s.Page != PageSession || s.PID != 4712 {
		t.Fatalf("page %d, PID %d", s.Page, s.PID)
	}
	if got := Command(s, d); got != "pg_stat_backtrace capture --nonstop 4712" {
		t.Errorf("%q", got)
	}
	if press(s, d, "tab"); Command(s, d) != "pg_stat_backtrace plan --nonstop 4712" {
		t.Errorf("%q", Command(s, d))
	}
	press(s, d, "c")
	if !s.Held {
		t.Error("the capture is not kept")
	}
	press(s, d, "esc", "esc")
	if s.Held || s.Page != PageBlocking {
		t.Errorf("page %d", s.Page)
	}
	if got := Command(s, d); got != "pg_stat_backtrace activity -D '/srv/my pg' --tree" {
		t.Errorf("%q", got)
	}
	press(s, d, "1", "down", "enter") // an event: its sessions
	if s.Page != PageWho || len(s.Filter) != 1 || s.Filter[0].By != source.ByEvent {
		t.Fatalf("page %d, %+v", s.Page, s.Filter)
	}
	press(s, d, "down", "enter")
	if len(s.Filter) != 2 || s.Filter[1] != (source.Condition{By: source.ByQuery, Key: "2", Name: d.Who.Rows[1].Name}) || s.By != source.ByUser {
		t.Fatalf("%+v by %s", s.Filter, s.By)
	}
	if got := Command(s, d); got != "pg_stat_backtrace top -D '/srv/my pg' --batch --view who --by user --filter 'event=IO:DataFileRead' --filter 'query=2'" {
		t.Errorf("%q", got)
	}
	press(s, d, "backspace")
	if len(s.Filter) != 1 || s.By != source.ByQuery || s.selected(d) != "who:2" {
		t.Errorf("%+v by %s, %q", s.Filter, s.By, s.selected(d))
	}
	press(s, d, "r", "3", "down", "enter", "5") // from a session: its stacks
	if s.Page != PageFlame || len(s.Filter) != 1 || s.Filter[0].Key != "4713" {
		t.Errorf("page %d, %+v", s.Page, s.Filter)
	}
	press(s, d, "tab", "/", "s", "o", "r", "t", "enter")
	if got := Command(s, d); got != "pg_stat_backtrace top -D '/srv/my pg' --batch --view flame --side on-cpu --filter 'session=4713'" ||
		!strings.HasSuffix(s.selected(d), "line 3") {
		t.Errorf("%q, selected %q", got, s.selected(d))
	}
	press(s, d, "r", "1", "/", "R", "e", "p", "o", "r", "t", "enter")
	if s.selected(d) != "session:4714" || s.typing != typingNothing {
		t.Errorf("found %q", s.selected(d))
	}
	press(s, d, "/", "q", "x", "q", "enter")
	if s.Message != "Not found: qxq" {
		t.Errorf("%q", s.Message)
	}
	if press(s, d, "?"); !s.Help {
		t.Error("no help")
	}
	if a := press(s, d, "x", "q"); a != Quit || s.Help {
		t.Errorf("%d", a)
	}
	for _, key := range []string{"up", "pgdn", "end", "home", "enter", "tab", "left", "+", "-", " ", "n", "N", "y", "backspace", "F", "", "é"} {
		for p := range numPages { // no data yet
			empty := NewState("")
			empty.Page = p
			Handle(empty, nil, key)
			Handle(empty, &Data{}, key)
		}
	}
}

// TestSelectionFollowsItsRow: the order of the rows changes with each sample.
func TestSelectionFollowsItsRow(t *testing.T) {
	d := incident()
	s := NewState("")
	press(s, d, "down", "down", "down", "down") // the third session
	if s.selected(d) != "session:4714" {
		t.Fatalf("%q", s.selected(d))
	}
	list := d.Sessions.Sessions
	list[0], list[2] = list[2], list[0]
	if s.selected(d) != "session:4714" {
		t.Errorf("%q", s.selected(d))
	}
	d.Sessions.Sessions = nil
	if s.selected(d) != "finding:b" {
		t.Errorf("%q", s.selected(d))
	}
}

// asked is a source that counts the calls of its methods.
type asked struct {
	source.Source

	n map[string]int
}

func (a *asked) Info(context.Context) (*source.Info, error) {
	a.n["info"]++
	return &source.Info{}, nil
}
func (a *asked) Who(context.Context, source.Query, source.By, int) (*source.Who, error) {
	a.n["who"]++
	return nil, errors.New("no data")
}

func (a *asked) Session(context.Context, int, source.Span) (*source.Session, error) {
	a.n["session"]++
	return &source.Session{Now: &source.SessionLine{}}, nil
}

func (a *asked) Stack(context.Context, int) (*source.Stack, error) {
	a.n["stack"]++
	return &source.Stack{}, nil
}
func (a *asked) Plan(context.Context, int) (*source.Plan, error) {
	a.n["plan"]++
	return &source.Plan{}, nil
}
func (a *asked) Memory(context.Context, int) (*source.Memory, error) {
	a.n["memory"]++
	return &source.Memory{Time: noon}, nil
}

// TestOnlyVisibleDataIsRead: a page requests only its own data, and a held capture is not repeated.
func TestOnlyVisibleDataIsRead(t *testing.T) {
	a := &asked{n: map[string]int{}}
	s := NewState("")
	s.Page = PageWho
	d := Fetch(t.Context(), a, s, nil, noon, false, false)
	if len(a.n) != 2 || a.n["who"] != 1 || d.Errors["who"] != "no data" {
		t.Fatalf("%v %v", a.n, d.Errors)
	}
	s.Page, s.PID = PageSession, 1
	d = Fetch(t.Context(), a, s, d, noon, false, false)
	if a.n["stack"] != 1 || a.n["plan"] != 0 || a.n["memory"] != 0 {
		t.Fatalf("%v", a.n)
	}
	Handle(s, d, "c")
	for range 3 {
		d = Fetch(t.Context(), a, s, d, noon, false, false)
	}
	if a.n["stack"] != 2 || d.Stack == nil {
		t.Fatalf("a held stack was read again: %v", a.n)
	}
	Handle(s, d, "tab")
	for range 3 {
		d = Fetch(t.Context(), a, s, d, noon, false, false)
	}
	if a.n["plan"] != 1 || d.Plan == nil || d.Stack == nil {
		t.Fatalf("%v", a.n)
	}
	Handle(s, d, "tab")
	Handle(s, d, "esc")
	for range 3 {
		d = Fetch(t.Context(), a, s, d, noon, false, false)
	}
	if a.n["memory"] != 1 || d.Memory == nil {
		t.Fatalf("%v", a.n)
	}
}

// TestMeasurement: the keys p, w and i run a command if it can work. Otherwise they show the reason why it cannot.
func TestMeasurement(t *testing.T) {
	live := func() *State { s := NewState("/srv/pg data"); s.PID = 7; return s }
	now := &Data{Session: &source.Session{Now: &source.SessionLine{Session: moment.Session{PID: 4711, ServerPID: 7}}}}
	for _, c := range []struct {
		name    string
		change  func(s *State)
		key     string
		want    string
		message string
	}{
		{"server", func(*State) {}, "p", "profile -D /srv/pg data --mode wall --duration 10s", ""},
		{"session", func(s *State) { s.Page = PageSession }, "p", "profile --mode wall --duration 10s 4711", ""},
		{"waits", func(s *State) { s.Page = PageSession }, "w", "waits --trace 4711 --duration 10s", ""},
		{"waits of all", func(*State) {}, "w", "", "w works in the view Session."},
		{"incident", func(*State) {}, "i", "incident take -D /srv/pg data", ""},
		{"elsewhere", func(s *State) { s.Connect = "http://db" }, "i", "", "i works in top on the server's host."},
		{"past", func(s *State) { s.Span = source.Span{From: time.Unix(1, 0), To: time.Unix(2, 0)} }, "p", "", "is of now"},
	} {
		s := live()
		c.change(s)
		action := Handle(s, now, c.key)
		if got := strings.Join(Measurement(s, now), " "); got != c.want || (action == Run) != (c.want != "") ||
			!strings.Contains(s.Message, c.message) {
			t.Errorf("%s: action %d, %q, %q", c.name, action, got, s.Message)
		}
	}
	hangs := &Data{page: PageSession, PID: 7, Session: &source.Session{Time: noon, Now: now.Session.Now, Waits: []source.WaitSpan{
		{Span: source.Span{From: *ago(8 * time.Minute), To: noon}, Class: source.Lock, Event: "Lock:tuple"},
	}}}
	hangs.Session.Now.Class, hangs.Session.Now.Wait = source.Lock, &moment.Wait{Type: source.Lock, Event: "tuple"}
	s := live()
	s.Page = PageSession
	if action := Handle(s, hangs, "w"); action != None || !strings.Contains(s.Message, "Lock:tuple goes on for at least 8 min") {
		t.Errorf("a wait without an end: action %d, %q", action, s.Message)
	}
	if action := Handle(s, hangs, "w"); action != Run {
		t.Errorf("w again: action %d, %q", action, s.Message)
	}
	other := source.SessionLine{Session: moment.Session{PID: 4712, ServerPID: 8}}
	listed := &Data{page: PageLoad, Sessions: &source.Sessions{Sessions: []source.SessionLine{other, *now.Session.Now}}}
	blocked := &Data{page: PageBlocking, Blocking: &source.Blocking{Nodes: []source.BlockingNode{{XID: 9}, {PID: 7, Session: now.Session.Now}}}}
	const reading = "The session is being read: press the key again."
	for _, c := range []struct {
		name    string
		d       *Data
		want    string
		message string
	}{
		{"ended", &Data{page: PageSession, PID: 7}, "", "The process has ended."},
		{"ended, with earlier waits", &Data{page: PageSession, PID: 7, Session: &source.Session{}}, "", "The process has ended."},
		{"no answer", &Data{page: PageSession, PID: 7, Errors: map[string]string{"session": "x"}}, "", "The session could not be read: x"},
		{"no data", nil, "", reading},
		{"data of another process", &Data{page: PageSession, PID: 8, Session: &source.Session{Now: &other}}, "", reading},
		{"data of the list", listed, "waits --trace 4711 --duration 10s", ""},
		{"data of the trees", blocked, "waits --trace 4711 --duration 10s", ""},
	} {
		s := live()
		s.Page = PageSession
		Handle(s, c.d, "w")
		if got := strings.Join(Measurement(s, c.d), " "); got != c.want || s.Message != c.message {
			t.Errorf("directly after Enter, %s: %q, %q", c.name, got, s.Message)
		}
	}
}

// TestMouse: a click selects the row below it, the second one opens it, and the wheel moves.
func TestMouse(t *testing.T) {
	d, s, now := incident(), NewState(""), time.Now()
	var clicks Clicks
	double := func(key string) bool { return clicks.Double(key, now) }
	draw := func() *Grid {
		g := NewGrid(120, 40)
		Draw(g, s, d, d.Time)
		return g
	}
	lineOf := func(g *Grid, text string) int {
		t.Helper()
		for y, line := range strings.Split(g.Plain(), "\n") {
			if strings.Contains(line, text) {
				return y
			}
		}
		t.Fatalf("no line has %q:\n%s", text, g.Plain())
		return -1
	}
	g := draw()
	var rows []int
	for y := range g.Height {
		if g.KeyAt(y) != "" {
			rows = append(rows, y)
		}
	}
	if len(rows) < 3 {
		t.Fatalf("selectable lines: %v\n%s", rows, g.Plain())
	}
	for _, y := range rows {
		clicks = Clicks{}
		if action := Point(s, d, g, Event{Key: Click, Mouse: true, Y: y}, double); action != None || s.selected(d) != g.KeyAt(y) {
			t.Errorf("line %d: action %v, %q is selected", y, action, s.selected(d))
		}
	}
	before := s.selected(d)
	for _, y := range []int{0, g.Height - 1, -1, 1000} { // the heading, the keys, outside
		if action := Point(s, d, g, Event{Key: Click, Mouse: true, Y: y}, double); action != None || s.selected(d) != before {
			t.Errorf("line %d: action %v, %q is selected", y, action, s.selected(d))
		}
	}
	Point(s, d, g, Event{Key: WheelUp, Mouse: true}, double)
	if s.selected(d) == before {
		t.Error("the wheel does not move the selection")
	}
	press(s, d, "3")
	g = draw()
	y := lineOf(g, "└─")
	first := Point(s, d, g, Event{Key: Click, Mouse: true, Y: y}, double)
	now = now.Add(doubleClick + 1)
	late := Point(s, d, g, Event{Key: Click, Mouse: true, Y: y}, double)
	now = now.Add(doubleClick)
	if second := Point(s, d, g, Event{Key: Click, Mouse: true, Y: y}, double); first != None || late != None || second != Refresh || s.Page != PageSession || s.PID == 0 {
		t.Errorf("actions %v, %v, %v; page %v of process %d", first, late, second, s.Page, s.PID)
	}
	Point(s, d, draw(), Event{Key: WheelDown, Mouse: true}, double)
	if s.Scroll != wheelLines {
		t.Errorf("the panel begins at line %d", s.Scroll)
	}
}

// TestPreparedTransactions: a prepared transaction has its name, its number, or neither.
func TestPreparedTransactions(t *testing.T) {
	for want, n := range map[string]source.BlockingNode{`prepared "transfer"`: {XID: 741, GID: "transfer"}, "prepared 741": {XID: 741}, "prepared transaction": {}} {
		if got := nodeName(&n); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFindingOfAPreparedTransaction: Enter on the finding selects its row on the page Blocking. Another one comes first.
func TestFindingOfAPreparedTransaction(t *testing.T) {
	d := incident()
	d.Blocking.Nodes = append(d.Blocking.Nodes, source.BlockingNode{XID: 742, Blocks: 1, Directly: 1})
	d.Findings.Findings[0].Key, d.Findings.Findings[0].PID = source.RuleBlocks+"-0-742", 0
	s := NewState("")
	press(s, d, "enter")
	if s.Page != PageBlocking || s.selected(d) != "node:0-742" {
		t.Errorf("page %d, %q", s.Page, s.selected(d))
	}
}

// TestPanelScrolls: the keys and the wheel begin at the line that the panel shows, also after its end.
func TestPanelScrolls(t *testing.T) {
	d := incident()
	s := NewState("/srv/pg")
	s.Page, s.PID = PageSession, 4712
	draw := func() *Grid {
		g := NewGrid(120, 40)
		Draw(g, s, d, noon)
		return g
	}
	draw()
	lines := len(broken(panelLines(s.Panel, d), s.panelWidth))
	for _, c := range []struct {
		name string
		move func()
		want int
	}{
		{"end", func() { press(s, d, "end") }, lines - 1},
		{"up", func() { press(s, d, "up") }, lines - 2},
		{"page down", func() { press(s, d, "pgdn", "pgdn") }, lines - 1},
		{"wheel", func() { Point(s, d, draw(), Event{Key: WheelDown, Mouse: true}, nil) }, lines - 1},
		{"wheel up", func() { Point(s, d, draw(), Event{Key: WheelUp, Mouse: true}, nil) }, lines - 1 - wheelLines},
		{"home", func() { press(s, d, "home") }, 0},
		{"shorter", func() { press(s, d, "end"); d.Stack.Frames = d.Stack.Frames[:1]; press(s, d, "up") }, len(broken(panelLines(s.Panel, shorter()), s.panelWidth)) - 2},
	} {
		if c.move(); s.Scroll != c.want {
			t.Errorf("%s: the panel begins at line %d, want %d", c.name, s.Scroll, c.want)
		}
	}
}

// shorter has fewer frames than incident.
func shorter() *Data {
	d := incident()
	d.Stack.Frames = d.Stack.Frames[:1]
	return d
}

// TestDrillOnlyIntoItsTable: Enter before the table of another property has come adds no condition, and opens no process.
func TestDrillOnlyIntoItsTable(t *testing.T) {
	const reading = "The table is being read: press the key again."
	d := incident()
	s := NewState("/srv/pg")
	press(s, d, "2", "enter")
	if press(s, d, "enter"); len(s.Filter) != 1 || s.By != source.ByEvent || s.Message != reading {
		t.Errorf("%+v by %s, %q", s.Filter, s.By, s.Message)
	}
	for s.By != source.BySession {
		press(s, d, "tab")
	}
	if press(s, d, "enter"); s.Page != PageWho || s.PID != 0 || s.Message != reading {
		t.Errorf("page %d of process %d, %q", s.Page, s.PID, s.Message)
	}
	d.Who.By = source.BySession
	d.Who.Rows[0].Key = "4712-5"
	if press(s, d, "enter"); s.Page != PageSession || s.PID != 4712 {
		t.Errorf("page %d of process %d, %q", s.Page, s.PID, s.Message)
	}
	s.Page, d.Who.Rows[0].Key = PageWho, "0-0"
	if press(s, d, "enter"); s.Page != PageWho || s.Message != "Means over minutes have no process ids: choose a shorter time." {
		t.Errorf("page %d, %q", s.Page, s.Message)
	}
	s.By, s.Compare = source.ByUser, noon.Add(-time.Hour)
	d.Comparison = &source.Comparison{By: source.ByQuery, Rows: []source.Change{{Key: "1"}}}
	if press(s, d, "enter"); len(s.Filter) != 1 || s.Message != reading {
		t.Errorf("%+v, %q", s.Filter, s.Message)
	}
}

// TestStatementWithoutIDIsCopied: the key of such a statement is valid in one process only, so the command has the text.
func TestStatementWithoutIDIsCopied(t *testing.T) {
	d := incident()
	d.Who.Rows[0].Key = "text-0123456789abcdef"
	s := NewState("/srv/pg")
	press(s, d, "2", "enter")
	const top = "pg_stat_backtrace top "
	if got := Command(s, d); got != top+"-D /srv/pg --batch --view who --by event --filter 'query=update stock set qty = qty - ? where item = ?'" {
		t.Errorf("%s", got)
	}
	s.Connect = "http://db" // the worker made the key, and knows it
	if got := Command(s, d); got != top+"--connect http://db --token-file FILE --batch --view who --by event --filter 'query=text-0123456789abcdef'" {
		t.Errorf("%s", got)
	}
}

// TestAxisOfSmallLoads: marks are round numbers, not sums of fractions.
func TestAxisOfSmallLoads(t *testing.T) {
	d := incident()
	d.Info.Processors = 1
	for i := range d.Load.Columns {
		d.Load.Columns[i].Active = []float64{0.3, 0.4}
	}
	text := picture(PageLoad, 160, 60, d, nil)
	if !strings.Contains(text, " 0.6┤") || strings.Contains(text, "0.600") {
		t.Errorf("\n%s", text)
	}
}

// TestTreesOfOtherWaits: a wait for a standby or a buffer pin is not called a wait for a lock.
func TestTreesOfOtherWaits(t *testing.T) {
	for event, want := range map[string]string{"Lock:tuple": "1 process waits for locks, in 1 tree", "IPC:SyncRep": "1 process waits, in 1 tree"} {
		class, name, _ := strings.Cut(event, ":")
		s := line(5, "web", "active", class, name)
		d := incident()
		d.Blocking = &source.Blocking{Time: noon, Waiting: 1, Trees: 1, Nodes: []source.BlockingNode{
			{PID: 4, Blocks: 1}, {Depth: 1, PID: 5, Session: &s, Waits: []moment.LockWait{{PID: 5, Lock: name, Mode: "x"}}},
		}}
		state := NewState("/srv/pg")
		state.Page = PageBlocking
		g := NewGrid(120, 40)
		Draw(g, state, d, noon)
		if !strings.Contains(g.Plain(), want) {
			t.Errorf("%s: no %q:\n%s", event, want, g.Plain())
		}
	}
}

// TestFirstSamples: without findings, the screen says that some rules need more samples.
func TestFirstSamples(t *testing.T) {
	const more = "some rules need 10 s of samples, 2.0 s so far"
	for sampled, want := range map[time.Duration]bool{2 * time.Second: true, 10 * time.Second: false} {
		d := incident()
		d.Findings.Findings, d.Info.First = nil, ago(sampled)
		g := NewGrid(120, 40)
		Draw(g, NewState("/srv/pg"), d, noon)
		if strings.Contains(g.Plain(), more) != want || !strings.Contains(g.Plain(), "no findings") {
			t.Errorf("after %s:\n%s", sampled, g.Plain())
		}
	}
}

// TestWaysBack: Esc on the page Load returns to the list of servers, and Esc ends a kept stack. The footer names both.
func TestWaysBack(t *testing.T) {
	footer := func(s *State) string {
		g := NewGrid(160, 40)
		Draw(g, s, incident(), noon)
		return g.Plain()
	}
	s := NewState("/srv/pg")
	if action := Handle(s, incident(), "esc"); action == Quit || !strings.Contains(footer(s), "q quit") {
		t.Errorf("one server: action %d", action)
	}
	s.Listed = true
	if action := Handle(s, incident(), "esc"); action != Quit || !strings.Contains(footer(s), "q list") {
		t.Errorf("from the list: action %d", action)
	}
	s.Page, s.PID = PageSession, 4712
	Handle(s, incident(), "c")
	s.Message = ""
	if text := footer(s); !strings.Contains(text, "Esc live stack") || !strings.Contains(text, "stack kept") || strings.Contains(text, "● live") {
		t.Errorf("a kept stack:\n%s", text)
	}
	if Handle(s, incident(), "esc"); s.Held || s.Page != PageSession {
		t.Error("Esc does not show the live stack")
	}
}

// TestComparisonIsCopied: the command of a comparison has both ends of the chosen span.
func TestComparisonIsCopied(t *testing.T) {
	s := NewState("/srv/pg")
	s.Page, s.Compare, s.Program = PageWho, noon.Add(-10*time.Minute), "/opt/my tools/psb"
	const want = "'/opt/my tools/psb' top -D /srv/pg --batch --since 2026-03-01T11:55:00Z --until 2026-03-01T12:00:00Z " +
		"--view who --by query --compare 2026-03-01T11:50:00Z"
	if got := Command(s, incident()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
