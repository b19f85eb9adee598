// Package remote gets the data of the incident screen from a worker with a listener, by HTTP. The data is the JSON that the
// package page serves. The answer may come from a worker of another version, or from another program. So the package limits
// and checks each answer.
//
// The package must not know how a screen shows the data.
package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
)

// Bounds of a request.
const (
	timeout    = 30 * time.Second
	maxAnswer  = 32 << 20
	maxReason  = 500 // bytes of an error message in an answer
	maxHeaders = 64 << 10
)

// parts bounds the decoded form of an answer.
//
//nolint:gochecknoglobals // read only
var parts = limits.JSON{Depth: 1000, Elements: 500_000, Members: 2_000_000}

// Client requests the data of one worker. A Client is safe for concurrent use.
type Client struct {
	base      *url.URL
	token     string
	tokenFile string
	interval  time.Duration
	http      *http.Client
	most      int64 // largest accepted answer, in bytes

	mu sync.Mutex
	// ahead is the time by the worker's clock minus the time by the clock of this host.
	ahead time.Duration
}

// New returns a client for the worker at an address such as https://db1.example:9188. TokenFile is empty if the worker needs
// no token.
func New(address, tokenFile string, interval time.Duration) (*Client, error) {
	base, err := parse(address)
	if err != nil {
		return nil, err
	}
	c := &Client{base: base, tokenFile: tokenFile, interval: interval, most: maxAnswer}
	if tokenFile != "" {
		if c.token, err = readToken(tokenFile); err != nil {
			return nil, err
		}
	}
	c.http = &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConns: 2, MaxConnsPerHost: 2, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: maxHeaders, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		},
		// A redirect would send the token to an address that the user has not given.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// parse reads the address of a worker. The address of the screen in a browser (".../screen/") is accepted too.
func parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, errors.New("--connect must be http://HOST:PORT or https://HOST:PORT")
	case u.User != nil:
		return nil, errors.New("--connect must not have a password; write the token into a file and give --token-file")
	case u.RawQuery != "" || u.ForceQuery:
		return nil, errors.New("--connect must not have parameters")
	}
	u.Fragment, u.RawFragment, u.RawPath = "", "", ""
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/screen")
	return u, nil
}

// Address returns the address of the worker.
func (c *Client) Address() string { return c.base.String() }

// InClearText reports whether the token is sent over a network without TLS.
func (c *Client) InClearText() bool {
	ip, err := netip.ParseAddr(c.base.Hostname())
	local := c.base.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	return c.token != "" && c.base.Scheme == "http" && !local
}

// Now returns the time by the clock of the worker.
func (c *Client) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// Watch sends a value when it is time for the next request, until end is called. The first value is sent at once.
func (c *Client) Watch() (changed <-chan struct{}, end func()) {
	due, quit := make(chan struct{}, 1), make(chan struct{})
	due <- struct{}{}
	tick := time.NewTicker(c.interval)
	go func() {
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			select {
			case due <- struct{}{}:
			default:
			}
		}
	}()
	return due, sync.OnceFunc(func() { tick.Stop(); close(quit) })
}

// Check makes one request, to find errors before the screen starts. Its error says what the user can do.
func (c *Client) Check(ctx context.Context) error {
	_, err := c.get(ctx, view.NewState(""), view.PageLoad)
	return err
}

// Fetch is view.Fetch for the worker. If the worker does not answer, Fetch returns the data of the last answer (the
// parameter before) with the error.
func (c *Client) Fetch(ctx context.Context, s *view.State, before *view.Data, _ time.Time, _, whole bool) *view.Data {
	pages := []view.Page{s.Page}
	if whole {
		pages = []view.Page{view.PageLoad, view.PageWho, view.PageBlocking}
		if s.PID != 0 {
			pages = append(pages, view.PageSession)
		}
		if s.Page == view.PageFlame {
			pages = append(pages, view.PageFlame)
		}
	}
	var d *view.Data
	for _, page := range pages {
		next, err := c.get(ctx, s, page)
		if err != nil {
			return view.Unanswered(s, before, c.Now(), err)
		}
		if d == nil {
			d = next
			continue
		}
		merge(d, next)
	}
	view.Received(d, s, before)
	return d
}

