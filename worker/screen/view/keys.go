package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// Action is what the caller must do after a key.
type Action int

// The actions.
const (
	None    Action = iota
	Refresh        // request data, as the page needs other data
	Quit
	Suspend
	Redraw // send all cells to the terminal
	Copy   // copy the command that Command returns to the clipboard
	Run    // run the command that Measurement returns
	Mouse  // switch the mouse on or off, as the state says
	Cancel // end the command of State.Result, which then shows the output so far
)

// Values of Event.Key for events of the mouse.
const (
	Click     = "click"
	WheelUp   = "wheel-up"
	WheelDown = "wheel-down"
)

// wheelLines is the number of lines that a step of the wheel moves.
const wheelLines = 3

// doubleClick is the longest time between the clicks of a double click.
const doubleClick = 500 * time.Millisecond

// Clicks finds double clicks.
type Clicks struct {
	key  string
	last time.Time
}

// Double reports whether a click at the row with this key is the second click of a double click.
func (c *Clicks) Double(key string, now time.Time) bool {
	double := key == c.key && now.Sub(c.last) <= doubleClick
	*c = Clicks{key, now}
	if double {
		*c = Clicks{}
	}
	return double
}

// Point handles an event of the mouse: a click selects the row that the grid has at the line, the second one of a double click
// opens it, and the wheel moves the selection or scrolls.
func Point(s *State, d *Data, g *Grid, e Event, double func(key string) bool) Action {
	if s.Help || s.typing != typingNothing {
		return None
	}
	if s.Result != nil {
		if e.Key == Click {
			return None
		}
		return s.resultKey(d, e.Key)
	}
	switch e.Key {
	case WheelUp:
		return s.wheel(d, -wheelLines)
	case WheelDown:
		return s.wheel(d, wheelLines)
	}
	key := g.KeyAt(e.Y)
	i := slices.Index(s.keys(d), key)
	if key == "" || i < 0 {
		return None
	}
	s.Message = ""
	s.cursor[s.Page] = cursor{key, i}
	if double(key) {
		return s.enter(d)
	}
	return None
}

func (s *State) wheel(d *Data, by int) Action {
	if s.Page == PageSession {
		s.scroll(d, by)
	} else {
		s.step(d, by)
	}
	return None
}

// scroll moves the first line that the panel of the page Session shows, within the lines of the panel.
func (s *State) scroll(d *Data, by int) {
	last := max(0, len(broken(panelLines(s.Panel, d), s.panelWidth))-1)
	s.Scroll = min(max(min(s.Scroll, last)+by, 0), last)
}

// Handle changes the state after a key. key is as in Event.Key. d is the data that the screen shows; nil: none yet.
func Handle(s *State, d *Data, key string) Action {
	s.Message = ""
	switch {
	case key == "ctrl-c" && s.Result != nil:
		return s.resultKey(d, key)
	case key == "ctrl-c":
		return Quit
	case key == "ctrl-z":
		return Suspend
	case key == "ctrl-l":
		return Redraw
	case s.typing != typingNothing:
		return s.typeKey(d, key)
	case s.Help:
		s.Help = false
		return None
	case s.Result != nil:
		return s.resultKey(d, key)
	}
	switch key {
	case "q":
		return Quit
	case "?", "f1", "h":
		s.Help = true
	case "/":
		s.typing, s.typed = typingSearch, ""
	case "n":
		s.find(d, 1)
	case "N":
		s.find(d, -1)
	case "1", "2", "3", "4", "5":
		return s.open(Page(key[0] - '1'))
	case " ":
		s.Paused = !s.Paused
		return Refresh
	case "r":
		s.Filter = nil
		return Refresh
	case "v":
		if s.Compare.IsZero() {
			s.typing, s.typed = typingCompare, ""
			return None
		}
		s.Compare = time.Time{}
		return Refresh
	case "y":
		return Copy
	case "m":
		s.Mouse = !s.Mouse
		return Mouse
	case "p", "w", "i":
		if s.measure = key; Measurement(s, d) == nil {
			return None
		}
		return Run
	case "esc", "backspace":
		return s.back()
	case "enter":
		return s.enter(d)
	default:
		if action, ok := s.movesTime(d, key); ok {
			return action
		}
		return s.move(d, key)
	}
	return None
}

