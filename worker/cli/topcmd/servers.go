package topcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/screen/remote"
	"pg_stat_backtrace/worker/screen/view"
	"pg_stat_backtrace/worker/serve/node"
)

// Bounds of the list of servers.
const (
	mostServers  = 64               // servers in the list
	mostTitles   = 2000             // processes of a server whose titles are read
	titlesEvery  = 5 * time.Second  // time after which titles are read again: each needs a file of /proc
	serversEvery = 10 * time.Second // time between two searches for new servers
	fewServers   = 8                // in a list of more servers, each is sampled less often
	keepOrder    = 5 * time.Second  // time after a key in which the rows of the list do not move
	keepEnded    = time.Minute      // time after which a server that has ended leaves the list
	listWindow   = time.Minute      // time over which the mean of active sessions is computed
)

// servers is the list of servers of "top --all". Each server has a goroutine that gets its data, so that a server or a
// worker that does not answer does not delay the others.
type servers struct {
	f        *topFlags
	stderr   io.Writer
	capturer *capture.Capturer
	opening  chan struct{} // its capacity is the number of servers that may be opened at a time
	changed  chan struct{}
	find     func() (found []string, denied []node.Process, err error)

	mu      sync.Mutex
	entries []*serverEntry
	more    int // servers that the list leaves out
}

// serverEntry is one server of the list.
type serverEntry struct {
	row    view.Server
	client *remote.Client
	// hidden is the postmaster of a server that this user may not examine.
	hidden *node.Process
	src    topSource // nil: not open yet
	state  view.State
	first  bool // the first answer, or error, has come
	runs   bool // serve runs for this server
	// end ends serve; nil: it was never started.
	end context.CancelFunc
}

// newServers returns the list of the workers of --connect and, if local is set, of the servers of this host.
func (f *topFlags) newServers(stderr io.Writer, local bool) (*servers, error) {
	host.Frugal()
	l := &servers{f: f, stderr: stderr, opening: make(chan struct{}, 2), changed: make(chan struct{}, 1), find: findServers}
	for i, address := range f.connect {
		client, err := remote.New(address, f.tokenOf(i), f.listInterval(len(f.connect)))
		if err != nil {
			return nil, err
		}
		if client.InClearText() {
			console.Tellf(stderr, "warning: the token for %s crosses the network in clear text; use https://", client.Address())
		}
		e := &serverEntry{row: view.Server{Name: client.Address(), Connect: true}, client: client}
		e.state = *view.NewState("")
		e.state.Connect, e.state.TokenFile = client.Address(), f.tokenOf(i)
		l.entries = append(l.entries, e)
	}
	if !local {
		l.find = nil
		return l, nil
	}
	return l, l.search()
}

// listInterval returns the time between two samples of a server in a list of n servers.
func (f *topFlags) listInterval(n int) time.Duration {
	return f.interval * time.Duration((max(n, 1)+fewServers-1)/fewServers)
}

// tokenOf returns the token file for the worker of the i-th --connect; empty: none.
func (f *topFlags) tokenOf(i int) string {
	switch len(f.tokenFile) {
	case 0:
		return ""
	case 1:
		return f.tokenFile[0]
	}
	return f.tokenFile[i]
}

// findServers returns the data directories of this host's servers, and the postmasters of servers that this user may not examine.
func findServers() (found []string, denied []node.Process, err error) {
	found, secret, err := console.AllServers()
	if err == nil && secret > 0 {
		denied, err = node.Denied()
	}
	return found, denied, err
}

// search adds the servers of this host that are not in the list. It removes servers that ended at least keepEnded ago, and hidden
// servers that have ended or can be read now.
func (l *servers) search() error {
	found, denied, err := l.find()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = slices.DeleteFunc(l.entries, func(e *serverEntry) bool {
		gone := e.hidden != nil && !slices.Contains(denied, *e.hidden) ||
			e.client == nil && e.hidden == nil && e.row.Ended != nil && time.Since(*e.row.Ended) >= keepEnded && !slices.Contains(found, e.row.Name)
		if gone && e.end != nil {
			e.end()
		}
		return gone
	})
	l.more = 0
	add := func(name string, e *serverEntry) {
		e.row.Name = name
		switch {
		case slices.ContainsFunc(l.entries, func(x *serverEntry) bool { return x.row.Name == name }):
		case len(l.entries) >= mostServers:
			l.more++
		default:
			l.entries = append(l.entries, e)
		}
	}
	for _, dir := range found {
		e := &serverEntry{state: *view.NewState(dir)}
		e.state.When = console.ParseWhen
		add(dir, e)
	}
	for _, p := range denied {
		e := &serverEntry{hidden: &p}
		e.row.Error, e.row.Remedy = hiddenAdvice(p)
		add(fmt.Sprintf("PID %d of user %s", p.PID, accountName(p.UID)), e)
	}
	return nil
}

