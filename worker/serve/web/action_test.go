package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/logtest"
)

const operatorSecret = "operator-horse-battery-staple"

// actionsOf starts a server with actions that count their runs.
func actionsOf(t *testing.T) (address string, a *Actions, ran func() []string, records func() []logtest.Line) {
	t.Helper()
	var mu sync.Mutex
	var runs []string
	var seen []logtest.Line
	note := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		runs = append(runs, text)
	}
	a = &Actions{
		Capture:  func(context.Context, int) ([]byte, error) { note("capture"); return []byte(`{"stack":1}`), nil },
		Incident: func(_ context.Context, n string) ([]byte, error) { note("incident " + n); return []byte("{}"), nil },
	}
	log := logtest.New(func(l logtest.Line) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, l)
	})
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(secret+"\noperator "+operatorSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address, _ = run(t, Config{TokenFile: file, Log: log, Screen: &Screen{Files: text("file"), View: text("view"), Operator: text("operator"), Actions: a}})
	ran = func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(runs) }
	records = func() []logtest.Line { mu.Lock(); defer mu.Unlock(); return slices.Clone(seen) }
	return "http://" + address, a, ran, records
}

// post makes a request of an operator a POST with a body of JSON.
func post(body string, change ...func(*http.Request)) func(*http.Request) {
	return func(r *http.Request) {
		r.Method = http.MethodPost
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Authorization", "Bearer "+operatorSecret)
		r.Header.Set("Content-Type", "application/json")
		for _, f := range change {
			f(r)
		}
	}
}