// open shows a page.
func (s *State) open(p Page) Action {
	if p == PageSession && s.PID == 0 {
		s.Message = "Choose a session with Enter first."
		return None
	}
	if p == PageFlame && s.Page == PageSession && s.PID != 0 {
		s.onlySession()
	}
	if p == PageSession && s.Page != PageSession {
		s.from = s.Page
	}
	s.Page = p
	return Refresh
}

// onlySession makes the process of the page Session the only condition of the filter.
func (s *State) onlySession() {
	pid := strconv.Itoa(s.PID)
	s.Filter = source.Filter{{By: source.BySession, Key: pid, Name: "PID " + pid}}
}

// back does the first of these that applies: end Held, leave the page Session, remove the last condition of the filter, return to
// the live time, quit to the list of servers, or return to the page Load.
func (s *State) back() Action {
	switch {
	case s.Page == PageSession && s.Held:
		s.Held = false
	case s.Page == PageSession:
		s.Page = s.from
	case len(s.Filter) > 0:
		last := s.Filter[len(s.Filter)-1]
		s.Filter = s.Filter[:len(s.Filter)-1]
		if s.Page == PageWho {
			s.By = last.By
			s.cursor[PageWho] = cursor{key: "who:" + last.Key}
		}
	case s.Page == PageLoad && !s.Live():
		s.SetLive()
	case s.Page == PageLoad && s.Listed:
		return Quit
	default:
		s.Page = PageLoad
	}
	return Refresh
}

// session shows a process on the page Session.
func (s *State) session(pid int) Action {
	if pid == 0 {
		s.Message = "A prepared transaction has no process."
		return None
	}
	if s.PID != pid {
		s.PID, s.Scroll, s.Held = pid, 0, false
	}
	return s.open(PageSession)
}

// enter opens the selected row.
func (s *State) enter(d *Data) Action {
	key := s.selected(d)
	if d == nil || key == "" {
		return None
	}
	switch kind, rest, _ := strings.Cut(key, ":"); kind {
	case "finding":
		return s.enterFinding(d, rest)
	case "session", "node":
		pid, _, _ := strings.Cut(rest, "-")
		n, _ := strconv.Atoi(pid)
		return s.session(n)
	case "who":
		return s.drill(d, rest)
	}
	return None
}

func (s *State) enterFinding(d *Data, key string) Action {
	for i := range d.Findings.Findings {
		f := &d.Findings.Findings[i]
		switch {
		case f.Key != key:
		case f.Rule == source.RuleBlocks || f.Rule == source.RuleDeadlock:
			s.Page = PageBlocking
			node := "node:" + strconv.Itoa(f.PID)
			if _, xid, ok := strings.Cut(f.Key, "-0-"); ok && f.PID == 0 { // a prepared transaction
				node += "-" + xid
			}
			s.cursor[PageBlocking] = cursor{key: node}
			return Refresh
		case f.PID != 0:
			return s.session(f.PID)
		case len(f.Filter) > 0:
			s.Filter, s.Page, s.By = slices.Clone(f.Filter), PageWho, source.ByQuery
			if f.Rule == source.RuleSyncRep { // open the page Session: it says for which standbys the process waits, and since when
				s.By = source.BySession
			}
			return Refresh
		case f.Rule == source.RuleConnections:
			s.Message = "The sessions are listed below the findings."
		case f.Rule == source.RuleWAL:
			s.Page, s.By = PageWho, source.ByEvent
			return Refresh
		}
	}
	return None
}

