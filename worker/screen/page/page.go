// Package page serves the incident screen to a browser: the files of the page, and the data of the package source as
// JSON. It samples a server only while a reader requests data.
package page

import (
	"compress/gzip"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
)

// Bounds of the requests of a reader.
const (
	lease       = 10 * time.Second // from the last request to the end of sampling
	keep        = 2 * time.Minute  // from the end of sampling to the release of the samples
	firstSample = 3 * time.Second  // longest wait of a request for the first sample
	openWait    = 15 * time.Second // longest wait of a request until the source is open
	maxFilter   = 8
	maxKey      = 4 << 10
)

//go:embed files
var files embed.FS

// Page has the HTTP handlers of the incident screen of one server.
type Page struct {
	open func() (source.Source, error)
	idle time.Duration // time from the last request to the end of sampling: lease, except in tests
	keep time.Duration
	wait time.Duration // openWait, except in tests

	mu      sync.Mutex
	src     source.Source
	opening *opening // nil: the source is not being opened
	end     func()   // ends the sampling; nil: the server is not sampled now
	changed <-chan struct{}
	timer   *time.Timer
	turn    int // number of the newest timer; rest ignores earlier timers that have fired already
}

// opening is a call of Page.open. Its err is set when done is closed.
type opening struct {
	done chan struct{}
	err  error
}

// New returns a page. The page calls the function open, which opens the source, at a reader's first request, and again at the
// first request after it has released the source (see keep).
func New(open func() (source.Source, error)) *Page {
	return &Page{open: open, idle: lease, keep: keep, wait: openWait}
}

// Files answers with the files of the page: HTML, CSS and JavaScript, which have no data of the server.
func (p *Page) Files() http.Handler {
	types := map[string]string{
		"/screen/": "index.html text/html", "/screen/page.js": "page.js text/javascript",
		"/screen/page.css": "page.css text/css", "/screen/flame.js": "flame.js text/javascript",
		"/screen/graph.js": "graph.js text/javascript", "/screen/time.js": "time.js text/javascript",
		"/screen/servers.js": "servers.js text/javascript", "/screen/blocking.js": "blocking.js text/javascript",
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var name, kind string
		if n, _ := fmt.Sscan(types[r.URL.Path], &name, &kind); n != 2 {
			http.NotFound(w, r)
			return
		}
		data, err := []byte(profilefmt.GraphScript()), error(nil)
		if name != "graph.js" {
			data, err = files.ReadFile("files/" + name)
		}
		if err != nil {
			http.Error(w, "the file is missing in the program", http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", kind+"; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		_, _ = w.Write(data)
	})
}

// Answer is the JSON of Data: the data of a page in the form of `top --format json`, and the reader's permission.
type Answer struct {
	*view.Data

	// Names is set if the reader may see names and texts.
	Names bool `json:"names"`
	// Command is a command that prints the same data. If Names is not set, or the filter has a statement without a query id, the
	// command has the words URL and FILE in place of the address and the token file.
	Command string `json:"command"`
}

// Data answers with the data of a page of the screen, an Answer as JSON. names is set if the reader may see names and texts.
func (p *Page) Data(names bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := parse(r.URL.RawQuery)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := p.answer(r.Context(), s, names)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		write(w, r, answer)
	})
}

// answer returns the data of a page. The error may be shown to the reader.
func (p *Page) answer(ctx context.Context, s *view.State, names bool) (Answer, error) {
	src, err := p.watch(ctx)
	if err != nil {
		if !names {
			err = errHidden
		}
		return Answer{}, err
	}
	if !names {
		src = source.NewNameless(src)
	}
	d := view.Fetch(ctx, src, s, nil, time.Now(), true, false)
	if !names {
		if s.Page == view.PageSession {
			for _, panel := range []string{"stack", "plan", "memory"} {
				d.Errors[panel] = source.ErrNeedsOperator.Error()
			}
		}
		// The text of any other error may contain names and paths.
		for name, text := range d.Errors {
			if text != source.ErrNoSample.Error() && text != source.ErrNoSession.Error() && !needsOperator(text) {
				d.Errors[name] = "not available; the reason needs an operator token"
			}
		}
	}
	local := slices.ContainsFunc(s.Filter, func(c source.Condition) bool { return c.Local() }) // only this process has such a statement
	if s.Connect = "URL"; names && d.Info != nil && !local {
		s.Connect, s.DataDir = "", d.Info.DataDir
	}
	return Answer{d, names, view.Command(s, d)}, nil
}

// errHidden replaces an error for readers without an operator token, because the text of the error may contain paths.
var errHidden = errors.New("the server cannot be read; the reason needs an operator token")

// write sends the answer as JSON, compressed if the reader accepts gzip. The compressed data of many sessions is ten times
// smaller, so a slow link shows the screen in time.
func write(w http.ResponseWriter, r *http.Request, answer Answer) {
	text, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	text = append(text, '\n')
	w.Header().Set("Vary", "Accept-Encoding")
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		_, _ = w.Write(text)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return // cannot happen, as the level of compression is valid
	}
	_, _ = z.Write(text)
	_ = z.Close()
}

func needsOperator(text string) bool {
	return strings.HasSuffix(text, source.ErrNeedsOperator.Error())
}