// TestActionsRefused: no request except one of an operator, with JSON, and of no other page, starts an action.
func TestActionsRefused(t *testing.T) {
	base, _, ran, records := actionsOf(t)
	const body = `{"pid": 4711}`
	basic := func(r *http.Request) { r.SetBasicAuth("x", operatorSecret) }
	noToken := func(r *http.Request) { r.Header.Del("Authorization") }
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	twice := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add(name, value) }
	}
	host := strings.TrimPrefix(base, "http://")
	for name, c := range map[string]struct {
		path   string
		change func(*http.Request)
		status int
	}{
		"GET":                       {actionCapture, setHeader("Authorization", "Bearer "+operatorSecret), 405},
		"PUT":                       {actionCapture, post(body, func(r *http.Request) { r.Method = http.MethodPut }), 405},
		"preflight":                 {actionCapture, post("", func(r *http.Request) { r.Method = http.MethodOptions }, noToken), 405},
		"no token":                  {actionCapture, post(body, noToken), 401},
		"wrong token":               {actionCapture, post(body, setHeader("Authorization", "Bearer "+operatorSecret+"x")), 401},
		"view token":                {actionCapture, post(body, setHeader("Authorization", "Bearer "+secret)), 403},
		"view token, incident":      {actionIncident, post("{}", setHeader("Authorization", "Bearer "+secret)), 403},
		"operator by URL":           {actionCapture, post(body, basic), 403},
		"the word with the token":   {actionCapture, post(body, setHeader("Authorization", "Bearer operator "+operatorSecret)), 401},
		"other origin":              {actionCapture, post(body, setHeader("Origin", "http://evil.example")), 403},
		"origin null":               {actionCapture, post(body, setHeader("Origin", "null")), 403},
		"origin with another port":  {actionCapture, post(body, setHeader("Origin", "http://127.0.0.1:1")), 403},
		"two origins":               {actionCapture, post(body, setHeader("Origin", base), twice("Origin", "http://evil.example")), 403},
		"origin with a user":        {actionCapture, post(body, setHeader("Origin", "http://"+host+"@evil.example")), 403},
		"cross-site":                {actionCapture, post(body, setHeader("Sec-Fetch-Site", "cross-site"), setHeader("Origin", base)), 403},
		"same-site":                 {actionCapture, post(body, setHeader("Sec-Fetch-Site", "same-site"), setHeader("Origin", base)), 403},
		"no page":                   {actionCapture, post(body, setHeader("Sec-Fetch-Site", "none")), 403},
		"two sites":                 {actionCapture, post(body, setHeader("Sec-Fetch-Site", "same-origin"), twice("Sec-Fetch-Site", "cross-site")), 403},
		"other host":                {actionCapture, post(body, setHost("evil.example")), 403},
		"form":                      {actionCapture, post("pid=1", setHeader("Content-Type", "application/x-www-form-urlencoded")), 415},
		"text":                      {actionCapture, post(body, setHeader("Content-Type", "text/plain")), 415},
		"no type":                   {actionCapture, post(body, func(r *http.Request) { r.Header.Del("Content-Type") }), 415},
		"two types":                 {actionCapture, post(body, twice("Content-Type", "text/plain")), 415},
		"other charset":             {actionCapture, post(body, setHeader("Content-Type", "application/json; charset=utf-16")), 415},
		"compressed":                {actionCapture, post(body, setHeader("Content-Encoding", "gzip")), 415},
		"parameters":                {actionCapture + "?pid=1", post(body), 400},
		"large":                     {actionCapture, post(`{"pid": 1` + strings.Repeat(" ", maxAction) + "}"), 413},
		"large, of unknown length":  {actionCapture, post(`{"pid": 1`+strings.Repeat(" ", maxAction)+"}", chunked), 413},
		"huge":                      {actionIncident, post(`{"note": "` + strings.Repeat("x", 10<<20) + `"}`), 413},
		"empty":                     {actionCapture, post(""), 400},
		"no object":                 {actionCapture, post("4711"), 400},
		"null":                      {actionIncident, post(" null"), 400},
		"list":                      {actionIncident, post("[]"), 400},
		"two objects":               {actionCapture, post(body + body), 400},
		"rest":                      {actionCapture, post(body + "]"), 400},
		"other member":              {actionCapture, post(`{"pid": 1, "stop": true}`), 400},
		"note of a capture":         {actionCapture, post(`{"pid": 1, "note": "x"}`), 400},
		"no pid":                    {actionCapture, post("{}"), 400},
		"negative pid":              {actionCapture, post(`{"pid": -1}`), 400},
		"large pid":                 {actionCapture, post(`{"pid": 2147483648}`), 400},
		"text as pid":               {actionCapture, post(`{"pid": "1"}`), 400},
		"pid of an incident":        {actionIncident, post(`{"pid": 1}`), 400},
		"control characters":        {actionIncident, post(`{"note": "\u001b[2J"}`), 400},
		"direction characters":      {actionIncident, post(`{"note": "\u202e"}`), 400},
		"long note":                 {actionIncident, post(`{"note": "` + strings.Repeat("ü", maxNote+1) + `"}`), 400},
		"not UTF-8":                 {actionIncident, post("{\"note\": \"\xff\"}"), 400},
		"deep":                      {actionIncident, post(strings.Repeat("[", maxAction-1)), 400},
		"other path":                {actionCapture + "/", post(body), 405},
		"POST to the data":          {screenData, post(body), 405},
		"POST to another page":      {"/metrics", post(body), 405},
		"path with an encoded byte": {"/screen/captur%65", post("", noToken), 401},
	} {
		status, err := try(t, base+c.path, c.change)
		if err != nil && name != "huge" { // the worker closes the connection before the body has been sent
			t.Errorf("%s: %v", name, err)
		} else if err == nil && status != c.status {
			t.Errorf("%s: %d, want %d", name, status, c.status)
		}
	}
	if runs := ran(); len(runs) > 0 {
		t.Errorf("these actions ran: %v", runs)
	}
	for _, r := range records() {
		status, _ := r.Fields["status"].(float64)
		failure, _ := r.Fields["failure"].(string)
		if status < 400 || failure == "" || r.Fields["token_sha256"] != nil && status == 401 || strings.Contains(failure, operatorSecret) {
			t.Errorf("%+v", r)
		}
	}
}