// drill adds a condition for the selected row (its key is key) to the filter, and shows the shares by the next property. For a row
// that is a session, it opens the page Session instead.
func (s *State) drill(d *Data, key string) Action {
	if d.sharesBy(s) != s.By {
		s.Message = "The table is being read: press the key again."
		return None
	}
	if s.By == source.BySession {
		pid, _, _ := strings.Cut(key, "-")
		n, _ := strconv.Atoi(pid)
		if n == 0 {
			s.Message = "Means over minutes have no process ids: choose a shorter time."
			return None
		}
		return s.session(n)
	}
	for _, r := range s.whoRows(d) {
		if r.Key == key {
			s.Filter = append(slices.Clone(s.Filter), source.Condition{By: s.By, Key: r.Key, Name: r.Name})
			s.By = s.nextProperty(1)
			s.cursor[PageWho] = cursor{}
			return Refresh
		}
	}
	return None
}

// nextProperty returns the next (step 1) or previous (step -1) property for which the filter has no condition.
func (s *State) nextProperty(step int) source.By {
	all := source.Properties()
	at := slices.Index(all, s.By)
	for range all {
		at = (at + step + len(all)) % len(all)
		if !slices.ContainsFunc(s.Filter, func(c source.Condition) bool { return c.By == all[at] }) {
			return all[at]
		}
	}
	return s.By
}

// move handles keys that move the selection, change panel, property or side, or capture.
func (s *State) move(d *Data, key string) Action {
	steps := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdn": 10, "home": -1 << 20, "end": 1 << 20,
	}
	if step, ok := steps[key]; ok {
		if s.Page == PageSession {
			s.scroll(d, step)
			return None
		}
		s.step(d, step)
		return None
	}
	side := map[string]int{"tab": 1, "right": 1, "l": 1, "backtab": -1, "left": -1}[key]
	switch {
	case side != 0 && s.Page == PageWho:
		s.By = s.nextProperty(side)
		s.cursor[PageWho] = cursor{}
		return Refresh
	case side != 0 && s.Page == PageFlame:
		sides := source.Sides()
		s.Side = sides[(max(slices.Index(sides, s.Side), 0)+side+len(sides))%len(sides)]
		return Refresh
	case side != 0 && s.Page == PageSession:
		s.Panel, s.Scroll = (s.Panel+side+numPanels)%numPanels, 0
		return Refresh
	case key == "c" && s.Page == PageSession:
		s.Held = true
		s.captures++
		s.Message = "Captured now. Esc shows the live stack again."
		return Refresh
	}
	return None
}

// keys returns a key for each row of the page that can be selected.
func (s *State) keys(d *Data) (list []string) {
	if d == nil {
		return nil
	}
	switch s.Page {
	case PageLoad:
		if d.Findings != nil {
			for i := range d.Findings.Findings {
				list = append(list, "finding:"+d.Findings.Findings[i].Key)
			}
		}
		if d.Sessions != nil {
			for i := range d.Sessions.Sessions {
				list = append(list, sessionKey(&d.Sessions.Sessions[i]))
			}
		}
	case PageWho:
		for _, r := range s.whoRows(d) {
			list = append(list, "who:"+r.Key)
		}
	case PageBlocking:
		if d.Blocking != nil {
			for i := range d.Blocking.Nodes {
				list = append(list, nodeKey(d.Blocking, i))
			}
		}
	case PageFlame:
		if d.Flame != nil {
			list = flameKeys(d.Flame)
		}
	case PageSession, numPages:
	}
	return list
}

// sharesBy returns the property of the table on the page `Who`. While data of another property is being read, it is not s.By.
func (d *Data) sharesBy(s *State) source.By {
	switch {
	case !s.Compare.IsZero() && d.Comparison != nil:
		return d.Comparison.By
	case s.Compare.IsZero() && d.Who != nil:
		return d.Who.By
	}
	return ""
}

// whoRows returns the keys and names of the rows of the page `Who`.
func (s *State) whoRows(d *Data) (list []source.Condition) {
	switch {
	case !s.Compare.IsZero() && d.Comparison != nil:
		for i := range d.Comparison.Rows {
			list = append(list, source.Condition{Key: d.Comparison.Rows[i].Key, Name: d.Comparison.Rows[i].Name})
		}
	case s.Compare.IsZero() && d.Who != nil:
		for i := range d.Who.Rows {
			list = append(list, source.Condition{Key: d.Who.Rows[i].Key, Name: d.Who.Rows[i].Name})
		}
	}
	return list
}