// merge adds the members of next, which is the data of another view, to d.
func merge(d, next *view.Data) {
	if next.Who != nil {
		d.Who = next.Who
	}
	if next.Comparison != nil {
		d.Comparison = next.Comparison
	}
	if next.Blocking != nil {
		d.Blocking = next.Blocking
	}
	if next.Flame != nil {
		d.Flame = next.Flame
	}
	if next.Session != nil {
		d.Session, d.Stack, d.Plan, d.Memory = next.Session, next.Stack, next.Plan, next.Memory
	}
	maps.Copy(d.Errors, next.Errors)
}

// get requests the data of a view.
func (c *Client) get(ctx context.Context, s *view.State, page view.Page) (*view.Data, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("screen", "data").String()+"?"+query(s, page), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "pg_stat_backtrace")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, c.explain(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(answer.Body, maxReason))
		return nil, c.refused(answer, render.VisibleLine(strings.TrimSpace(string(reason))))
	}
	d := &view.Data{}
	text, err := io.ReadAll(io.LimitReader(answer.Body, c.most+1))
	if err == nil && int64(len(text)) <= c.most && !parts.Allows(text) {
		return nil, fmt.Errorf("the answer of %s has more parts than a screen can show", c.Address())
	}
	if err == nil {
		err = json.Unmarshal(text, d)
	}
	if err != nil || int64(len(text)) > c.most {
		var opErr net.Error
		switch {
		case int64(len(text)) > c.most:
			return nil, fmt.Errorf("the answer of %s has more than %d MB", c.Address(), c.most>>20)
		case ctx.Err() != nil || errors.As(err, &opErr):
			return nil, fmt.Errorf("the connection to %s ended during the answer: %w", c.Address(), err)
		}
		return nil, fmt.Errorf("%s does not answer with the data of an incident screen: check the address, and that the "+
			"worker has this program's version (%w)", c.Address(), err)
	}
	if err := check(d); err != nil {
		return nil, fmt.Errorf("the answer of %s cannot be used: %w; update the worker", c.Address(), err)
	}
	c.mu.Lock()
	c.ahead = time.Until(d.Time)
	c.mu.Unlock()
	return d, nil
}

// query returns the parameters for a view.
func query(s *view.State, page view.Page) string {
	q := url.Values{"view": {view.Names()[page]}}
	if s.Live() {
		q.Set("seconds", strconv.Itoa(int(s.Window().Seconds())))
	} else {
		q.Set("from", s.Span.From.UTC().Format(time.RFC3339Nano))
		q.Set("to", s.Span.To.UTC().Format(time.RFC3339Nano))
		if !s.Moment.IsZero() {
			q.Set("at", s.Moment.UTC().Format(time.RFC3339Nano))
		}
	}
	switch page {
	case view.PageWho:
		q.Set("by", string(s.By))
		if !s.Compare.IsZero() {
			q.Set("compare", s.Compare.UTC().Format(time.RFC3339Nano))
		}
	case view.PageFlame:
		q.Set("side", string(s.Side))
	case view.PageSession:
		q.Set("pid", strconv.Itoa(s.PID))
	default:
	}
	for _, c := range s.Filter {
		q.Add("filter", string(c.By)+"="+c.Key)
	}
	return q.Encode()
}