// accountName returns the name of an operating system user, or the number if the name is not known.
func accountName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// plainDirectory matches option -D in the arguments of a postmaster, with a data directory that a shell needs no quotes for.
var plainDirectory = regexp.MustCompile(`(?:^| )-D ?(/[A-Za-z0-9/._@+-]+)(?: |$)`)

// hiddenAdvice returns why a server cannot be read, and a command that can read it.
func hiddenAdvice(p node.Process) (reason, remedy string) {
	reason = "this user may not read the memory of the server: run the command as root or as " + accountName(p.UID) +
		", or show the data of a worker with --connect URL"
	remedy = "sudo pg_stat_backtrace top"
	if m := plainDirectory.FindStringSubmatch(cluster.Title(p.PID)); m != nil {
		remedy += " -D " + m[1]
	}
	return reason, remedy
}

// clientTitle matches the process title of a client backend: user, database, client, and the activity. The cluster_name may come
// first.
var clientTitle = regexp.MustCompile(`^postgres: .*? (?:\[local\]|\S+\(\d+\))(?: (.*))?$`)

// titlesOf counts the client backends of a postmaster by the states in their titles, which every user of the host can read. It
// returns nil if the children of the postmaster cannot be read.
func titlesOf(postmaster int) *view.Titles {
	children, err := process.Children(postmaster)
	if err != nil {
		return nil
	}
	var t view.Titles
	for _, pid := range children[:min(len(children), mostTitles)] {
		addTitle(&t, cluster.Title(pid))
	}
	return &t
}

// addTitle counts a process by its title, if it is a client backend.
func addTitle(t *view.Titles, title string) {
	m := clientTitle.FindStringSubmatch(title)
	if m == nil || strings.HasPrefix(title, "postgres: walsender ") {
		return
	}
	switch activity := m[1]; {
	case activity == "idle":
		t.Idle++
	case strings.HasPrefix(activity, "idle in transaction"):
		t.IdleInTransaction++
	case strings.HasSuffix(activity, " waiting"):
		t.Waiting++
	default:
		t.Active++
	}
}

// run gets the data of all servers until ctx ends, and returns when all its goroutines have ended.
func (l *servers) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	start := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		interval := l.f.listInterval(len(l.entries))
		for _, e := range l.entries {
			if !e.runs {
				e.runs = true
				served, end := context.WithCancel(ctx)
				e.end = end
				all.Go(func() {
					defer end()
					l.serve(served, e, interval)
				})
			}
		}
	}
	start()
	if l.find == nil {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(serversEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = l.search() // after an error, the list stays as it is
			start()
			l.notify()
		}
	}
}