func sessionKey(s *source.SessionLine) string { return "session:" + strconv.Itoa(s.ServerPID) }

// nodeKey returns the key of the node with index i.
func nodeKey(b *source.Blocking, i int) string {
	n := &b.Nodes[i]
	key := "node:" + strconv.Itoa(n.PID)
	if n.PID == 0 {
		key += "-" + strconv.FormatUint(uint64(n.XID), 10)
	}
	return key
}

// at returns the index of the selected row in keys; -1: keys is empty.
func (s *State) at(keys []string) int {
	c := &s.cursor[s.Page]
	if i := slices.Index(keys, c.key); i >= 0 {
		return i
	}
	return min(max(c.index, 0), len(keys)-1)
}

// selected returns the key of the selected row; empty: there is no row.
func (s *State) selected(d *Data) string {
	keys := s.keys(d)
	if len(keys) == 0 {
		return ""
	}
	return keys[s.at(keys)]
}

// step moves the selection by a number of rows, within the list.
func (s *State) step(d *Data, by int) {
	keys := s.keys(d)
	if len(keys) == 0 {
		return
	}
	i := min(max(s.at(keys)+by, 0), len(keys)-1)
	s.cursor[s.Page] = cursor{keys[i], i}
}

// typeKey handles a key while the user types a text.
func (s *State) typeKey(d *Data, key string) Action {
	const longest = 100
	switch key {
	case "enter":
		purpose := s.typing
		s.typing = typingNothing
		switch purpose {
		case typingTime:
			return s.goTo(d, s.typed)
		case typingCompare:
			return s.compareWith(d, s.typed)
		case typingSearch, typingNothing:
		}
		s.Search = s.typed
		s.find(d, 1)
	case "esc":
		s.typing = typingNothing
	case "backspace":
		if r := []rune(s.typed); len(r) > 0 {
			s.typed = string(r[:len(r)-1])
		} else {
			s.typing = typingNothing
		}
	default:
		if r := []rune(key); len(r) == 1 && len(s.typed) < longest {
			s.typed += key
		}
	}
	return None
}

// find selects the next row (step 1) or the previous one (-1) that has the text s.Search. On the page Session, it scrolls to the
// next or previous line of the panel with this text.
func (s *State) find(d *Data, step int) {
	if s.Search == "" {
		s.Message = "Search with / first."
		return
	}
	if s.Result != nil || s.Page == PageSession {
		lines, at := broken(panelLines(s.Panel, d), s.panelWidth), &s.Scroll
		if s.Result != nil {
			lines, at = s.Result.lines(s.Result.width), &s.Result.scroll
		}
		if i := s.findLine(lines, *at, step); i >= 0 {
			*at = i
		} else {
			s.Message = "Not found: " + s.Search
		}
		return
	}
	keys, texts := s.keys(d), s.texts(d)
	for k := 1; k <= len(keys); k++ {
		i := ((s.at(keys)+k*step)%len(keys) + len(keys)) % len(keys)
		if strings.Contains(strings.ToLower(texts[i]), strings.ToLower(s.Search)) {
			s.cursor[s.Page] = cursor{keys[i], i}
			return
		}
	}
	s.Message = "Not found: " + s.Search
}

// findLine returns the index of the next or previous one of the lines, seen from the line at, that has the text s.Search, or -1.
func (s *State) findLine(lines []panelLine, at, step int) int {
	for k := 1; k <= len(lines); k++ {
		i := ((at+k*step)%len(lines) + len(lines)) % len(lines)
		if strings.Contains(strings.ToLower(lines[i].text), strings.ToLower(s.Search)) {
			return i
		}
	}
	return -1
}

