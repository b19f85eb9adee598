package topcmd

import (
	"context"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
)

// topSource gives the data of the screen: of a server of this host, or of a worker.
type topSource interface {
	// Watch: see source.Source.Watch.
	Watch() (changed <-chan struct{}, end func())
	// Fetch: see view.Fetch.
	Fetch(ctx context.Context, s *view.State, before *view.Data, now time.Time, wide, whole bool) *view.Data
	// Now returns the time by the clock of the server's host.
	Now() time.Time
}

// localSource is the topSource of a server of this host.
type localSource struct{ *source.Live }

// Fetch implements topSource.Fetch.
func (l localSource) Fetch(ctx context.Context, s *view.State, before *view.Data, now time.Time, wide, whole bool) *view.Data {
	return view.Fetch(ctx, l.Live, s, before, now, wide, whole)
}

// Now implements topSource.Now.
func (localSource) Now() time.Time { return time.Now() }

// topScreen is the screen in the terminal. It requests data in the background, so that the user never waits after a key.
type topScreen struct {
	src      topSource
	state    *view.State
	terminal *view.Terminal
	data     *view.Data
	shown    *view.Grid // on the terminal
	clicks   view.Clicks
	answers  chan *view.Data
	asking   bool         // a request runs
	stale    bool         // another request must follow the running request
	measured *measurement // the command that runs; nil: none
}

// showTop shows the screen until the user quits or ctx ends.
func showTop(ctx context.Context, src topSource, s *view.State) error {
	terminal, err := view.OpenTerminal()
	if err != nil {
		return err
	}
	defer terminal.Close()
	t := &topScreen{src: src, state: s, terminal: terminal, answers: make(chan *view.Data, 1)}
	changed, end := src.Watch()
	defer func() { end() }()
	quit := make(chan struct{})
	defer close(quit)
	events := terminal.Events(quit)
	if s.Mouse {
		terminal.SetMouse(true)
	}
	defer t.endMeasurement()
	t.ask(ctx)
	t.draw(false)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.measurementEnds():
			t.measured.refresh(true, time.Now())
			t.measured = nil
			t.draw(false)
		case <-changed:
			if !s.Paused {
				t.ask(ctx)
			}
			t.draw(false)
		case d := <-t.answers:
			t.asking, t.data = false, d
			if t.stale {
				t.ask(ctx)
			}
			t.draw(false)
		case e, ok := <-events:
			if !ok {
				return nil
			}
			switch t.event(ctx, e) {
			case view.Quit:
				return nil
			case view.Suspend:
				end() // end sampling, because this program is about to be stopped
				err := terminal.Suspend(func() { _ = ptrace.Suspend() })
				if err != nil {
					return err
				}
				changed, end = src.Watch()
				t.draw(true)
			default:
			}
		}
	}
}

// measurementEnds returns a channel that is closed when the command ends; nil: no command runs.
func (t *topScreen) measurementEnds() <-chan struct{} {
	if t.measured == nil {
		return nil
	}
	return t.measured.done
}

// endMeasurement ends the command that runs, and waits for its end.
func (t *topScreen) endMeasurement() {
	if t.measured != nil {
		t.measured.cancel()
		<-t.measured.done
	}
}

// run starts the command that view.Measurement returns, unless the last one still runs.
func (t *topScreen) run(ctx context.Context) {
	if t.measured != nil {
		t.state.Message = "The last command is still ending: press the key again."
		return
	}
	if args := view.Measurement(t.state, t.data); args != nil {
		t.state.Result = &view.Result{Command: t.state.CommandLine(args), Started: time.Now()}
		t.measured = measure(ctx, t.state.Result, args)
	}
}

// event handles a key or a new size. It returns an action if the caller must do it: Quit or Suspend; otherwise None.
func (t *topScreen) event(ctx context.Context, e view.Event) view.Action {
	if e.Size {
		t.draw(true)
		return view.None
	}
	var action view.Action
	if e.Mouse {
		action = view.Point(t.state, t.data, t.shown, e, func(key string) bool { return t.clicks.Double(key, time.Now()) })
	} else {
		action = view.Handle(t.state, t.data, e.Key)
	}
	switch action {
	case view.Quit, view.Suspend:
		return action
	case view.Run:
		t.run(ctx)
	case view.Cancel:
		if t.measured != nil {
			t.measured.cancel()
		}
	case view.Refresh:
		t.ask(ctx)
	case view.Copy:
		command := view.Command(t.state, t.data)
		t.terminal.Copy(command)
		t.state.Message = "Copied, if the terminal allows it: " + command
	case view.Mouse:
		t.state.Message = t.terminal.SetMouse(t.state.Mouse)
	case view.None, view.Redraw:
	}
	t.draw(action == view.Redraw)
	return view.None
}

// ask requests the data of the page. If a request runs already, the new request follows after its answer.
func (t *topScreen) ask(ctx context.Context) {
	if t.asking {
		t.stale = true
		return
	}
	t.asking, t.stale = true, false
	s, before := *t.state, t.data
	wide := view.Wide(t.terminal.Grid().Width)
	go func() {
		t.answers <- t.src.Fetch(ctx, &s, before, t.src.Now(), wide, false)
	}()
}

func (t *topScreen) draw(whole bool) {
	if t.measured != nil {
		t.measured.refresh(false, time.Now())
	}
	g := t.terminal.Grid()
	drawView(g, t.state, t.data, t.src.Now())
	t.shown = g
	t.terminal.Draw(g, whole)
}

// drawView draws the screen. If the drawing panics, because a worker sent wrong data, the screen shows an error.
func drawView(g *view.Grid, s *view.State, d *view.Data, now time.Time) {
	if err := host.Catch("view", func() error { view.Draw(g, s, d, now); return nil }); err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		g.Text(0, 0, g.Width, view.Style{}, "the data cannot be shown: "+text)
	}
}