// watch returns the source, and makes it sample the server until p.idle after this call. If it was not sampling before, watch
// waits for the first sample, at most firstSample.
func (p *Page) watch(ctx context.Context) (source.Source, error) {
	p.mu.Lock()
	for p.src == nil {
		o := p.opening
		if o == nil {
			o = &opening{done: make(chan struct{})}
			p.opening = o
			go p.openSource(o)
		}
		p.mu.Unlock()
		if err := o.await(ctx, p.wait); err != nil {
			return nil, err
		}
		p.mu.Lock()
	}
	began := p.end == nil
	if began {
		p.changed, p.end = p.src.Watch()
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.after(p.idle)
	src, changed := p.src, p.changed
	p.mu.Unlock()
	if began {
		late := time.NewTimer(firstSample)
		defer late.Stop()
		select {
		case <-changed:
		case <-ctx.Done():
		case <-late.C:
		}
	}
	return src, nil
}

// openSource calls p.open, and keeps the source for p.keep if no request waits for it any more.
func (p *Page) openSource(o *opening) {
	var src source.Source
	o.err = host.Catch("screen", func() (err error) {
		src, err = p.open()
		return err
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opening = nil; o.err == nil {
		p.src = src
		p.after(p.keep)
	}
	close(o.done)
}

// await waits until the source is open, at most for the time longest, and not longer than ctx.
func (o *opening) await(ctx context.Context, longest time.Duration) error {
	late := time.NewTimer(longest)
	defer late.Stop()
	select {
	case <-o.done:
		if p := (*host.Panic)(nil); errors.As(o.err, &p) {
			panic(p) // for the shield of the request
		}
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return fmt.Errorf("the data of the server could not be opened in %s: a disk or the server does not answer", units.Age(longest))
	}
}

// after makes a timer that calls rest when the time d has passed. A later call of the method after replaces the timer.
func (p *Page) after(d time.Duration) {
	p.turn++
	turn := p.turn
	p.timer = time.AfterFunc(d, func() { p.rest(turn) })
}

// rest ends the sampling. Its next call, p.keep later, releases the source with its samples. turn is the number of the timer
// that calls rest; if a newer timer was made, rest does nothing.
func (p *Page) rest(turn int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if turn != p.turn {
		return
	}
	if p.end != nil {
		p.end()
		p.end = nil
		p.after(p.keep)
		return
	}
	p.src = nil
}

// parse reads the parameters of a request.
func parse(raw string) (*view.State, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, errors.New("the parameters cannot be read")
	}
	s := view.NewState("")
	var from, to, at, compare time.Time
	for name, values := range q {
		if name != "filter" && len(values) != 1 {
			return nil, fmt.Errorf("the parameter %q must be given once", name)
		}
		value := values[0]
		switch name {
		case "view":
			i := slices.Index(view.Names(), value)
			if i < 0 {
				return nil, errors.New("view must be load, who, blocking, session or flame")
			}
			s.Page = view.Page(i)
		case "by":
			if s.By = source.By(value); !slices.Contains(source.Properties(), s.By) {
				return nil, errors.New("by is not a property")
			}
		case "side":
			if s.Side = source.Side(value); !slices.Contains(source.Sides(), s.Side) {
				return nil, errors.New("side must be both, on-cpu or off-cpu")
			}
		case "seconds":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > longest {
				return nil, fmt.Errorf("seconds must be from 1 to %d", longest)
			}
			s.SetWindow(time.Duration(n) * time.Second)
		case "from", "to", "at", "compare":
			t, err := time.Parse(time.RFC3339, value)
			if err != nil || t.Year() < 1970 || t.Year() > 9999 {
				return nil, fmt.Errorf("%s must be a time such as 2026-11-28T03:00:00Z", name)
			}
			*map[string]*time.Time{"from": &from, "to": &to, "at": &at, "compare": &compare}[name] = t
		case "pid":
			if s.PID, err = strconv.Atoi(value); err != nil || s.PID < 1 || s.PID > 1<<31-1 {
				return nil, errors.New("pid must be a positive number")
			}
		case "filter":
			if s.Filter, err = conditions(values); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("there is no parameter %q", name)
		}
	}
	if s.Page == view.PageSession && s.PID == 0 {
		return nil, errors.New("the view session needs pid")
	}
	now := time.Now()
	if err := chooseTime(s, from, to, at, now); err != nil {
		return nil, err
	}
	if compare.IsZero() {
		return s, nil
	}
	if s.Page != view.PageWho {
		return nil, errors.New("compare goes with the view who")
	}
	return s, s.SetCompare(compare, now)
}

// longest is the largest value of the parameter seconds.
const longest = 7 * 24 * 3600

// chooseTime sets the span or the moment to show, if the request has one. Otherwise the page stays live.
func chooseTime(s *view.State, from, to, at, now time.Time) error {
	switch {
	case from.IsZero() != to.IsZero():
		return errors.New("from goes with to")
	case !from.IsZero():
		return s.SetSpan(source.Span{From: from, To: to}, at, now)
	case !at.IsZero():
		return s.SetMoment(at, now)
	}
	return nil
}

// conditions reads a filter from texts of the form PROPERTY=KEY.
func conditions(values []string) (f source.Filter, err error) {
	if len(values) > maxFilter {
		return nil, fmt.Errorf("there are more than %d filters", maxFilter)
	}
	for _, text := range values {
		property, key, ok := strings.Cut(text, "=")
		by := source.By(property)
		if !ok || len(text) > maxKey || by != source.ByClass && !slices.Contains(source.Properties(), by) {
			return nil, errors.New("filter must be PROPERTY=KEY")
		}
		f = append(f, source.Condition{By: by, Key: key})
	}
	return f, nil
}