// texts returns the text to search of each row in keys, in the same order.
func (s *State) texts(d *Data) (list []string) {
	of := func(x *source.SessionLine) string {
		if x == nil {
			return ""
		}
		wait := ""
		if x.Wait != nil {
			wait = x.Wait.Type + ":" + x.Wait.Event
		}
		return strings.Join([]string{
			strconv.Itoa(x.ServerPID), x.Application, x.User, x.Database, x.Client, x.Type, x.State, wait, x.Query, x.Phrase,
		}, " ")
	}
	switch s.Page {
	case PageLoad:
		if d.Findings != nil {
			for i := range d.Findings.Findings {
				list = append(list, d.Findings.Findings[i].Text+" "+d.Findings.Findings[i].Detail)
			}
		}
		if d.Sessions != nil {
			for i := range d.Sessions.Sessions {
				list = append(list, of(&d.Sessions.Sessions[i]))
			}
		}
	case PageWho:
		for _, r := range s.whoRows(d) {
			list = append(list, r.Name)
		}
	case PageBlocking:
		if d.Blocking != nil {
			for i := range d.Blocking.Nodes {
				n := &d.Blocking.Nodes[i]
				text := strconv.Itoa(n.PID) + " " + n.GID + " " + of(n.Session)
				for j := range n.Waits {
					text += " " + n.Waits[j].Lock + " " + n.Waits[j].Object + " " + n.Waits[j].Relation + " " + n.Waits[j].Mode
				}
				list = append(list, text)
			}
		}
	case PageFlame:
		if d.Flame != nil {
			for i := range d.Flame.Nodes {
				list = append(list, strings.Join(d.Flame.Nodes[i].Functions, " "))
			}
		}
	case PageSession, numPages:
	}
	return list
}

// Measurement returns the arguments of the command for the last key of a measurement that Handle got: p (a profile), w (waits) or
// i (an incident). If this measurement is not possible now, the result is nil, and s.Message says why.
func Measurement(s *State, d *Data) []string {
	const duration = "10s"
	switch {
	case s.Connect != "":
		s.Message = s.measure + " works in top on the server's host. In the browser, i takes an incident."
		return nil
	case !s.Live():
		s.Message = "A measurement is of now. 0 shows the live server."
		return nil
	case s.measure == "i":
		args := []string{"incident", "take", "-D", s.DataDir}
		if d != nil && d.Info != nil && d.Info.Recorded != "" {
			args = append(args, "--record-dir", d.Info.Recorded)
		}
		return args
	case s.Page != PageSession && s.measure == "w":
		s.Message = "w works in the view Session."
		return nil
	case s.Page != PageSession:
		return []string{"profile", "-D", s.DataDir, "--mode", "wall", "--duration", duration}
	}
	id, why := s.process(d)
	if why != "" {
		s.Message = why
		return nil
	}
	pid := strconv.Itoa(id)
	if s.measure == "w" {
		if text := endless(s, d); text != "" && s.warned != id {
			s.Message, s.warned = text, id
			return nil
		}
		return []string{"waits", "--trace", pid, "--duration", duration}
	}
	return []string{"profile", "--mode", "wall", "--duration", duration, pid}
}

// endless returns a warning if the process of the page Session has been in the same wait for longer than a trace takes, because a
// trace shows only waits that end; otherwise it returns an empty text.
func endless(s *State, d *Data) string {
	const long = 10 * time.Second
	if d.Session == nil || d.Session.Now == nil || d.Session.Now.ServerPID != s.PID || len(d.Session.Waits) == 0 {
		return ""
	}
	w := &d.Session.Waits[len(d.Session.Waits)-1]
	if took := d.Session.Time.Sub(w.From); w.Class != "" && w.Event != source.CPU && took >= long && w.Event == waitOf(d.Session.Now) {
		return fmt.Sprintf("%s goes on for at least %s. w again: trace for 10 s the waits that end.", w.Event, units.Age(took))
	}
	return ""
}

