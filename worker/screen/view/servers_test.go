package view

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"pg_stat_backtrace/worker/screen/source"
)

func servers() []Server {
	critical := &source.Findings{Time: noon, Findings: []source.Finding{{Key: "a", Severity: source.Critical, Text: "PID 1 blocks", Since: noon}}}
	return []Server{
		{Name: "/b", Active: new(7.0), AgeSeconds: new(1.0), Info: &source.Info{Version: 18, Last: new(noon)}, Findings: &source.Findings{}},
		{Name: "/a", Active: new(2.0), AgeSeconds: new(90.0), Info: &source.Info{Version: 15, Last: new(noon)}, Findings: critical},
		{Name: "/c", Titles: &Titles{Active: 3, Idle: 4}, Error: "not permitted", Remedy: "sudo pg_stat_backtrace top"},
	}
}

func TestServersOrder(t *testing.T) {
	t.Parallel()
	for order, want := range map[string]string{"findings": "/a/b/c", "load": "/b/c/a", "age": "/c/a/b", "name": "/a/b/c"} {
		list, got := servers(), ""
		(&ServersState{Order: order}).Sort(list)
		for i := range list {
			got += list[i].Name
		}
		if got != want {
			t.Errorf("%s: %s, want %s", order, got, want)
		}
	}
	s, list := &ServersState{Order: "name"}, servers()
	s.Sort(list)
	for _, key := range []string{"j", "down", "end", "up", "j"} {
		s.Handle(list, key)
	}
	s.Handle(list, "tab")
	s.Sort(list) // the selection stays with its server
	if x := s.Selected(list); x.Name != "/c" || ServerCommand(x) != "sudo pg_stat_backtrace top" || s.Order != "findings" {
		t.Errorf("%+v, %+v", s, x)
	}
	if action, _ := s.Handle(list, "esc"); action == Quit || s.Message == "" {
		t.Errorf("Esc: %v, %q", action, s.Message)
	}
	s.Handle(list, "?")
	g := NewGrid(80, 24)
	if DrawServers(g, s, list, 0, noon); !strings.Contains(g.Plain(), "how old these figures are") || !strings.Contains(g.Plain(), "order: findings") {
		t.Errorf("no help in\n%s", g.Plain())
	}
	if action, _ := s.Handle(list, "esc"); action == Quit || s.help {
		t.Errorf("Esc in the help: %v", action)
	}
	if _, open := s.Handle(nil, "enter"); open || s.Selected(nil) != nil {
		t.Error("an empty list has a server")
	}
}

// TestServersHostile: names and errors of other users change nothing but their own cells, on screens of all sizes.
func TestServersHostile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"\x1b[2J\x1b]52;c;QQ==\x07\r\n\x00", "\u202eabc\u200b", "中文" + strings.Repeat("名", 300), strings.Repeat("w", 1<<20), "\xff\xfe"} {
		list := servers()
		list = append(list, Server{Name: text, Error: text, Remedy: text, Findings: &source.Findings{Findings: []source.Finding{{Text: text}}}})
		for _, size := range [][2]int{{0, 0}, {40, 10}, {80, 24}, {200, 60}} {
			for _, key := range []string{"home", "end"} {
				s, g := &ServersState{}, NewGrid(size[0], size[1])
				s.Handle(list, key)
				DrawServers(g, s, list, 3, noon.Add(time.Second))
				if strings.ContainsFunc(g.Plain(), func(r rune) bool { return r != '\n' && (unicode.In(r, unicode.C) || r == unicode.ReplacementChar) }) {
					t.Errorf("%q", g.Plain())
				}
			}
		}
	}
}

// TestServersStay: while the user presses keys, rows keep their places, and the selection stays at its server.
func TestServersStay(t *testing.T) {
	t.Parallel()
	names := func(list []Server) (all string) {
		for i := range list {
			all += list[i].Name
		}
		return all
	}
	s, before := &ServersState{Order: "load"}, servers()
	s.Sort(before)
	s.Handle(before, "y") // any key selects the server at the cursor
	after := append(servers(), Server{Name: "/new", Active: new(99.0)})
	after[2].Titles.Active = 50
	s.Sort(after)
	if got := names(after); got != "/new/c/b/a" {
		t.Errorf("the order by load: %s", got)
	}
	KeepOrder(after, before)
	if got := names(after); got != "/b/c/a/new" {
		t.Errorf("the order while the user presses keys: %s", got)
	}
	s.Sort(after)
	if x := s.Selected(after); x.Name != "/b" {
		t.Errorf("the selection has moved to %s", x.Name)
	}
}

// TestServersColumns: a long age does not touch the clients, and a server that has ended has no figures.
func TestServersColumns(t *testing.T) {
	t.Parallel()
	info := &source.Info{Last: new(noon), MaxConnections: 40, Sessions: source.Counts{Clients: 3}}
	list := []Server{{Name: "/a", AgeSeconds: new(622.0), Info: info}}
	g := NewGrid(80, 24)
	if DrawServers(g, &ServersState{}, list, 0, noon); !strings.Contains(g.Plain(), "3/40  10 min 22 s") {
		t.Errorf("columns:\n%s", g.Plain())
	}
	info.Ended, list[0].Ended = true, new(noon)
	g = NewGrid(80, 24)
	if DrawServers(g, &ServersState{}, list, 0, noon); strings.Contains(g.Plain(), "3/40") || !strings.Contains(g.Plain(), "   ended  /a") {
		t.Errorf("a server that has ended:\n%s", g.Plain())
	}
	for _, order := range Orders() {
		list := servers()
		list[1].Ended = new(noon)
		if (&ServersState{Order: order}).Sort(list); list[2].Name != "/a" {
			t.Errorf("by %s, a server that has ended is not the last one: %+v", order, list)
		}
	}
}

// TestServersSearch selects servers by their names, properties and findings.
func TestServersSearch(t *testing.T) {
	t.Parallel()
	s, list := &ServersState{Order: "name"}, servers()
	s.Sort(list)
	press := func(keys ...string) string {
		for _, key := range keys {
			s.Handle(list, key)
		}
		return s.Selected(list).Name
	}
	press("/", "P", "i", "d", "q")
	g := NewGrid(80, 24)
	if DrawServers(g, s, list, 0, noon); !strings.Contains(g.Plain(), "\n /Pidq") {
		t.Errorf("what the user types:\n%s", g.Plain())
	}
	if got := press("backspace", " ", "1", "enter"); got != "/a" || s.Message != "" {
		t.Errorf("the finding of %s, %q", got, s.Message)
	}
	if got := press("/", "S", "Q", "L", "enter"); got != "/b" {
		t.Errorf("the version: %s", got)
	}
	if a, b := press("n"), press("N"); a != "/a" || b != "/b" {
		t.Errorf("the next one is %s, the one before %s", a, b)
	}
	if got := press("/", "x", "y", "enter"); got != "/b" || s.Message != "Not found: xy" {
		t.Errorf("%s, %q", got, s.Message)
	}
	if action, open := s.Handle(list, "/"); action != None || open || press("esc") != "/b" || s.typing {
		t.Error("Esc does not end the search")
	}
	if action, _ := s.Handle(list, "q"); action != Quit {
		t.Errorf("q after a search: %v", action)
	}
}