// refused returns the error for an answer with another status than 200. reason is the text of the answer.
func (c *Client) refused(answer *http.Response, reason string) error {
	address := c.Address()
	switch status := answer.StatusCode; status {
	case http.StatusUnauthorized:
		if c.token == "" {
			return fmt.Errorf("the worker at %s needs a token: give --token-file with a token of the worker's --listen-token-file", address)
		}
		return fmt.Errorf("the worker at %s refuses the token in %s: it must be a line of the worker's --listen-token-file",
			address, render.VisibleLine(c.tokenFile))
	case http.StatusNotFound, http.StatusNotImplemented:
		return fmt.Errorf("the worker at %s has no incident screen: update it, or check the address", address)
	case http.StatusTooManyRequests:
		return fmt.Errorf("the worker at %s answers too many readers now: close other screens, or use a longer --interval", address)
	default:
		if status >= 300 && status < 400 {
			return fmt.Errorf("%s leads to another address: connect to %s", address, render.VisibleLine(answer.Header.Get("Location")))
		}
		return fmt.Errorf("the worker at %s answers %d: %s", address, status, reason)
	}
}

// explain says what the user can do about a connection that failed.
func (c *Client) explain(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) { // the text of a url.Error has all parameters of the request, which the user does not need
		err = failed.Err
	}
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		advice    string
	)
	switch {
	case errors.As(err, &authority):
		advice = "this host does not trust the certificate; set SSL_CERT_FILE to a file with the certificate of its authority"
	case errors.As(err, &name):
		advice = "use a name of the certificate in --connect"
	case errors.As(err, &invalid):
		advice = "renew the certificate of the worker, and compare the clocks of the hosts"
	case errors.As(err, &record) || strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		advice = "the worker does not use TLS; use http:// in --connect"
	case errors.Is(err, context.DeadlineExceeded):
		advice = fmt.Sprintf("no answer in %d s; check the address and the firewall", int(timeout.Seconds()))
	default:
		advice = "check that the worker runs with --listen at this address"
	}
	return fmt.Errorf("cannot reach the worker at %s: %w: %s", c.Address(), err, advice)
}

// check returns an error if the data has values that no screen can show.
func check(d *view.Data) error {
	const most, deepest, manyRows = 1e9, 10_000, 100_000
	number := func(values ...float64) bool {
		for _, v := range values {
			if v < 0 || v > most {
				return false
			}
		}
		return true
	}
	if d.Errors == nil {
		d.Errors = map[string]string{}
	}
	if d.Time.IsZero() || d.Info == nil && d.Errors["info"] == "" {
		return errors.New("it has no information about a server")
	}
	if d.Info != nil && !number(d.Info.Processors, d.Info.IntervalSeconds) {
		return errors.New("a number about the server is out of range")
	}
	if l := d.Load; l != nil {
		if l.ColumnSeconds <= 0 || !number(l.ColumnSeconds, l.Seconds) || len(l.Active) != len(l.Classes) || !number(l.Active...) ||
			len(l.Columns) > manyRows || len(l.Columns) == 0 || l.To.Before(l.From) {
			return errors.New("the load is not complete")
		}
		for _, x := range l.Columns {
			if x.Active != nil && len(x.Active) != len(l.Classes) || !number(x.Active...) {
				return errors.New("a column of the load is not complete")
			}
		}
	}
	if l := d.Load; l != nil && len(l.Gaps) > manyRows {
		return errors.New("the load has too many gaps")
	}
	if w := d.Who; w != nil {
		for i := range w.Rows {
			if !number(w.Rows[i].Active, w.Rows[i].Share) {
				return errors.New("a share is out of range")
			}
		}
	}
	if f := d.Flame; f != nil {
		depth := -1
		for i := range f.Nodes {
			n := &f.Nodes[i]
			if n.Depth < 0 || n.Depth > depth+1 || n.Depth > deepest || !number(n.Active, n.Self, n.OnCPU, f.Seconds) {
				return errors.New("a node of the flame graph is out of range")
			}
			depth = n.Depth
		}
	}
	if b := d.Blocking; b != nil {
		for i := range b.Nodes {
			if b.Nodes[i].Depth < 0 || b.Nodes[i].Depth > deepest {
				return errors.New("a blocked process is out of range")
			}
		}
	}
	if s := d.Session; s != nil && s.Now == nil && s.Time.IsZero() {
		d.Session, d.Errors["session"] = nil, source.ErrNoSession.Error()
	}
	return nil
}