// try makes a request that may fail.
func try(t *testing.T, url string, change func(*http.Request)) (status int, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	change(r)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: soon}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// TestActions runs actions, and floods them.
func TestActions(t *testing.T) {
	base, a, ran, records := actionsOf(t)
	for _, origin := range []func(*http.Request){
		func(*http.Request) {}, setHeader("Origin", base),
		func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin"); r.Header.Set("Origin", base) },
	} {
		status, body, header := ask(t, base+actionCapture, post(`{"pid": 4711}`, origin))
		if status != 200 || body != `{"stack":1}` || header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %s %v", status, body, header)
		}
	}
	if status, body, _ := ask(t, base+actionIncident, post(`{"note": "slow: größer"}`)); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if runs := ran(); !slices.Equal(runs, []string{"capture", "capture", "capture", "incident slow: größer"}) {
		t.Errorf("%v", runs)
	}
	last := records()[3].Fields
	token, _ := last["token_sha256"].(string)
	if last["action"] != "incident" || last["note"] != "slow: größer" || last["status"] != 200.0 || len(token) != 8 || last["from"] == "" {
		t.Errorf("%+v", last)
	}

	// One incident at a time.
	began, end := make(chan struct{}), make(chan struct{})
	a.Incident = func(context.Context, string) ([]byte, error) { close(began); <-end; return []byte("{}"), nil }
	first := make(chan int, 1)
	go func() {
		status, _ := try(t, base+actionIncident, post("{}"))
		first <- status
	}()
	<-began
	if status, body, h := ask(t, base+actionIncident, post("{}")); status != 429 || !strings.Contains(body, "is running") || h.Get("Retry-After") == "" {
		t.Errorf("a second incident: %d %s", status, body)
	}
	close(end)
	if status := <-first; status != 200 {
		t.Errorf("the first incident: %d", status)
	}
	// The token has used up its incidents: the bucket gets one a minute.
	a.Incident = func(context.Context, string) ([]byte, error) { panic("boom") }
	refused := 0
	for range 50 {
		if status, _, _ := ask(t, base+actionIncident, post("{}")); status == 429 {
			refused++
		}
	}
	if refused < 40 {
		t.Errorf("a flood: only %d of 50 were refused", refused)
	}
	// A refusal with a status, an error and a panic are answers.
	for want, f := range map[int]func(context.Context, int) ([]byte, error){
		404: func(context.Context, int) ([]byte, error) { return nil, &ActionError{404, "no such process"} }, //nolint:unparam // as the field is
		500: func(context.Context, int) ([]byte, error) { return nil, errors.New("broken") },
	} {
		a.Capture = f
		if status, body, _ := ask(t, base+actionCapture, post(`{"pid": 1}`)); status != want {
			t.Errorf("%d %s, want %d", status, body, want)
		}
	}
	a.Capture = func(context.Context, int) ([]byte, error) { panic("boom") }
	if status, body, _ := ask(t, base+actionCapture, post(`{"pid": 1}`)); status != 500 {
		t.Errorf("a panic: %d %s", status, body)
	}
}

// TestMeasureMissingProcess expects 404 for a profile of a process that the server does not have, as an action and as a request.
func TestMeasureMissingProcess(t *testing.T) {
	s := New(Config{
		Collect: func(context.Context, ProfileRequest) (*profile.Profile, error) {
			return nil, fmt.Errorf("%w: 1", ErrNoProcess)
		},
		Render: func(io.Writer, *profile.Profile, string) error { return nil },
		Screen: &Screen{Actions: &Actions{}},
	})
	_, err := s.measure(t.Context(), actionProfile, 1)
	if own := (*ActionError)(nil); !errors.As(err, &own) || own.Status != http.StatusNotFound {
		t.Errorf("%v", err)
	}
}

// TestRefusedActionsLogged: a flood of refused actions gives a bounded number of records.
func TestRefusedActionsLogged(t *testing.T) {
	records := 0
	s := New(Config{
		Screen: &Screen{Files: text(""), View: text(""), Operator: text(""), Actions: &Actions{}},
		Log:    logtest.New(func(logtest.Line) { records++ }),
	})
	const refusals = 5000
	for range refusals {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1"+actionCapture, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		s.Handler().ServeHTTP(&discard{h: http.Header{}}, r)
	}
	// The bound is a burst of 100 and 10 a second. A loop of a minute would still be below the half.
	if records == 0 || records > refusals/2 {
		t.Errorf("%d records of %d refusals", records, refusals)
	}
}

// discard is an answer that no client gets.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header       { return d.h }
func (*discard) Write(b []byte) (int, error) { return len(b), nil }
func (*discard) WriteHeader(int)             {}
