package view

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// Server is a line of the list of servers.
type Server struct {
	// Name is a data directory, or the address of a worker. It identifies the server.
	Name string `json:"name"`
	// Connect is set if Name is the address of a worker.
	Connect bool `json:"worker,omitempty"`
	// Active is the mean number of active sessions during the last minute. It is absent without data.
	Active   *float64         `json:"active_sessions,omitempty"`
	Info     *source.Info     `json:"info,omitempty"`
	Findings *source.Findings `json:"findings,omitempty"`
	// AgeSeconds is the age of the newest sample.
	AgeSeconds *float64 `json:"age_seconds,omitempty"`
	// Error says why there is no newer data. Remedy is a command that can remove the cause. Both are absent without an error.
	Error  string `json:"error,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Ended is the time at which this program found that the server has ended. It is absent while the server runs.
	Ended *time.Time `json:"ended,omitempty"`
	// Titles has numbers of sessions from the titles of their processes. It is present if the server's memory cannot be read.
	Titles *Titles `json:"process_titles,omitempty"`
}

// Titles are numbers of client backends by the state in the titles of their processes.
type Titles struct {
	Active            int `json:"active"`
	Waiting           int `json:"waiting_for_locks"`
	Idle              int `json:"idle"`
	IdleInTransaction int `json:"idle_in_transaction"`
}

// Clients returns the number of client backends.
func (t *Titles) Clients() int { return t.Active + t.Waiting + t.Idle + t.IdleInTransaction }

// critical returns the number of critical findings of a server, and of all its findings.
func (s *Server) critical() (critical, all int) {
	if s.Findings == nil {
		return 0, 0
	}
	for i := range s.Findings.Findings {
		if s.Findings.Findings[i].Severity == source.Critical {
			critical++
		}
	}
	return critical, len(s.Findings.Findings)
}

// active returns the number of active sessions, for sorting by load; without data, 0.
func (s *Server) active() float64 {
	switch {
	case s.Active != nil:
		return *s.Active
	case s.Titles != nil:
		return float64(s.Titles.Active + s.Titles.Waiting)
	}
	return 0
}

func (s *Server) age() float64 {
	if s.AgeSeconds == nil {
		return 1e9
	}
	return *s.AgeSeconds
}

// Orders returns the names of the orders of the list. The first one is the default.
func Orders() []string { return []string{"findings", "load", "age", "name"} }

// ServersState has the user's choices in the list of servers.
type ServersState struct {
	// Order is one of Orders.
	Order string
	// Message stands in the last line until the next key.
	Message string
	// Mouse is set while the terminal reports clicks.
	Mouse bool

	selected string
	help     bool // the panel shows the help about keys, instead of the selected server
	typing   bool // the user types a text to search for, which is typed so far
	typed    string
	search   string // the last text that the user has searched for
}

// Sort sorts servers by the chosen order. Servers that have ended come last.
func (s *ServersState) Sort(list []Server) {
	slices.SortStableFunc(list, func(a, b Server) int {
		if ended := boolInt(a.Ended != nil) - boolInt(b.Ended != nil); ended != 0 {
			return ended
		}
		worseA, allA := a.critical()
		worseB, allB := b.critical()
		findings := cmp.Or(cmp.Compare(worseB, worseA), cmp.Compare(allB, allA))
		load, name := cmp.Compare(b.active(), a.active()), cmp.Compare(a.Name, b.Name)
		switch s.Order {
		case "load":
			return cmp.Or(load, findings, name)
		case "age":
			return cmp.Or(cmp.Compare(b.age(), a.age()), name)
		case "name":
			return name
		}
		return cmp.Or(findings, load, name)
	})
}

// KeepOrder puts list into the order of before, the list that the user sees now, so that rows do not move while the user presses
// keys. Servers that are not in before come last.
func KeepOrder(list, before []Server) {
	place := make(map[string]int, len(before))
	for i := range before {
		place[before[i].Name] = i
	}
	of := func(x Server) int {
		if i, ok := place[x.Name]; ok {
			return i
		}
		return len(before)
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return cmp.Compare(of(a), of(b)) < 0
	})
}

// at returns the index of the selected server, or 0 if it is not in the list.
func (s *ServersState) at(list []Server) int {
	return max(0, slices.IndexFunc(list, func(x Server) bool { return x.Name == s.selected }))
}

// Selected returns the selected server; without servers, nil.
func (s *ServersState) Selected(list []Server) *Server {
	if len(list) == 0 {
		return nil
	}
	return &list[s.at(list)]
}

// Handle changes the state after a key. open is set if the user opens the selected server.
func (s *ServersState) Handle(list []Server, key string) (action Action, open bool) {
	s.Message = ""
	if x := s.Selected(list); x != nil { // from the first key on, the selection stays at the same server
		s.selected = x.Name
	}
	step := func(by int) {
		if len(list) > 0 {
			s.selected = list[min(max(0, s.at(list)+by), len(list)-1)].Name
		}
	}
	const page, far = 8, 1 << 20
	switch {
	case key == "ctrl-c":
		return Quit, false
	case s.typing && key != "ctrl-z" && key != "ctrl-l":
		s.typeKey(list, key)
		return None, false
	}
	switch key {
	case "q":
		return Quit, false
	case "/":
		s.typing, s.typed = true, ""
	case "n":
		s.find(list, 1)
	case "N":
		s.find(list, -1)
	case "esc":
		if !s.help {
			s.Message = "q quits"
		}
		s.help = false
	case "?":
		s.help = !s.help
	case "ctrl-z":
		return Suspend, false
	case "ctrl-l":
		return Redraw, false
	case "enter":
		return None, len(list) > 0
	case "y":
		return Copy, false
	case "m":
		s.Mouse = !s.Mouse
		return Mouse, false
	case WheelUp:
		step(-wheelLines)
	case WheelDown:
		step(wheelLines)
	case "tab", "s":
		orders := Orders()
		s.Order = orders[(slices.Index(orders, s.Order)+1)%len(orders)]
	case "up", "k":
		step(-1)
	case "down", "j":
		step(1)
	case "pgup":
		step(-page)
	case "pgdn":
		step(page)
	case "home":
		step(-far)
	case "end":
		step(far)
	}
	return None, false
}

// typeKey handles a key while the user types a text to search for.
func (s *ServersState) typeKey(list []Server, key string) {
	const longest = 100
	switch key {
	case "enter":
		s.typing, s.search = false, s.typed
		s.find(list, 1)
	case "esc":
		s.typing = false
	case "backspace":
		if r := []rune(s.typed); len(r) > 0 {
			s.typed = string(r[:len(r)-1])
		} else {
			s.typing = false
		}
	default:
		if len([]rune(key)) == 1 && len(s.typed) < longest {
			s.typed += key
		}
	}
}

// find selects the next server (step 1), or the previous one (-1), whose name, error or findings have the text s.search.
func (s *ServersState) find(list []Server, step int) {
	if s.search == "" {
		s.Message = "Search with / first."
		return
	}
	for k := 1; k <= len(list); k++ {
		i := ((s.at(list)+k*step)%len(list) + len(list)) % len(list)
		text := list[i].Name + " " + serverTitle(&list[i]) + " " + list[i].Error
		if f := list[i].Findings; f != nil {
			for j := range f.Findings {
				text += " " + f.Findings[j].Text
			}
		}
		if strings.Contains(strings.ToLower(text), strings.ToLower(s.search)) {
			s.selected = list[i].Name
			return
		}
	}
	s.Message = "Not found: " + s.search
}

// Select selects a server by its name. It reports whether the server is in the list.
func (s *ServersState) Select(list []Server, name string) bool {
	if !slices.ContainsFunc(list, func(x Server) bool { return x.Name == name }) {
		return false
	}
	s.selected, s.Message = name, ""
	return true
}

// ServerCommand returns the server's Remedy or, without one, the command that shows the server.
func ServerCommand(x *Server) string {
	switch {
	case x.Remedy != "":
		return x.Remedy
	case x.Connect:
		return "pg_stat_backtrace top --connect " + render.ShellWord(x.Name) + " --token-file FILE"
	}
	return "pg_stat_backtrace top -D " + render.ShellWord(x.Name)
}

// DrawServers draws the list of servers, in the order of list. more is the number of servers that list leaves out.
func DrawServers(g *Grid, s *ServersState, list []Server, more int, now time.Time) {
	c := &canvas{Grid: g, now: now}
	if g.Width < smallest || g.Height < fewest {
		g.Text(0, 0, g.Width, plain, fmt.Sprintf("too small: %dx%d, needs %dx%d", g.Width, g.Height, smallest, fewest))
		return
	}
	for x := range g.Width {
		g.Set(x, 0, ' ', bar)
	}
	right := g.Right(g.Width-1, 0, bar, now.Local().Format("15:04:05 MST"))
	title := plural(float64(len(list)), "server")
	if more > 0 {
		title += fmt.Sprintf(", and %d more: choose with -D", more)
	}
	g.Text(1, 0, right-1, bar, "pg_stat_backtrace top  "+title)
	c.serverHeading(1, s.Order)
	y, end := 2, g.Height-footLines
	panel := serverPanel(s.Selected(list), g.Width-3)
	if s.help {
		panel = serverKeys()
	}
	panel = panel[:min(len(panel), max(0, end-y-4))]
	list = c.serverLines(s, list, y, end-len(panel)-1)
	if len(list) == 0 {
		g.Text(1, y, g.Width, bold, "no server was found on this host")
	}
	c.rule(end-len(panel)-1, g.Width)
	for i, line := range panel {
		g.Text(2, end-len(panel)+i, g.Width-1, line.style, line.text)
	}
	if s.typing {
		at := g.Text(1, g.Height-1, g.Width-1, bold, "/"+s.typed)
		g.Text(at, g.Height-1, g.Width-1, chosen, " ")
		return
	}
	if s.Message != "" {
		g.Text(1, g.Height-1, g.Width-1, bold, s.Message)
		return
	}
	x := 1
	for _, k := range [][2]string{
		{"↑↓", "select"}, {"Enter", "open"}, {"/", "search"}, {"Tab", "order: " + cmp.Or(s.Order, Orders()[0])}, {"?", "help"}, {"q", "quit"},
		{"y", "command"},
	} {
		x = g.Text(x, g.Height-1, g.Width-1, bold, k[0])
		x = g.Text(x+1, g.Height-1, g.Width-1, dim, k[1]) + 2
	}
}

// serverKeys are the lines of the help.
func serverKeys() []serverText {
	return []serverText{
		{bold, "↑↓ PgUp PgDn Home End: select    Enter: open    Tab: order by " + strings.Join(Orders(), ", ")},
		{bold, "/ n N: search    y: copy the command    m: mouse    Ctrl-L: redraw    Ctrl-Z: suspend    ? or Esc: close this    q: quit"},
		{plain, "active: sessions that are not idle; waiting: how many of them wait"},
		{plain, "clients: sessions of clients, and the most that the server allows"},
		{plain, "age: how old these figures are; findings: what the rules find now, in red if critical"},
	}
}

// Columns of the list: the cell after the end of each number, and the first cell of the name.
const (
	activeEnd, waitingEnd, clientsEnd, ageEnd, findingsEnd, serverAt = 9, 17, 27, 40, 49, 51
)

func (c *canvas) serverHeading(y int, order string) {
	style := func(name string) Style {
		if name == order {
			return bold
		}
		return dim
	}
	c.Right(activeEnd, y, style("load"), "active")
	c.Right(waitingEnd, y, dim, "waiting")
	c.Right(clientsEnd, y, dim, "clients")
	c.Right(ageEnd, y, style("age"), "age")
	c.Right(findingsEnd, y, style("findings"), "findings")
	c.Text(serverAt, y, c.Width, style("name"), "server")
}

// serverLines draws as many servers as there is room for, among them the selected one. It returns the parameter list.
func (c *canvas) serverLines(s *ServersState, list []Server, y, end int) []Server {
	at, height := s.at(list), max(1, end-y)
	first := min(max(0, at-height+1), max(0, len(list)-height))
	for i := first; i < len(list) && i < first+height; i++ {
		c.Selectable(y+i-first, list[i].Name)
		c.serverLine(y+i-first, &list[i], i == at)
	}
	return list
}

func (c *canvas) serverLine(y int, x *Server, selected bool) {
	style := plain
	if x.Ended != nil {
		style = dim
	}
	style = c.pick(y, selected, style)
	waiting, clients, age := "", "", ""
	switch i := x.Info; {
	case x.Titles != nil:
		waiting, clients = strconv.Itoa(x.Titles.Waiting), strconv.Itoa(x.Titles.Clients())
	case i != nil && i.Last != nil && !i.Ended:
		waiting, clients = strconv.Itoa(i.Sessions.Waiting), strconv.Itoa(i.Sessions.Clients)
		if i.MaxConnections > 0 {
			clients += "/" + strconv.Itoa(i.MaxConnections)
		}
	}
	active := ""
	if x.Active != nil || x.Titles != nil {
		active = figure(x.active())
	}
	if x.AgeSeconds != nil {
		age = units.Age(time.Duration(*x.AgeSeconds * float64(time.Second)))
	}
	critical, all := x.critical()
	mark := style
	if !selected && critical > 0 {
		mark = alarm
	} else if !selected && all > 0 {
		mark = warn
	}
	c.Right(activeEnd, y, style, active)
	c.Right(waitingEnd, y, style, waiting)
	c.Right(clientsEnd, y, style, clients)
	c.Right(ageEnd, y, style, age)
	switch {
	case x.Ended != nil:
		c.Right(findingsEnd, y, style, "ended")
	case x.Error != "":
		mark = style
		if !selected {
			mark = alarm
		}
		c.Right(findingsEnd, y, mark, "✗")
	case all > 0:
		c.Right(findingsEnd, y, mark, "▲"+strconv.Itoa(all))
	case x.Findings != nil:
		c.Right(findingsEnd, y, style, "0")
	}
	limit, name := c.Width-1, oneLine(x.Name)
	if room := limit - serverAt; Width(name) > room && room > 2 { // cut the begin, as the end of a path says more
		runes := []rune(name)
		name = "…" + string(runes[max(0, len(runes)-room+1):])
	}
	c.Text(serverAt, y, limit, style, name)
}

// serverText is a line about the selected server.
type serverText struct {
	style Style
	text  string
}

// serverPanel returns the lines about the selected server.
func serverPanel(x *Server, width int) (lines []serverText) {
	add := func(style Style, text string, most int) {
		for _, line := range Wrap(text, width, most) {
			lines = append(lines, serverText{style, strings.TrimRight(line, " ")})
		}
	}
	if x == nil {
		return nil
	}
	add(bold, serverTitle(x), 2)
	if x.Error != "" {
		add(alarm, "✗ "+x.Error, 3)
	}
	if x.Remedy != "" {
		add(bold, "  "+x.Remedy, 2)
	}
	if t := x.Titles; t != nil {
		add(plain, fmt.Sprintf("By the titles of its processes: %d active, %d waiting for locks, %d idle in transaction, %d idle.",
			t.Active, t.Waiting, t.IdleInTransaction, t.Idle), 2)
	}
	if x.Info == nil && x.Error == "" {
		add(dim, "reading …", 1)
	}
	if x.Findings != nil {
		const most = 4
		for i := range x.Findings.Findings {
			if i == most {
				add(dim, "and "+units.Count(len(x.Findings.Findings)-most, "more finding"), 1)
				break
			}
			f := &x.Findings.Findings[i]
			style := alarm
			if f.Severity != source.Critical {
				style = warn
			}
			add(style, "▲ "+f.Text, 2)
		}
		if len(x.Findings.Findings) == 0 && x.Error == "" {
			add(dim, "no findings", 1)
		}
	}
	return lines
}

// serverTitle returns the name of a server and its properties.
func serverTitle(x *Server) string {
	name := x.Name
	if i := x.Info; i != nil && i.Version > 0 {
		name += fmt.Sprintf(" · PostgreSQL %d", i.Version)
		if i.Port > 0 {
			name += fmt.Sprintf(", port %d", i.Port)
		}
		if i.Standby != nil && *i.Standby {
			name += ", standby"
		}
		if i.Processors > 0 {
			name += ", " + plural(i.Processors, "CPU")
		}
	}
	return name
}