// process returns the id that the process of the page Session has on this host. Directly after the user has opened the page, d is
// the data of the page before. why is a sentence for the user; empty: the process is known.
func (s *State) process(d *Data) (pid int, why string) {
	if d == nil {
		return 0, "The session is being read: press the key again."
	}
	same := func(x *source.SessionLine) bool { return x != nil && x.ServerPID == s.PID }
	if d.Session != nil && same(d.Session.Now) {
		return d.Session.Now.PID, ""
	}
	if d.page == PageSession && d.PID == s.PID {
		if text := d.Errors["session"]; text != "" && text != source.ErrNoSession.Error() {
			return 0, "The session could not be read: " + text
		}
		return 0, "The process has ended."
	}
	if d.Sessions != nil {
		for i := range d.Sessions.Sessions {
			if x := &d.Sessions.Sessions[i]; same(x) {
				return x.PID, ""
			}
		}
	}
	if d.Blocking != nil {
		for i := range d.Blocking.Nodes {
			if x := d.Blocking.Nodes[i].Session; same(x) {
				return x.PID, ""
			}
		}
	}
	return 0, "The session is being read: press the key again."
}

// CommandLine returns a command line of this program. The parameter arguments has the words after the name of the program.
func (s *State) CommandLine(arguments []string) string {
	line := render.ShellWord(cmp.Or(s.Program, "pg_stat_backtrace"))
	for _, word := range arguments {
		line += " " + render.ShellWord(word)
	}
	return line
}

// Command returns a command line that prints what the page shows.
func Command(s *State, d *Data) string {
	if s.Result != nil {
		return s.Result.Command
	}
	server := "-D " + render.ShellWord(s.DataDir)
	if s.Connect != "" {
		server = "--connect " + render.ShellWord(s.Connect) + " --token-file " + render.ShellWord(cmp.Or(s.TokenFile, "FILE"))
	}
	program := render.ShellWord(cmp.Or(s.Program, "pg_stat_backtrace"))
	top := program + " top " + server + " --batch"
	compares := s.Page == PageWho && !s.Compare.IsZero() && d != nil && !d.Time.IsZero()
	if !s.Live() || compares { // the other span has the same length, so the command needs both ends of the chosen one
		span := s.Span
		if s.Live() {
			span = s.SpanAt(d.Time)
		}
		top += " --since " + span.From.UTC().Format(time.RFC3339) + " --until " + span.To.UTC().Format(time.RFC3339)
		if !s.Moment.IsZero() {
			top += " --at " + s.Moment.UTC().Format(time.RFC3339)
		}
		if d != nil && d.Info != nil && d.Info.Recorded != "" && s.Connect == "" {
			top += " --record-dir " + render.ShellWord(d.Info.Recorded)
		}
	}
	switch {
	case s.Page == PageBlocking && !s.Live():
		return top + " --view blocking"
	case s.Page == PageSession && !s.Live():
		return top + " --pid " + strconv.Itoa(s.PID)
	case s.Page == PageBlocking && s.Connect == "":
		return program + " activity " + server + " --tree"
	case s.Page == PageBlocking:
		return top + " --view blocking"
	case s.Page == PageSession:
		if pid, _ := s.process(d); pid != 0 && s.Connect == "" {
			command := []string{"capture --nonstop", "plan --nonstop", "memory"}[s.Panel]
			return program + " " + command + " " + strconv.Itoa(pid)
		}
		return top + " --pid " + strconv.Itoa(s.PID)
	case s.Page == PageWho:
		top += " --view who --by " + string(s.By)
		if !s.Compare.IsZero() {
			top += " --compare " + s.Compare.UTC().Format(time.RFC3339)
		}
	case s.Page == PageFlame:
		top += " --view flame --side " + string(s.Side)
	}
	for i := range s.Filter {
		c := &s.Filter[i]
		key := c.Key
		if c.Local() && c.Name != "" && s.Connect == "" {
			key = c.Name // a filter accepts names too
		}
		top += " --filter " + render.ShellWord(string(c.By)+"="+key)
	}
	return top
}