// notify sends a value to the reader of l.changed, unless a value waits there already.
func (l *servers) notify() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// serve gets the data of one server until ctx ends. It retries if the server cannot be opened.
func (l *servers) serve(ctx context.Context, e *serverEntry, interval time.Duration) {
	defer func() {
		l.mu.Lock()
		e.runs = false
		l.mu.Unlock()
	}()
	pause := func(d time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	if e.hidden != nil {
		for {
			titles := titlesOf(e.hidden.PID)
			l.update(e, func(r *view.Server) { r.Titles = titles })
			if !pause(max(interval, titlesEvery)) {
				return
			}
		}
	}
	for {
		err := host.Catch("server", func() error { return l.open(ctx, e, interval) })
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		l.update(e, func(r *view.Server) {
			r.Error, _, _ = strings.Cut(err.Error(), "\n")
			setEnded(r, errors.Is(err, cluster.ErrNotRunning) || errors.Is(err, cluster.ErrNotDataDir), time.Now())
			if r.Remedy = ""; isDenied(err) {
				r.Remedy = "sudo pg_stat_backtrace top -D " + render.ShellWord(r.Name)
			}
		})
		if !pause(max(interval, titlesEvery)) {
			return
		}
	}
	l.watch(ctx, e)
}

// open opens the source of a server. Only a few servers are opened at a time (see opening), because at first the debug
// information of a server's program must be read.
func (l *servers) open(ctx context.Context, e *serverEntry, interval time.Duration) error {
	if e.src != nil {
		return nil
	}
	var src topSource = e.client
	if e.client == nil {
		select {
		case l.opening <- struct{}{}:
			defer func() { <-l.opening }()
		case <-ctx.Done():
			return ctx.Err()
		}
		live, err := l.f.open(e.row.Name, l.capturer, interval, io.Discard)
		if err != nil {
			return err
		}
		src = localSource{live}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.src = src
	return nil
}

// watch gets the data of a server after each sample, until ctx ends.
func (l *servers) watch(ctx context.Context, e *serverEntry) {
	changed, end := e.src.Watch()
	defer end()
	state := e.state
	state.Page, state.Filter = view.PageLoad, nil
	state.SetWindow(listWindow)
	var d *view.Data
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		before := d
		err := host.Catch("server", func() error {
			d = e.src.Fetch(ctx, &state, before, e.src.Now(), false, false)
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		l.update(e, func(r *view.Server) { fillServer(r, d, e.src.Now(), err) })
	}
}

// fillServer writes the data of a server into its row.
func fillServer(r *view.Server, d *view.Data, now time.Time, err error) {
	if err != nil || d == nil {
		r.Error = fmt.Sprint("the data cannot be shown: ", err)
		return
	}
	r.Info, r.Findings, r.Active, r.AgeSeconds, r.Error, r.Remedy = d.Info, d.Findings, nil, nil, "", ""
	if d.Load != nil && d.Load.Seconds > 0 {
		active := 0.0
		for _, v := range d.Load.Active {
			active += v
		}
		r.Active = &active
	}
	if d.Info == nil {
		r.Error = d.Errors["info"]
		return
	}
	setEnded(r, d.Info.Ended, now)
	if r.Error = d.Info.Error; d.Info.Ended {
		r.Error = "the server does not run: " + r.Error
		r.Findings, r.Active = nil, nil // these figures are of the server before it ended
	}
	if d.Info.Last != nil {
		age := max(0, now.Sub(*d.Info.Last)).Seconds()
		r.AgeSeconds = &age
	}
}

// setEnded sets r.Ended to the time now if the server has just ended, and clears it if the server runs.
func setEnded(r *view.Server, ended bool, now time.Time) {
	switch {
	case !ended:
		r.Ended = nil
	case r.Ended == nil:
		r.Ended = &now
	}
}

// update changes the row of a server.
func (l *servers) update(e *serverEntry, change func(*view.Server)) {
	l.mu.Lock()
	change(&e.row)
	e.first = true
	l.mu.Unlock()
	l.notify()
}

// list returns the rows, with the present age of each server's data, and the number of servers that the list leaves out. answered
// is set if each server in the list has an answer or an error.
func (l *servers) list() (rows []view.Server, more int, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answered = true
	for _, e := range l.entries {
		row := e.row
		if e.src != nil && row.Info != nil && row.Info.Last != nil {
			age := max(0, e.src.Now().Sub(*row.Info.Last)).Seconds()
			row.AgeSeconds = &age
		}
		rows = append(rows, row)
		answered = answered && e.first
	}
	return rows, l.more, answered
}

// entry returns the server whose row has this name; nil: the list has no such server any more.
func (l *servers) entry(name string) *serverEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.entries, func(e *serverEntry) bool { return e.row.Name == name }); i >= 0 {
		return l.entries[i]
	}
	return nil
}

// ServerList is the JSON of one refresh of "top --all --format json".
type ServerList struct {
	Time    time.Time     `json:"time"`
	Servers []view.Server `json:"servers"`
	More    int           `json:"more,omitempty"`
}

// print prints the list, once or again and again (-n). It waits for the first answer of each server.
func (l *servers) print(ctx context.Context, out io.Writer) error {
	interrupt := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer func() {
		if interrupt.Err() == nil { // after an interrupt the program ends, although servers are still being opened
			running.Wait()
		}
	}()
	defer cancel()
	running.Go(func() { l.run(ctx) })
	state := &view.ServersState{Order: l.f.sort}
	var rows []view.Server
	for n := 0; l.f.count == 0 || n < l.f.count; n++ {
		var more int
		for answered := false; !answered; {
			if rows, more, answered = l.list(); answered {
				break
			}
			select {
			case <-ctx.Done():
				return unlessPrinted(ctx, n)
			case <-l.changed:
			}
		}
		state.Sort(rows)
		if err := l.printOne(out, n, state, rows, more); err != nil {
			return err
		}
		if n+1 == l.f.count {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.f.listInterval(len(rows))):
		}
	}
	return listError(rows)
}

// listError returns an error if no server could be read.
func listError(rows []view.Server) error {
	if len(rows) == 0 {
		return errors.New("no server was found on this host: give its data directory with -D, or a worker with --connect")
	}
	for i := range rows {
		if rows[i].Error == "" {
			return nil
		}
	}
	text := rows[0].Error
	if rows[0].Remedy != "" {
		text += ": " + rows[0].Remedy
	}
	return errors.New(text)
}

