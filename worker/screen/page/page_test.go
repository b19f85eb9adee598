package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/screen/remote"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
	"pg_stat_backtrace/worker/serve/web"
)

const (
	viewToken     = "view-token-0123456789"
	operatorToken = "operator-token-0123456789"
	// hostile is an application that would be harmful as HTML.
	hostile = "<script>window.bad=1</script>\u202e"
)

// browserStreams counts the streams of the browser. openStreams is the number of streams that are open now.
var browserStreams, openStreams atomic.Int32

// start serves the page of a server.
func start(t *testing.T, dataDir string) (address string, p *Page) {
	t.Helper()
	return startBeside(t, dataDir, httptest.NewUnstartedServer(nil), nil)
}

// startBeside serves the page of a server beside the workers with these ports.
func startBeside(t *testing.T, dataDir string, s *httptest.Server, ports []int) (address string, p *Page) {
	t.Helper()
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		t.Fatal(err)
	}
	recorded := record(t, dataDir)
	p = New(func() (source.Source, error) {
		r, err := source.OpenRecorded(recorded, dataDir)
		if err != nil {
			return nil, err
		}
		return source.NewLive(source.Options{DataDir: dataDir, Capturer: capturer, Recorded: r})
	})
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(viewToken+"\noperator "+operatorToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(s.Listener.Addr().String()[strings.LastIndex(s.Listener.Addr().String(), ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	listener := web.New(web.Config{
		Address: web.Address{Network: "tcp", Host: "127.0.0.1", Port: port}, Ports: func() []int { return ports },
		Collect: func(_ context.Context, r web.ProfileRequest) (*profile.Profile, error) { return profileOf(r), nil },
		Render: func(w io.Writer, p *profile.Profile, format string) error {
			return profilefmt.Write(w, p, profilefmt.Options{Format: format})
		},
		TokenFile: tokens, Screen: &web.Screen{Files: p.Files(), View: p.Data(false), Operator: p.Data(true),
			ViewEvents: p.Events(false), OperatorEvents: p.Events(true), Actions: &web.Actions{
				Capture: p.Capture,
				Incident: func(_ context.Context, note string) ([]byte, error) {
					return json.Marshal(map[string]string{"id": note, "command": "show it"})
				},
				Waits: func(_ context.Context, pid int) (string, error) {
					return fmt.Sprintf("waits of %d %s\n", pid, hostile), nil
				},
			}},
	}).Handler()
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/screen/events" {
			openStreams.Add(1)
			defer openStreams.Add(-1)
			if r.UserAgent() != "Go-http-client/1.1" {
				browserStreams.Add(1)
			}
		}
		listener.ServeHTTP(w, r)
	})
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, p
}

// profileOf is a profile with a function whose name has the processes of the request.
func profileOf(r web.ProfileRequest) *profile.Profile {
	f := &profile.Function{ID: 1, Name: fmt.Sprintf("work_of_%v", r.PIDs)}
	l := &profile.Location{ID: 1, Line: []profile.Line{{Function: f}}}
	return &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "wall", Unit: "nanoseconds"}}, DurationNanos: int64(r.Duration),
		Sample:   []*profile.Sample{{Location: []*profile.Location{l}, Value: []int64{1e9}}},
		Function: []*profile.Function{f}, Location: []*profile.Location{l},
	}
}

// night is a recorded time of 20 minutes. For five of them, nothing was recorded.
var night = time.Now().Add(-26 * time.Hour).Truncate(time.Hour).UTC()