func (l *servers) printOne(out io.Writer, n int, state *view.ServersState, rows []view.Server, more int) error {
	if l.f.format == console.FormatJSON {
		return render.JSONEncoder(out).Encode(ServerList{time.Now(), rows, more})
	}
	g := l.f.grid()
	view.DrawServers(g, state, rows, more, time.Now())
	text := g.Plain()
	if n > 0 {
		text = "\n" + text
	}
	_, err := io.WriteString(out, text)
	return err
}

// show shows the list on the terminal until the user quits. Enter opens the screen of a server, and q returns to the list.
func (l *servers) show(ctx context.Context) error {
	state := &view.ServersState{Order: l.f.sort}
	for {
		opened, err := l.showList(ctx, state)
		if err != nil || opened == nil {
			return err
		}
		src, s := opened.src, opened.state
		if info := opened.row.Info; opened.client == nil && info != nil {
			s.DataDir = cmp.Or(info.DataDir, s.DataDir)
		}
		s.Listed, s.Program = true, programWord()
		s.Message, s.Mouse = "q returns to the list of servers.", state.Mouse
		if err := showTop(ctx, src, &s); err != nil {
			return err
		}
		state.Mouse = s.Mouse
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user ended the program
		}
	}
}

// showList shows the list until the user opens a server, which it returns, or quits: then it returns nil.
func (l *servers) showList(ctx context.Context, state *view.ServersState) (*serverEntry, error) {
	terminal, err := view.OpenTerminal()
	if err != nil {
		return nil, err
	}
	defer terminal.Close()
	end := l.start(ctx)
	defer func() { end() }()
	quit := make(chan struct{})
	defer close(quit)
	events := terminal.Events(quit)
	var rows []view.Server
	var g *view.Grid
	var clicks view.Clicks
	var pressed time.Time // time of the last key that did not change the order
	draw := func(whole bool) {
		var more int
		before := rows
		rows, more, _ = l.list()
		state.Sort(rows)
		if time.Since(pressed) < keepOrder {
			view.KeepOrder(rows, before)
		}
		g = terminal.Grid()
		drawServers(g, state, rows, more)
		terminal.Draw(g, whole)
	}
	if state.Mouse {
		terminal.SetMouse(true)
	}
	draw(false)
	for {
		select {
		case <-ctx.Done():
			return nil, nil //nolint:nilnil // the user has ended the program
		case <-l.changed:
			draw(false)
		case e, ok := <-events:
			if !ok {
				return nil, nil //nolint:nilnil // the terminal has ended
			}
			if e.Size {
				draw(true)
				continue
			}
			action, open, order := view.None, false, state.Order
			if e.Key == view.Click {
				name := g.KeyAt(e.Y)
				open = state.Select(rows, name) && clicks.Double(name, time.Now())
			} else {
				action, open = state.Handle(rows, e.Key)
			}
			if pressed = time.Now(); state.Order != order {
				pressed = time.Time{}
			}
			switch {
			case action == view.Quit:
				return nil, nil //nolint:nilnil // the user has ended the program
			case action == view.Suspend:
				end() // take no samples while this program is stopped
				if err := terminal.Suspend(func() { _ = ptrace.Suspend() }); err != nil {
					return nil, err
				}
				end = l.start(ctx)
			case action == view.Mouse:
				state.Message = terminal.SetMouse(state.Mouse)
			case action == view.Copy && len(rows) > 0:
				command := view.ServerCommand(state.Selected(rows))
				terminal.Copy(command)
				state.Message = "Copied, if the terminal allows it: " + command
			case open:
				if opened := l.openable(state, rows); opened != nil {
					return opened, nil
				}
			}
			draw(action == view.Suspend || action == view.Redraw)
		}
	}
}

// openable returns the selected server if it can be opened. Otherwise it returns nil, and state.Message says why.
func (l *servers) openable(state *view.ServersState, rows []view.Server) *serverEntry {
	row := state.Selected(rows)
	e := l.entry(row.Name)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e != nil && e.src != nil:
		return e
	case row.Remedy != "":
		state.Message = "It cannot be opened. Run: " + row.Remedy
	case row.Error != "":
		state.Message = "It cannot be opened: " + row.Error
	default:
		state.Message = "It is not read yet."
	}
	return nil
}

// start begins to get the data of all servers. The function end stops this, and waits until it has stopped.
func (l *servers) start(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.run(ctx)
	}()
	return sync.OnceFunc(func() { cancel(); <-done })
}

// drawServers draws the list. If the drawing panics, because a worker sent wrong data, the screen shows an error.
func drawServers(g *view.Grid, s *view.ServersState, rows []view.Server, more int) {
	err := host.Catch("view", func() error { view.DrawServers(g, s, rows, more, time.Now()); return nil })
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		g.Text(0, 0, g.Width, view.Style{}, "the data cannot be shown: "+text)
	}
}