// record writes the history of the night. From the tenth minute on, process 71 blocks process 72.
func record(t *testing.T, dataDir string) string {
	t.Helper()
	control, err := cluster.ReadControl(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "state")
	w, err := store.Open(store.Options{Dir: dir, Meta: store.Meta{SystemID: control.ID()}, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	row := func(at time.Time, pid int32, state, wait, event string) store.Row {
		return store.Row{Time: at.UnixMicro(), PID: pid, Start: 1, Type: "client backend", State: state, WaitType: wait, WaitEvent: event,
			User: "night_user", App: hostile, Query: "select hidden_night"}
	}
	for at := night; at.Before(night.Add(20 * time.Minute)); at = at.Add(10 * time.Second) {
		if after := at.Sub(night); after >= 3*time.Minute && after < 8*time.Minute {
			continue
		}
		x := &store.Sweep{Time: at, Period: 10 * time.Second, Rows: []store.Row{row(at, 71, "idle in transaction", "Client", "ClientRead"), row(at, 72, "active", "", "")}}
		if at.Sub(night) >= 10*time.Minute {
			x.Rows[1].WaitType, x.Rows[1].WaitEvent = "Lock", "relation"
			x.Rows[1].BlockedBy = []store.Blocker{{PID: 71, Lock: "relation", Mode: "ShareLock", Object: "5/7"}}
		}
		if err := w.Append(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// atNight returns parameters for a part of the night, in minutes.
func atNight(from, to, at int) string {
	minute := func(n int) string { return night.Add(time.Duration(n) * time.Minute).Format(time.RFC3339) }
	return "&from=" + minute(from) + "&to=" + minute(to) + "&at=" + minute(at)
}

func get(t *testing.T, address, token string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// TestPage has a session with a hostile name that blocks another one.
func TestPage(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		s.Exec(t, "CREATE TABLE hidden_table AS SELECT 1 n")
		holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		// An application name has ASCII only, so the statement has the other characters.
		for _, sql := range []string{"SET application_name = '<script>window.bad=1</script>'", "BEGIN; LOCK TABLE hidden_table /* " + hostile + " */"} {
			if _, err := holder.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			_, _ = waiter.PgConn().Exec(t.Context(), "SELECT pg_sleep(3); SELECT n /* "+strings.Repeat("x", 10_000)+" */ FROM hidden_table").ReadAll()
		}()
		address, p := start(t, s.DataDir)
		t.Run("rights", func(t *testing.T) { rights(t, address, int(holder.PgConn().PID())) })
		t.Run("events", func(t *testing.T) { events(t, address) })
		t.Run("browser", func(t *testing.T) { inBrowser(t, address, int(holder.PgConn().PID())) })
		for name, test := range map[string]func(*testing.T, string){"choices": choices, "levels": otherLevels, "presses": presses, "filter": sameFilter} {
			t.Run(name, func(t *testing.T) { test(t, address) })
		}
		if browserStreams.Load() == 0 {
			t.Error("the page opened no stream")
		}
		// The server notices the end of a stream later. Then one more reader comes, however long ago the last one was here.
		pgtest.Wait(t, "the end of all streams", func() bool { return openStreams.Load() == 0 })
		p.mu.Lock()
		p.idle = time.Hour
		p.mu.Unlock()
		if status, body := get(t, address+"/screen/data?view=load", viewToken); status != 200 {
			t.Errorf("%d %s", status, body)
		}
		rest := func() {
			p.mu.Lock()
			p.timer.Stop()
			turn := p.turn
			p.mu.Unlock()
			p.rest(turn)
		}
		rest()
		if p.end != nil || p.src == nil {
			t.Error("the page still samples after its last reader")
		}
		rest()
		if p.src != nil {
			t.Error("the page keeps the samples")
		}
	})
}

func rights(t *testing.T, address string, pid int) {
	t.Helper()
	for path, want := range map[string]int{
		"/screen/": 200, "/screen/page.js": 200, "/screen/page.css": 200, "/screen/flame.js": 200, "/screen/time.js": 200, "/screen/graph.js": 200, "/screen/other": 404, "/screen/data?view=load": 401,
	} {
		if status, body := get(t, address+path, ""); status != want || strings.Contains(body, "script>window") {
			t.Errorf("%s without a token: %d, want %d", path, status, want)
		}
	}
	pgtest.Wait(t, "the server", func() bool { // a slow disk gives its program late
		status, body := get(t, address+"/screen/data?view=load", operatorToken)
		if status != 200 && !strings.Contains(body, "in time") {
			t.Fatalf("%d %s", status, body)
		}
		return status == 200
	})
	pgtest.Wait(t, "a finding", func() bool {
		_, body := get(t, address+"/screen/data?view=who&by=event&filter=event%3DLock%3Arelation", viewToken)
		if !strings.Contains(body, `"command":"pg_stat_backtrace top --connect URL --token-file FILE --batch --view who --by event --filter 'event=Lock:relation'"`) {
			t.Errorf("the command for a view token: %s", body)
		}
		_, body = get(t, address+"/screen/data?view=blocking", operatorToken)
		return strings.Contains(body, "blocks-") || strings.Contains(body, "blocks 1 session")
	})
	for _, query := range []string{"view=load", "view=who", "view=blocking", fmt.Sprintf("view=session&pid=%d", pid)} {
		status, body := get(t, address+"/screen/data?"+query, viewToken)
		if status != 200 || !strings.Contains(body, `"names":false`) {
			t.Errorf("%s: %d %s", query, status, body)
		}
		for _, name := range []string{"hidden_table", "script", "xxxx", `"user"`, `"database"`, "/base"} {
			if strings.Contains(body, name) {
				t.Errorf("%s shows %s to a view token: %s", query, name, body)
			}
		}
	}
	_, body := get(t, address+"/screen/data?view=who&by=event&filter=event%3DLock%3Arelation", viewToken)
	if !strings.Contains(body, `"command":"pg_stat_backtrace top --connect URL --token-file FILE --batch --view who --by event --filter 'event=Lock:relation'"`) {
		t.Errorf("the command for a view token: %s", body)
	}
	_, body = get(t, address+"/screen/data?view=blocking", operatorToken)
	if !strings.Contains(body, `"names":true`) || !strings.Contains(body, "hidden_table") {
		t.Errorf("an operator token does not see names: %s", body)
	}
	_, body = get(t, address+"/screen/data?view=who&filter=query%3Dtext-0123456789abcdef", operatorToken)
	if !strings.Contains(body, `top --connect URL --token-file FILE --batch --view who --by query --filter 'query=text-0123456789abcdef'"`) {
		t.Errorf("the command for a statement without a query id: %s", body)
	}
	for token, names := range map[string]bool{viewToken: false, operatorToken: true} {
		overHTTP(t, address, token, pid, names)
	}
	for token, want := range map[string]int{viewToken: 403, operatorToken: 200} {
		pgtest.Wait(t, "a stack", func() bool {
			status, body := capturePost(t, address, token, pid)
			taken := want != 200 || strings.Contains(body, "PostmasterMain")
			if status == http.StatusTooManyRequests { // after some attempts
				return false
			}
			if status != want || !taken && !strings.Contains(body, "in time") && !strings.Contains(body, "deadline exceeded") {
				t.Fatalf("a capture: %d %s", status, body)
			}
			return taken
		})
	}
	if status, body := capturePost(t, address, operatorToken, 1<<30); status != 500 || !strings.Contains(body, source.ErrNoSession.Error()) {
		t.Errorf("a capture of no process: %d %s", status, body) // the worker makes 404 of it
	}
	for at, want := range map[int]string{9: `"waiting":0`, 12: `"waiting":1`} {
		for token, names := range map[string]bool{viewToken: false, operatorToken: true} {
			_, body := get(t, address+"/screen/data?view=blocking"+atNight(0, 20, at), token)
			if !strings.Contains(body, want) || !strings.Contains(body, `"past":true`) || strings.Contains(body, "hidden_night") != (names && at == 12) {
				t.Errorf("minute %d of the night, names %v: %s", at, names, body)
			}
		}
	}
	if _, body := get(t, address+"/screen/data?view=load"+atNight(0, 20, 9), viewToken); !strings.Contains(body, `"reason":"the recorder did not run`) ||
		!strings.Contains(body, "--since") || !strings.Contains(body, `"kind":"minutes"`) {
		t.Errorf("the load of the night: %s", body)
	}
	for _, query := range []string{"from=2026-01-01T00:00:00Z", "from=x&to=y", "view=load" + atNight(5, 4, 4), "view=load" + atNight(0, 5, 6), "at=2126-01-01T00:00:00Z",
		"seconds=604801", "view=load&compare=2026-01-01T00:00:00Z", "view=who&compare=2126-01-01T00:00:00Z", "view=x", "pid=0", "view=session", "seconds=0", "filter=user", "filter=x%3Dy", "other=1", "by=x", "by=user&by=user"} {
		if status, body := get(t, address+"/screen/data?"+query, operatorToken); status != 400 || body == "" {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

// stream opens a stream of the page.
func stream(t *testing.T, ctx context.Context, address, token string) (status int, lines *bufio.Scanner) { //nolint:revive // t first
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r) // it accepts gzip
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	lines = bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 16<<20)
	return answer.StatusCode, lines
}

// events: a stream has a line for each second, ends with the rights of its token, and takes a bounded number of places.
func events(t *testing.T, address string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var before time.Time
	status, lines := stream(t, ctx, address+"/screen/events?view=blocking", operatorToken)
	for range 3 {
		if status != 200 || !lines.Scan() {
			t.Fatalf("status %d, %v", status, lines.Err())
		}
		var d Answer
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil || !d.Names || d.Blocking == nil || !d.Time.After(before) {
			t.Errorf("%v, %s", err, lines.Text())
		}
		before = d.Time
	}
	status, lines = stream(t, ctx, address+"/screen/events?view=blocking", viewToken)
	if status != 200 || !lines.Scan() || !strings.Contains(lines.Text(), `"names":false`) || strings.Contains(lines.Text(), "hidden_table") {
		t.Errorf("a view token: status %d, %v, %s", status, lines.Err(), lines.Text())
	}
	for query, want := range map[string]int{"view=load" + atNight(0, 20, 9): 400, "view=nothing": 400, "view=session": 400} {
		if status, _ := stream(t, ctx, address+"/screen/events?"+query, operatorToken); status != want {
			t.Errorf("%s: status %d", query, status)
		}
	}
	if status, _ := stream(t, ctx, address+"/screen/events?view=load", "none"); status != 401 {
		t.Errorf("without a token: status %d", status)
	}
	const each = 8 // streams of one source
	for range each - 2 {
		if status, _ := stream(t, ctx, address+"/screen/events?view=load", viewToken); status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if status, _ := stream(t, ctx, address+"/screen/events?view=load", viewToken); status != 429 {
		t.Errorf("one more than allowed: status %d", status)
	}
	if status, _ := get(t, address+"/screen/data?view=load", viewToken); status != 200 {
		t.Errorf("data while all streams are taken: status %d", status)
	}
	cancel()
	pgtest.Wait(t, "a place", func() bool {
		status, _ := stream(t, t.Context(), address+"/screen/events?view=load", viewToken)
		return status == 200
	})
}

func capturePost(t *testing.T, address, token string, pid int) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/screen/capture", strings.NewReader(fmt.Sprintf(`{"pid": %d}`, pid)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// overHTTP reads the page as the command top --connect does.
func overHTTP(t *testing.T, address, token string, pid int, names bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := remote.New(address+"/screen/", file, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s := view.NewState("")
	s.PID, s.Connect = pid, client.Address()
	var d *view.Data
	pgtest.Wait(t, "an answer", func() bool { // a busy machine may be too slow for a time limit
		d = client.Fetch(t.Context(), s, nil, time.Time{}, true, true)
		slow := fmt.Sprint(d.Errors, d.Info.Error)
		return !strings.Contains(slow, "in time") && !strings.Contains(slow, "deadline exceeded") && !strings.Contains(slow, "Timeout exceeded")
	})
	if d.Info.Error != "" || d.Load == nil || d.Who == nil || len(d.Blocking.Nodes) != 2 || d.Session == nil || d.Session.Now == nil {
		t.Fatalf("%+v, errors %v", d.Info, d.Errors)
	}
	if got := d.Stack != nil && len(d.Stack.Frames) > 5; got != names {
		t.Errorf("a stack: %v, want %v", got, names)
	}
	s.Page = view.PageFlame
	pgtest.Wait(t, "stacks", func() bool {
		d := client.Fetch(t.Context(), s, nil, time.Time{}, true, false)
		if !names {
			return d.Flame == nil && needsOperator(d.Errors["flame"])
		}
		return d.Flame != nil && len(d.Flame.Nodes) > 1 && d.Flame.Sampled > 0 && d.Flame.OffCPU > 0.5
	})
	s.Page = view.PageBlocking
	g := view.NewGrid(120, 40)
	view.Draw(g, s, d, client.Now())
	if text := g.Plain(); strings.Contains(text, "hidden_table") != names || !strings.Contains(text, "1 process waits for locks, in 1 tree") {
		t.Errorf("names %v:\n%s", names, text)
	}
}

// tab is a page in Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func openTab(t *testing.T) tab {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server and Chromium: not with -short")
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium in PATH")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WSURLReadTimeout(2*time.Minute))
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(alloc)
	ctx, cancelTime := context.WithTimeout(ctx, 8*time.Minute)
	t.Cleanup(func() { cancelTime(); cancel(); cancelAlloc() })
	return tab{t, ctx}
}

func (x tab) run(actions ...chromedp.Action[chromedp.Void]) {
	x.t.Helper()
	if err := chromedp.Do(x.ctx, actions...); err != nil {
		x.t.Fatal(err)
	}
}

// wait waits until an expression is true.
func (x tab) wait(expression string) {
	x.t.Helper()
	poll := chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(3*time.Minute))
	if _, err := chromedp.Run(x.ctx, poll); err != nil {
		state, _ := chromedp.Run(x.ctx, chromedp.Evaluate[string](`location.hash + " focus " + document.hasFocus() + "\n" + document.body.innerText`))
		x.t.Fatalf("waiting for %s: %v; the page:\n%s", expression, err, state)
	}
}

func (x tab) do(expression string) {
	x.t.Helper()
	if _, err := chromedp.Run(x.ctx, chromedp.Evaluate[bool]("("+expression+", true)")); err != nil {
		x.t.Fatalf("%s: %v", expression, err)
	}
}

func (x tab) press(key string) {
	x.t.Helper()
	x.do(fmt.Sprintf(`dispatchEvent(new KeyboardEvent("keydown", {key: %q}))`, key))
}

// enter opens the page with a token.
func (x tab) enter(address, token string) {
	x.t.Helper()
	x.run(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(address+"/screen/"))
	x.wait(`!document.getElementById("login").hidden`)
	x.do(fmt.Sprintf(`document.getElementById("token").value = %q, document.getElementById("login").requestSubmit()`, token))
}

func inBrowser(t *testing.T, address string, pid int) {
	t.Helper()
	x := openTab(t)
	ctx, run, wait, do, press := x.ctx, x.run, x.wait, x.do, x.press
	x.enter(address, operatorToken)
	wait(`document.body.innerText.includes("blocks 1 session")`)
	for i, name := range []string{"load", "who", "blocking"} {
		do(fmt.Sprintf(`dispatchEvent(new KeyboardEvent("keydown", {key: "%d"}))`, i+1))
		look(t, ctx, run, wait, name)
	}
	// The statement began three seconds before the wait for the lock.
	wait(`(() => { const b = last?.blocking, n = b?.nodes.find((x) => x.depth === 1), waits = n && age(n.waits[0].since, b.time);
		return n && waits !== age(n.session.state_change, b.time) && document.querySelectorAll("#main tr[data-key]")[1].lastElementChild.textContent === waits; })()`)
	do(`document.querySelectorAll("#main tr[data-key]")[1].select()`)
	wait(`document.getElementById("node").innerText.includes("It waits for relation hidden_table in AccessShareLock, for ")`)
	wait(`document.body.innerText.includes("<script>window.bad=1</script>") && document.body.innerText.includes("<U+202E>")`)
	// An idle server has no classes, and Go writes an empty list as null.
	for part, show := range map[string]string{
		`{from: "2026-01-01T00:00:00Z", to: "2026-01-01T00:01:00Z", classes: null, columns: null, active_sessions: null}`: "chart",
		`{findings: null}`: "findings", `{sessions: null}`: "sessions", `{rows: null, by: "query"}`: "who", `{nodes: null}`: "blocking",
	} {
		do(show + "(" + part + ")")
	}
	do(`window.marks = [], window.fill = CanvasRenderingContext2D.prototype.fillText, CanvasRenderingContext2D.prototype.fillText = function (...x) {
		marks.push(x[0]); return fill.apply(this, x); }, chart({from: "2026-01-01T00:00:00Z", to: "2026-01-01T00:01:00Z", classes: ["CPU"],
		column_seconds: 1, columns: [{time: "2026-01-01T00:00:00Z", active_sessions: [1.4]}], active_sessions: [1.4]}, 1)`)
	wait(`marks.includes("1.4")`)
	do(`CanvasRenderingContext2D.prototype.fillText = fill`)
	// A state that began in the future, as the clock was set back, has no age.
	wait(`((at, since) => after(" for ", at, at) === " for 0 s" && !/0 s|for \d|advanced/.test([
		...nodePanel({time: at}, {pid: 0, waits: [{pid: 0, lock: "relation", since}], session: {state: "active", state_change: since, xact_start: since}}),
		...replay({last: at, replay: {lag_bytes: 5, stands_since: since}}), findings({time: at, findings: [{text: "x", at_least: true, since}]}),
		].map((x) => x.textContent).join()))("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z")`)
	// The clock of the browser is five minutes ahead.
	do(`window.before = last.time, window.RealDate = Date, window.Date = class extends RealDate {
		constructor(...x) { if (x.length) super(...x); else super(RealDate.now() + 300000); } static now() { return RealDate.now() + 300000; } }`)
	wait(`last.time !== before && /^live · sample \d+ s old$/.test(document.getElementById("age").textContent)`)
	do(`window.Date = RealDate`)
	do(fmt.Sprintf(`location.hash = "view=session&pid=%d"`, pid))
	look(t, ctx, run, wait, "session")
	wait(`document.querySelector("main .line") !== null`)
	press("c")
	wait(`held !== null && document.getElementById("main").innerText.includes("Captured at ")`)
	wait(`last.time !== held.time && document.getElementById("main").innerText.includes("Captured at ")`)
	press("y")
	wait(fmt.Sprintf(`document.querySelector("#message code").textContent === "pg_stat_backtrace capture --nonstop %d"`, pid))
	press("/")
	do(`document.getElementById("search").value = "POSTMASTERMAIN", document.getElementById("find").requestSubmit()`)
	wait(`document.activeElement.className === "line" && document.activeElement.textContent.includes("PostmasterMain")`)
	do(`document.activeElement.blur()`)
	press("i")
	wait(`document.getElementById("incident").open && document.activeElement.id === "note"`)
	do(`document.getElementById("note").value = "<b>slow</b>", document.getElementById("incident-form").requestSubmit()`)
	wait(`document.getElementById("message").innerText.includes("Incident <b>slow</b>") && document.querySelector("#message code").textContent === "show it"`)
	for key, want := range map[string]string{"p": fmt.Sprintf("work_of_[%d]", pid), "w": fmt.Sprintf("waits of %d <script>window.bad=1</script><U+202E>", pid)} {
		press(key)
		wait(fmt.Sprintf(`measured?.text && document.getElementById("main").innerText.includes(%q)`, want))
		press("y")
		wait(fmt.Sprintf(`document.querySelector("#message code").textContent.includes(%q)`, strconv.Itoa(pid)))
		press("Escape")
		wait(`measured === null && held !== null`)
	}
	press("Escape")
	wait(`held === null && !document.getElementById("main").innerText.includes("Captured at ")`)
	press("5")
	wait(fmt.Sprintf(`state().getAll("filter").join() === "session=%d" && document.getElementById("main").innerText.includes("No stack passes the filter")`, pid))
	press("r")
	wait(`flameView.tree && flameView.tree.nodes.length > 1 && flameView.graph.rows.length > 1 && flameView.canvas.width > 100`)
	look(t, ctx, run, wait, "flame")
	do(`flameView.box.focus()`)
	for _, key := range []string{"ArrowDown", "Enter"} {
		do(fmt.Sprintf(`flameView.box.dispatchEvent(new KeyboardEvent("keydown", {key: %q, bubbles: true}))`, key))
	}
	wait(`flameView.graph.zoom === 1 && flameView.detail.textContent.includes("PostmasterMain")`)
	do(`window.before = last.time`)
	wait(`last.time !== window.before && flameView.graph.zoom > 0 && document.activeElement === flameView.box`) // after new data
	do(`flameView.box.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}))`)
	wait(`flameView.graph.zoom === 0`)
	do(`flameView.side.value = "on-cpu", flameView.side.dispatchEvent(new Event("change"))`)
	wait(`state().get("side") === "on-cpu" && last?.flame?.side === "on-cpu"`)
	do(fmt.Sprintf(`location.hash = "view=session&pid=%d"`, pid))
	earlierTime(t, do, press, wait)
	do(fmt.Sprintf(`location.hash = "view=load%s"`, atNight(0, 20, 12)))
	look(t, ctx, run, wait, "load")
	press("0")
	wait(`isLive() && document.getElementById("age").textContent.startsWith("live") && document.getElementById("live").hidden`)
	do(fmt.Sprintf(`location.hash = "view=session&pid=%d"`, pid))
	press("?")
	wait(`document.getElementById("help").open && document.getElementById("help").innerText.includes("copy the command")`)
	press("3") // the help is above the view
	press("q")
	wait(`!document.getElementById("help").open && view() === "session"`)
	press("/")
	do(`document.getElementById("search").value = "no such text", document.getElementById("find").requestSubmit()`)
	wait(`document.getElementById("message").innerText.includes("No row of this view has: no such text")`)
	wait(`!document.querySelector("main script") && window.bad === undefined`)
}

// earlierTime goes to the night by the address, the keys, the pointer and the dialog.
func earlierTime(t *testing.T, do, press, wait func(string)) {
	t.Helper()
	do(fmt.Sprintf(`location.hash = "view=load%s"`, atNight(0, 20, 9)))
	wait(`document.getElementById("age").textContent.startsWith("sessions of ") && document.querySelector("canvas.chart") !== null`)
	wait(`document.getElementById("main").innerText.includes("the recorder did not run") && !document.getElementById("main").innerText.includes("blocks 1 session")`)
	wait(`document.getElementById("span").textContent.includes(zone) && document.getElementById("seconds").value === ""`)
	for range 6 { // twelve seconds each
		press("ArrowRight")
	}
	wait(`document.getElementById("main").innerText.includes("PID 71 ") && document.getElementById("main").innerText.includes("blocks 1 session")`)
	press("<")
	wait(fmt.Sprintf(`shown().from === %d && last.load && Date.parse(last.load.from) === shown().from`, night.Add(-10*time.Minute).UnixMilli()))
	press(">")
	press("+")
	wait(fmt.Sprintf(`shown().to - shown().from === 900000 && shown().at === %d && document.getElementById("seconds").value === "900"`,
		night.Add(10*time.Minute+12*time.Second).UnixMilli()))
	wait(`last.load.columns.some((c) => c.kind === "recorded")`)
	// A click in the middle of the chart chooses the moment, a drag over the second half a span.
	point := `((kind, part) => { const c = document.querySelector("canvas.chart"), r = c.getBoundingClientRect();
		c.dispatchEvent(new PointerEvent(kind, { bubbles: true, button: 0, pointerType: "mouse", clientY: r.top + 50, clientX: r.left + 34 + part * (r.width - 34) })); })`
	do(point + `("pointerdown", 0.5), ` + point + `("pointerup", 0.5)`)
	wait(`Math.abs(shown().at - (shown().from + shown().to) / 2) < 5000 && Date.parse(last.info.last) === Math.floor(shown().at / 10000) * 10000`)
	do(`window.before = shown(), ` + point + `("pointerdown", 0.5), ` + point + `("pointermove", 0.75), ` + point + `("pointerup", 1)`)
	wait(`shown().at === null && Math.abs(shown().to - window.before.to) < 5000 && Math.abs(shown().to - shown().from - 450000) < 10000`)
	press("t")
	wait(`document.getElementById("time").open && document.getElementById("time-zone").textContent.includes(zone)`)
	do(fmt.Sprintf(`document.getElementById("time-from").value = new Date(%d - new Date(%[1]d).getTimezoneOffset() * 60000).toISOString().slice(0, 19),
		document.getElementById("time-to").value = "", document.getElementById("time-form").requestSubmit()`, night.Add(11*time.Minute).UnixMilli()))
	wait(fmt.Sprintf(`shown().at === %d && Date.parse(last.info.last) === %[1]d && last.info.sessions.waiting_for_locks === 1 && !document.getElementById("time").open`, night.Add(11*time.Minute).UnixMilli()))
	press("y")
	wait(`document.querySelector("#message code").textContent.includes(" --at ")`)
	do(fmt.Sprintf(`location.hash = "view=who&by=event%s"`, strings.TrimSuffix(atNight(11, 14, 0), "&at="+night.Format(time.RFC3339))))
	wait(`last.who?.rows?.length === 1`)
	press("v")
	wait(`document.getElementById("versus").open`)
	do(fmt.Sprintf(`document.getElementById("versus-from").value = new Date(%d - new Date(%[1]d).getTimezoneOffset() * 60000).toISOString().slice(0, 19),
		document.getElementById("versus-form").requestSubmit()`, night.UnixMilli()))
	wait(`last.comparison?.rows.length === 2 && document.getElementById("main").innerText.includes("+1.0") && document.getElementById("main").innerText.includes("−1.0")`)
	press("v")
	wait(`!state().get("compare") && !last.comparison`)
}

// look waits for a view, and checks that it needs no horizontal scrolling on a phone.
func look(
	t *testing.T, ctx context.Context, run func(...chromedp.Action[chromedp.Void]), wait func(string), name string, //nolint:revive // t comes first in tests
) {
	t.Helper()
	wait(fmt.Sprintf(`document.body.dataset.ready === %q && document.querySelector("main section .scroll") !== null`, name))
	for _, width := range []int64{1280, 390} {
		run(chromedp.EmulateViewport(width, 800))
		wait(`document.documentElement.scrollWidth <= innerWidth`)
		if dir := os.Getenv("PGSB_TEST_SCREENSHOTS"); dir != "" {
			png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("screen-%s-%d.png", name, width)), png, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
