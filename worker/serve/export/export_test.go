package export

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"pg_stat_backtrace/internal/logtest"
	"pg_stat_backtrace/worker/host"
)

const soon = 60 * time.Second

// wait waits for a condition.
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for late := time.Now().Add(soon); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// sample is a profile of two backends and the checkpointer.
func sample() *profile.Profile {
	m := &profile.Mapping{ID: 1, Start: 0x1000, Limit: 0x9000, Offset: 0x100, File: "/usr/bin/postgres", BuildID: "abc123"}
	names := []string{"ExecScan", "ExecutorRun", "CheckpointerMain"}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "offcpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "offcpu", Unit: "nanoseconds"}, Period: 10_000_000,
		TimeNanos: 1_790_000_000_000_000_000, DurationNanos: int64(time.Minute), Mapping: []*profile.Mapping{m},
	}
	for i, name := range names {
		id := uint64(i + 1)
		f := &profile.Function{ID: id, Name: name, SystemName: name, Filename: name + ".c"}
		p.Function = append(p.Function, f)
		p.Location = append(p.Location, &profile.Location{
			ID: id, Mapping: m, Address: 0x2000 + id, Line: []profile.Line{{Function: f, Line: int64(10 * id)}},
		})
	}
	add := func(backend, pid, query, event string, value int64, locations ...*profile.Location) {
		p.Sample = append(p.Sample, &profile.Sample{
			Value: []int64{value, value * 10_000_000}, Location: locations, Label: map[string][]string{
				"backend_type": {backend}, "pid": {pid}, "query_id": {query}, "wait_event": {event},
			},
		})
	}
	add("client backend", "1", "11", "WALSync", 2, p.Location[0], p.Location[1])
	add("client backend", "2", "22", "WALSync", 3, p.Location[0], p.Location[1])
	add("checkpointer", "3", "", "CheckpointerMain", 5, p.Location[2])
	return p
}

// receiver is an HTTP server that answers as a test wants it.
type receiver struct {
	*httptest.Server

	mu       sync.Mutex
	requests []*http.Request
	bodies   [][]byte
	answer   http.HandlerFunc
}

func receive(t *testing.T, answer http.HandlerFunc) *receiver {
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		compressed, err := gzip.NewReader(req.Body)
		if err != nil {
			t.Errorf("the body is not compressed: %v", err)
			return
		}
		body, err := io.ReadAll(compressed)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.requests, r.bodies = append(r.requests, req), append(r.bodies, body)
		answer := r.answer
		r.mu.Unlock()
		answer(w, req)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) set(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

// accept answers as Pyroscope does.
func accept(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/proto")
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// Parts of messages of the log.
const (
	sendFailed    = "does not accept"
	recovered     = "accepts profiles again"
	spoolUnread   = "cannot read a profile"
	headersKept   = "the file with headers"
	collectFailed = "cannot make profiles"
)

// events collects the lines of a log.
type events struct {
	mu  sync.Mutex
	all []logtest.Line
}

func (e *events) add(line logtest.Line) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, line)
}

func (e *events) count(message, text string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, line := range e.all {
		if strings.Contains(line.Message, message) && strings.Contains(line.Error, text) {
			n++
		}
	}
	return n
}

// fast is how long things take in tests.
var fast = timing{request: soon, minPause: time.Millisecond, maxPause: 5 * time.Millisecond, maxAge: time.Hour}

// export runs an exporter that makes as many profiles as are asked for through the channel.
func export(t *testing.T, cfg Config) (e *Exporter, profiles chan<- *profile.Profile, told *events, stop func()) {
	t.Helper()
	made := make(chan *profile.Profile)
	told = &events{}
	cfg.Mode, cfg.Cluster, cfg.Host, cfg.Log = "offcpu", "main", "db1", logtest.New(told.add)
	if cfg.timing == (timing{}) {
		cfg.timing = fast
	}
	cfg.Collect = func(ctx context.Context, _ time.Duration) (*profile.Profile, error) {
		select {
		case p := <-made:
			if p == nil {
				return nil, errors.New("no right")
			}
			return p, nil
		case <-ctx.Done():
			return &profile.Profile{}, nil
		}
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.cfg.Interval = time.Millisecond // shorter than a user may choose
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return e, made, told, stop
}

// fields returns the values of a field of a message.
func fields(t *testing.T, message []byte, number protowire.Number) (values [][]byte) {
	t.Helper()
	err := eachField(message, func(n protowire.Number, kind protowire.Type, value []byte) error {
		if n == number && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(value)
			values = append(values, inner)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// TestPyroscope: a request has a series for each type of backend, with labels, and profiles without process ids.
func TestPyroscope(t *testing.T) {
	r := receive(t, accept)
	headers := filepath.Join(t.TempDir(), "headers")
	text := "# for the receiver\nX-Scope-OrgID: team-a\nAuthorization: Bearer a-secret\n"
	if err := os.WriteFile(headers, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, profiles, _, _ := export(t, Config{Pyroscope: r.URL + "/base", HeaderFile: headers, Version: "1.2"})
	profiles <- sample()
	wait(t, "a request", func() bool { return e.Figures()[0].Sent == 2 })
	request := r.requests[0]
	if request.URL.Path != "/base/push.v1.PusherService/Push" || request.Method != http.MethodPost {
		t.Errorf("%s %s", request.Method, request.URL)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/proto", "Connect-Protocol-Version": "1", "X-Scope-Orgid": "team-a",
		"Authorization": "Bearer a-secret", "User-Agent": "pg_stat_backtrace/1.2",
	} {
		if got := request.Header.Get(name); got != value {
			t.Errorf("%s: %q", name, got)
		}
	}
	var got []string
	for _, s := range fields(t, r.bodies[0], pushSeries) {
		var line strings.Builder
		for _, pair := range fields(t, s, seriesLabels) {
			fmt.Fprintf(&line, "%s=%s ", fields(t, pair, labelName)[0], fields(t, pair, labelValue)[0])
		}
		raw := fields(t, s, seriesSamples)[0]
		p, err := profile.ParseData(fields(t, raw, sampleProfile)[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range p.Sample {
			fmt.Fprintf(&line, "%v %d %v;", one.Value, len(one.Location), one.Label)
		}
		if p.TimeNanos != sample().TimeNanos || len(fields(t, raw, sampleID)[0]) != 36 {
			t.Errorf("profile %v", p)
		}
		got = append(got, line.String())
	}
	want := []string{
		"__name__=offcpu service_name=main cluster=main backend_type=checkpointer mode=offcpu instance=db1 " +
			"[5 50000000] 1 map[];",
		"__name__=offcpu service_name=main cluster=main backend_type=client backend mode=offcpu instance=db1 " +
			"[5 50000000] 2 map[];",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestOTLPTables: index 0 of each table is empty, and a request has a profile for each type of sample.
func TestOTLPTables(t *testing.T) {
	parts, err := split(sample(), otlpLabels)
	if err != nil {
		t.Fatal(err)
	}
	data, err := otlpRequest(&Config{Mode: "offcpu", Cluster: "main"}, parts)
	if err != nil {
		t.Fatal(err)
	}
	dictionary := fields(t, data, requestDictionary)[0]
	for _, table := range []protowire.Number{
		dictionaryMappings, dictionaryLocations, dictionaryFunctions, dictionaryLinks, dictionaryStrings,
		dictionaryAttributes, dictionaryStacks,
	} {
		if rows := fields(t, dictionary, table); len(rows) == 0 || len(rows[0]) > 0 {
			t.Errorf("table %d: %q", table, rows)
		}
	}
	strings := bytes.Join(fields(t, dictionary, dictionaryStrings), []byte(" "))
	for _, want := range []string{"ExecScan", "off_cpu", "nanoseconds", "wait_event", "process.executable.build_id.gnu"} {
		if !bytes.Contains(strings, []byte(want)) {
			t.Errorf("no string %q in %q", want, strings)
		}
	}
	if bytes.Contains(strings, []byte("query_id")) || bytes.Contains(strings, []byte("pid")) {
		t.Errorf("labels with many values are in %q", strings)
	}
	resources := fields(t, data, requestResources)
	if len(resources) != 2 {
		t.Fatalf("%d resources", len(resources))
	}
	for _, r := range resources {
		if profiles := fields(t, fields(t, r, resourceScopes)[0], scopeProfiles); len(profiles) != 2 {
			t.Errorf("%d profiles", len(profiles))
		}
	}
}

// TestReceiverDown: profiles wait on disk, through a restart of the worker, and arrive in order.
func TestReceiverDown(t *testing.T) {
	r := receive(t, status(http.StatusServiceUnavailable, `{"code":"unavailable","message":"later"}`))
	cfg := Config{Pyroscope: r.URL, OTLP: r.URL, SpoolDir: filepath.Join(t.TempDir(), "spool")}
	e, profiles, told, stop := export(t, cfg)
	for range 3 {
		profiles <- sample()
	}
	wait(t, "failures", func() bool {
		f := e.Figures()
		return f[0].Failed > 2 && f[1].Failed > 2 && f[0].Pending == 6 && f[1].Pending == 6
	})
	if n := told.count(sendFailed, "unavailable: later"); n != 1 {
		t.Errorf("the error was reported %d times", n)
	}
	stop()
	files, err := filepath.Glob(filepath.Join(cfg.SpoolDir, "*"+batchSuffix))
	if err != nil || len(files) != 6 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	_ = os.WriteFile(filepath.Join(cfg.SpoolDir, "x"+batchSuffix+newSuffix), nil, 0o600) // a worker that was killed
	_ = os.WriteFile(filepath.Join(cfg.SpoolDir, "other"), nil, 0o600)
	r = receive(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", req.Header.Get("Content-Type"))
	})
	cfg.Pyroscope, cfg.OTLP = r.URL, r.URL
	e, _, _, stop = export(t, cfg)
	wait(t, "all profiles have arrived", func() bool {
		f := e.Figures()
		return f[0].Sent == 6 && f[1].Sent == 6 && f[0].Pending == 0 && f[1].PendingBytes == 0
	})
	stop()
	if files, _ := os.ReadDir(cfg.SpoolDir); len(files) != 2 { // other, and the lock
		t.Errorf("files are left: %v", files)
	}
	if r.count() != 6 {
		t.Errorf("%d requests", r.count())
	}
}

// TestReceiverAnswers: what the worker does with each answer of a receiver.
func TestReceiverAnswers(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for name, c := range map[string]struct {
		answer  http.HandlerFunc
		dropped bool
		text    string
	}{
		"too old":   {status(400, `{"code":"invalid_argument","message":"out of window"}`), true, "out of window"},
		"too large": {status(413, ""), true, "status 413"},
		"denied":    {status(401, `{"code":"unauthenticated","message":"no org id"}`), false, "no org id"},
		"not found": {status(404, "<html>"), false, "status 404"},
		"web page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>welcome</html>")
		}, false, "check the URL"},
		"garbage": {func(w http.ResponseWriter, _ *http.Request) {
			accept(w, nil)
			_, _ = io.WriteString(w, "\xff\xff\xff garbage")
		}, false, "check the URL"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			accept(w, nil)
			_, _ = w.Write(make([]byte, 2*maxAnswer))
		}, false, "check the URL"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusPermanentRedirect)
		}, false, "redirects"},
		"hang":       {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false, "send to"},
		"disconnect": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "send to"},
	} {
		t.Run(name, func(t *testing.T) {
			r := receive(t, c.answer)
			limits := fast
			if name == "hang" {
				limits.request = 300 * time.Millisecond
			}
			e, profiles, told, _ := export(t, Config{Pyroscope: r.URL, timing: limits})
			profiles <- sample()
			if c.dropped {
				wait(t, "dropped", func() bool { return e.Figures()[0].Dropped == 2 })
				if told.count(givenUp, c.text) != 1 || e.Figures()[0].Pending != 0 || r.count() != 1 {
					t.Errorf("%+v", told.all)
				}
				return
			}
			wait(t, "two failures", func() bool { return e.Figures()[0].Failed >= 2 })
			if told.count(sendFailed, c.text) != 1 {
				t.Errorf("%+v", told.all)
			}
			r.set(accept)
			wait(t, "the profile arrives", func() bool { return e.Figures()[0].Sent == 2 })
			if told.count(recovered, "") != 1 {
				t.Errorf("%+v", told.all)
			}
		})
	}
	if elsewhere.Load() > 0 {
		t.Error("a redirect was followed")
	}
}

// TestPartialSuccess: profiles that an OTLP receiver refuses count as dropped.
func TestPartialSuccess(t *testing.T) {
	r := receive(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", protobufType)
		_, _ = w.Write(appendBytes(nil, 1, appendString(appendNumber(nil, 1, 1), 2, "one is bad")))
	})
	e, profiles, _, _ := export(t, Config{OTLP: r.URL})
	profiles <- sample()
	wait(t, "sent", func() bool { f := e.Figures()[0]; return f.Sent == 1 && f.Dropped == 1 })
	if r.requests[0].URL.Path != otlpPath {
		t.Errorf("path %s", r.requests[0].URL.Path)
	}
}

// TestRetryAfter: the worker waits as long as the receiver asks for, within a limit.
func TestRetryAfter(t *testing.T) {
	r := receive(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "100000")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	limits := fast
	limits.maxPause = time.Minute
	e, profiles, _, stop := export(t, Config{Pyroscope: r.URL, timing: limits})
	profiles <- sample()
	wait(t, "a failure", func() bool { return e.Figures()[0].Failed == 1 })
	time.Sleep(100 * time.Millisecond)
	if r.count() != 1 {
		t.Errorf("%d requests", r.count())
	}
	stop()
}

// TestBounds: old batches, and batches beyond the limit, are dropped and counted.
func TestBounds(t *testing.T) {
	s, err := openSpool(t.TempDir(), 1000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := s.add(OTLP, bytes.Repeat([]byte{byte(i)}, 300), 2); err != nil {
			t.Fatal(err)
		}
	}
	if pending, size, dropped := s.figures(OTLP); pending != 6 || size != 900 || dropped != 14 {
		t.Errorf("%d pending, %d bytes, %d dropped", pending, size, dropped)
	}
	oldest, data, _, err := s.next(OTLP)
	if err != nil || data[0] != 7 {
		t.Fatalf("the oldest is %v, %v", data, err)
	}
	s.release(oldest)
	if err := s.add(OTLP, make([]byte, 1001), 1); err == nil {
		t.Error("a batch beyond the limit was kept")
	}
	s.maxAge = time.Nanosecond
	if b, _, _, _ := s.next(OTLP); b != nil {
		t.Error("an old batch was returned")
	}
	if pending, size, dropped := s.figures(OTLP); pending != 0 || size != 0 || dropped != 21 {
		t.Errorf("%d pending, %d bytes, %d dropped", pending, size, dropped)
	}
	if files, _ := filepath.Glob(filepath.Join(s.dir, "*"+batchSuffix)); len(files) > 0 {
		t.Errorf("files are left: %v", files)
	}
}

// TestBatchBeyondMemory: a batch that is larger than the memory for batches does not drop the others.
func TestBatchBeyondMemory(t *testing.T) {
	s, err := openSpool("", DefaultSpool, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.add(Pyroscope, make([]byte, 1000), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.add(OTLP, make([]byte, maxMemory+1), 1); err == nil {
		t.Error("a batch beyond the limit was kept")
	}
	if pending, _, dropped := s.figures(Pyroscope); pending != 1 || dropped != 0 {
		t.Errorf("%d pending, %d dropped", pending, dropped)
	}
	if _, _, dropped := s.figures(OTLP); dropped != 1 {
		t.Errorf("%d dropped", dropped)
	}
}

// TestNoRoomBesideBatchInFlight: a batch that has no room beside a batch in flight does not drop the others.
func TestNoRoomBesideBatchInFlight(t *testing.T) {
	const large = maxMemory/2 + 1
	for name, dir := range map[string]string{"disk": t.TempDir(), "memory": ""} {
		s, err := openSpool(dir, maxMemory, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for kind, size := range map[string]int{OTLP: large, Pyroscope: 1000} {
			if err := s.add(kind, make([]byte, size), 1); err != nil {
				t.Fatal(err)
			}
		}
		sending, _, _, err := s.next(OTLP)
		if sending == nil {
			t.Fatal(name, err)
		}
		if err := s.add(OTLP, make([]byte, large), 1); err == nil {
			t.Errorf("%s: a batch without room was kept", name)
		}
		if pending, _, dropped := s.figures(Pyroscope); pending != 1 || dropped != 0 {
			t.Errorf("%s: %d pending, %d dropped", name, pending, dropped)
		}
		if pending, _, dropped := s.figures(OTLP); pending != 1 || dropped != 1 {
			t.Errorf("%s: %d pending, %d dropped of the other receiver", name, pending, dropped)
		}
		s.finish(sending, 0)
		if err := s.add(OTLP, make([]byte, large), 1); err != nil {
			t.Errorf("%s: after the first batch was sent: %v", name, err)
		}
		s.close()
	}
}

// TestBatchInFlight: a batch that is being sent stays, and its profiles count once.
func TestBatchInFlight(t *testing.T) {
	for name, dir := range map[string]string{"disk": t.TempDir(), "memory": ""} {
		s, err := openSpool(dir, 1000, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		add := func(size int) error { return s.add(OTLP, bytes.Repeat([]byte{'x'}, size), 1) }
		if err := errors.Join(add(500), add(400)); err != nil {
			t.Fatal(err)
		}
		b, _, _, err := s.next(OTLP)
		if err != nil || b == nil || b.size != 500 {
			t.Fatalf("%s: %+v, %v", name, b, err)
		}
		if err := add(450); err != nil { // drops the second batch
			t.Error(name, err)
		}
		if err := add(600); err == nil || !strings.Contains(err.Error(), "being sent") {
			t.Errorf("%s: without room beside a batch in flight: %v", name, err)
		}
		s.maxAge = time.Nanosecond
		if pending, size, dropped := s.figures(OTLP); pending != 1 || size != 500 || dropped != 3 {
			t.Errorf("%s: %d pending, %d bytes, %d dropped", name, pending, size, dropped)
		}
		s.finish(b, 0)
		if pending, size, dropped := s.figures(OTLP); pending != 0 || size != 0 || dropped != 3 || s.memory != 0 {
			t.Errorf("%s: after the end: %d pending, %d bytes, %d dropped", name, pending, size, dropped)
		}
	}
}

// TestSlowDisk: while the disk does not return from reading a batch, the figures of all are there.
func TestSlowDisk(t *testing.T) {
	s, err := openSpool(t.TempDir(), 1000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.add(OTLP, []byte("data"), 1); err != nil {
		t.Fatal(err)
	}
	path := s.batches[0].path
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _, _, _ = s.next(OTLP) // opens a pipe without a writer
		close(ended)
	}()
	counted := make(chan int)
	go func() {
		for {
			pending, _, _ := s.figures(OTLP)
			select {
			case counted <- pending:
			case <-ended:
				return
			}
		}
	}()
	for deadline := time.After(500 * time.Millisecond); ; {
		select {
		case pending := <-counted:
			if pending != 1 {
				t.Errorf("%d profiles wait", pending)
			}
			continue
		case <-ended:
			t.Error("the pipe was read without a writer")
		case <-deadline:
		}
		break
	}
	select {
	case <-counted:
	case <-time.After(time.Minute):
		t.Error("no figures while a batch is read")
	}
	if writer, err := os.OpenFile(path, os.O_WRONLY, 0); err != nil || writer.Close() != nil {
		t.Error(err)
	}
	<-ended
	if pending, _, dropped := s.figures(OTLP); pending != 0 || dropped != 1 {
		t.Errorf("a damaged batch: %d wait, %d were dropped", pending, dropped)
	}
}

// TestUnreadableBatch: a batch that cannot be read now waits, and does not delay others. A missing or short one is
// dropped.
func TestUnreadableBatch(t *testing.T) {
	s, err := openSpool(t.TempDir(), 1000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := s.add(OTLP, bytes.Repeat([]byte{byte(i)}, 10), 1); err != nil {
			t.Fatal(err)
		}
	}
	missing, short, unreadable := s.batches[0].path, s.batches[1].path, s.batches[2].path
	aside := filepath.Join(s.dir, "aside")
	if err := errors.Join(os.Remove(missing), os.Truncate(short, 9), os.Rename(unreadable, aside),
		os.Mkdir(unreadable, 0o700)); err != nil { // to read a directory is an error for root, too
		t.Fatal(err)
	}
	b, data, _, err := s.next(OTLP)
	if err != nil || b == nil || data[0] != 3 {
		t.Fatalf("the batch that can be read: %+v, %v, %v", b, data, err)
	}
	s.finish(b, 0)
	b, _, added, err := s.next(OTLP)
	if b != nil || added == nil || err == nil || strings.Contains(err.Error(), filepath.Base(unreadable)) {
		t.Errorf("a batch that cannot be read: %+v, %v", b, err)
	}
	if pending, _, dropped := s.figures(OTLP); pending != 1 || dropped != 2 {
		t.Errorf("%d pending, %d dropped", pending, dropped)
	}
	if err := errors.Join(os.Remove(unreadable), os.Rename(aside, unreadable)); err != nil {
		t.Fatal(err)
	}
	if b, data, _, err := s.next(OTLP); err != nil || b == nil || data[0] != 2 {
		t.Errorf("the batch that can be read again: %+v, %v, %v", b, data, err)
	}
}

// TestUnreadableBatchIsSentLater: the sender reports the error once, and sends the batch when it can be read.
func TestUnreadableBatchIsSentLater(t *testing.T) {
	cfg := Config{SpoolDir: filepath.Join(t.TempDir(), "spool")}
	before, err := openSpool(cfg.SpoolDir, DefaultSpool, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.add(Pyroscope, []byte("profile"), 1); err != nil {
		t.Fatal(err)
	}
	before.close()
	path, aside := before.batches[0].path, filepath.Join(cfg.SpoolDir, "aside")
	s, err := openSpool(cfg.SpoolDir, DefaultSpool, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(path, aside), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	r, told := receive(t, accept), &events{}
	cfg.Log, cfg.timing = logtest.New(told.add), fast
	base, err := parseURL(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	sender := newSender(Pyroscope, base, pyroscope{}, &cfg, s)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { sender.run(ctx) })
	defer wg.Wait()
	defer cancel()
	wait(t, "an error", func() bool { return told.count(spoolUnread, "is a directory") == 1 })
	if err := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	wait(t, "the profile arrives", func() bool { return sender.sent.Load() == 1 })
	if n := told.count(spoolUnread, ""); n != 1 {
		t.Errorf("reported %d times", n)
	}
}

// TestPowerLoss: a file is on disk before it gets its name. An empty file from a power loss is dropped.
func TestPowerLoss(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "batch")
	if err := unix.Mkfifo(path+newSuffix, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path+newSuffix, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	if err := writeFile(path, []byte("x")); !errors.Is(err, unix.EINVAL) { // a pipe can be written, but not synced
		t.Errorf("a file that cannot be synced: %v", err)
	}
	empty := &batch{kind: OTLP, created: time.Now(), profiles: 3}
	if err := os.WriteFile(filepath.Join(dir, empty.name()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := openSpool(dir, 1000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if pending, _, dropped := s.figures(OTLP); pending != 0 || dropped != 3 {
		t.Errorf("%d pending, %d dropped", pending, dropped)
	}
	if _, err := os.Lstat(filepath.Join(dir, empty.name())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty file is left: %v", err)
	}
}

// TestFullDisk: profiles that the disk does not take wait in memory, and arrive.
func TestFullDisk(t *testing.T) {
	dir := fullDisk(t)
	r := receive(t, status(http.StatusServiceUnavailable, ""))
	e, profiles, told, _ := export(t, Config{Pyroscope: r.URL, SpoolDir: dir})
	for range 3 {
		profiles <- sample()
	}
	wait(t, "failures", func() bool { f := e.Figures()[0]; return f.Failed > 0 && f.Pending == 6 })
	if told.count(notKept, "no space left") != 1 {
		t.Errorf("%+v", told.all)
	}
	r.set(accept)
	wait(t, "the profiles arrive", func() bool { return e.Figures()[0].Sent == 6 })
	if files, _ := filepath.Glob(filepath.Join(dir, "*"+newSuffix)); len(files) > 0 {
		t.Errorf("incomplete files are left: %v", files)
	}
}

// TestNoRoom: the log does not say that a dropped profile waits.
func TestNoRoom(t *testing.T) {
	r := receive(t, accept)
	e, profiles, told, _ := export(t, Config{Pyroscope: r.URL, SpoolBytes: 1})
	for range 2 {
		profiles <- sample()
	}
	wait(t, "the profile is dropped", func() bool { return e.Figures()[0].Dropped > 0 })
	wait(t, "a message", func() bool { return told.count("", "larger than the room") > 0 })
	if told.count(inMemory, "") > 0 {
		t.Errorf("%+v", told.all)
	}
}

// TestSecondWorker: a folder that another worker uses is left alone.
func TestSecondWorker(t *testing.T) {
	dir := t.TempDir()
	first, err := openSpool(dir, 1000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.add(OTLP, []byte("x"), 1); err != nil {
		t.Fatal(err)
	}
	second, err := openSpool(dir, 1000, time.Hour)
	if !errors.Is(err, errLocked) {
		t.Errorf("got %v", err)
	}
	if b, _, _, _ := second.next(OTLP); b != nil {
		t.Error("it has the other one's batch")
	}
	first.close()
	if third, err := openSpool(dir, 1000, time.Hour); err != nil || len(third.batches) != 1 {
		t.Errorf("%v", err)
	}
}

// TestCollectFails: the error is reported once, and again when it comes back.
func TestCollectFails(t *testing.T) {
	r := receive(t, accept)
	e, profiles, told, _ := export(t, Config{Pyroscope: r.URL})
	for range 3 {
		profiles <- nil
	}
	profiles <- &profile.Profile{} // nothing happened: nothing to send
	profiles <- sample()
	wait(t, "a profile", func() bool { return e.Figures()[0].Sent == 2 })
	profiles <- nil
	profiles <- sample()
	wait(t, "another profile", func() bool { return e.Figures()[0].Sent == 4 })
	if n := told.count(collectFailed, "no right"); n != 2 {
		t.Errorf("reported %d times", n)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Pyroscope: "http://127.0.0.1:4040"}, ""},
		{Config{OTLP: "https://user:secret@collector.example/v1development/profiles", Interval: time.Minute}, ""},
		{Config{Pyroscope: "127.0.0.1:4040"}, "must start with"},
		{Config{Pyroscope: "ftp://x"}, "must start with"},
		{Config{Pyroscope: "http://"}, "has no host"},
		{Config{OTLP: "http://x?secret=1"}, "no query"},
		{Config{OTLP: "http://x\x7f:secret@y"}, "not valid"},
		{Config{OTLP: "http://x", Interval: time.Second}, "must be from"},
	} {
		err := c.cfg.Check()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.cfg, err)
		case c.want != "" && (!errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "secret")):
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	if c := (Config{OTLP: "http://collector.example", HeaderFile: "x"}); !c.InClearText() {
		t.Error("headers in clear text were not noticed")
	}
	if c := (Config{OTLP: "http://127.0.0.1:4318", HeaderFile: "x"}); c.InClearText() {
		t.Error("loopback is no network")
	}
}

func TestReadHeaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "headers")
	for text, want := range map[string]string{
		"Authorization: Bearer secret\n\n# comment\nX-A: 1\nX-A: 2": "",
		"secret":                   "line 1 is not",
		"X: 1\nsecret: a\x00b":     "line 2 is not",
		"sec ret: 1":               "line 1 is not",
		"content-type: secret":     "which the worker sets itself",
		strings.Repeat("x", 1<<17): "more than",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		headers, err := ReadHeaders(path)
		switch {
		case want == "":
			if err != nil || len(headers["X-A"]) != 2 || headers.Get("Authorization") != "Bearer secret" {
				t.Errorf("%v, %v", headers, err)
			}
		case !errors.Is(err, ErrHeaderFile) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "secret"):
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadHeaders(path); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("a file that others read: %v", err)
	}
}

// TestHeadersReadAsRoot: a process that was root sends the headers of a file that only root can read. Headers of a file
// that can no longer be read stay in use, which is reported once.
func TestHeadersReadAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := filepath.Join(t.TempDir(), "headers")
	if err := os.WriteFile(path, []byte("X-A: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	headers, err := ReadHeaders(path)
	if err != nil {
		t.Fatal(err)
	}
	told := &events{}
	cfg := Config{Pyroscope: "http://127.0.0.1:1", HeaderFile: path, Log: logtest.New(told.add)}
	makeRequest := func(e *Exporter) {
		t.Helper()
		r, err := e.senders[0].request(t.Context(), nil)
		if err != nil || r.Header.Get("X-A") != "1" {
			t.Errorf("%v, %v", r, err)
		}
	}
	readable, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	makeRequest(readable)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with this goroutine
		_ = unix.Setfsuid(4711)
		if _, err := New(cfg); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("without root: %v", err)
		}
		for range 2 {
			makeRequest(readable)
		}
		if kept := told.count(headersKept, ""); kept != 1 {
			t.Errorf("%d reports of a file that can no longer be read", kept)
		}
		cfg.Headers = headers
		e, err := New(cfg)
		if err != nil {
			t.Error(err)
			return
		}
		makeRequest(e)
		if kept := told.count(headersKept, ""); kept != 1 {
			t.Errorf("%d reports of a file that root has read", kept-1)
		}
	}()
	<-done
}

// TestFolderOfAnotherUser: a folder that another user could fill, or replace, is not used.
func TestFolderOfAnotherUser(t *testing.T) {
	base := t.TempDir()
	folder := func(mode os.FileMode, names ...string) string {
		dir := filepath.Join(append([]string{base}, names...)...)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	const sticky = os.ModeSticky | 0o777
	target := folder(0o700, "target")
	for name, c := range map[string]struct {
		parent, mode os.FileMode
		link, public bool
	}{
		"private":         {0o700, 0o700, false, false},
		"readable":        {0o755, 0o755, false, false},
		"sticky parent":   {sticky, 0o700, false, false},
		"writable":        {0o700, 0o777, false, true},
		"sticky":          {0o700, sticky, false, true},
		"writable parent": {0o777, 0o700, false, true},
		"link":            {sticky, 0o700, true, true},
		// The folder with the folder may be a link: its target counts.
		"link to private": {0o700, 0o700, false, false},
	} {
		parent := folder(c.parent, name)
		if name == "link to private" {
			parent = filepath.Join(base, "to")
			if err := os.Symlink(name, parent); err != nil {
				t.Fatal(err)
			}
		}
		dir := filepath.Join(parent, "profiles")
		if !c.link {
			folder(c.mode, name, "profiles")
		} else if err := os.Symlink(target, dir); err != nil {
			t.Fatal(err)
		}
		s, err := openSpool(dir, 1000, time.Hour)
		if errors.Is(err, errPublic) != c.public || c.public == (s.dir != "") {
			t.Errorf("%s: %v, folder %q", name, err, s.dir)
		}
		s.close()
	}
}

// TestPanicInCollect has the collection of profiles panic, as by a damaged file that it reads: the worker lives on, and pushes the
// next profile.
func TestPanicInCollect(t *testing.T) {
	calls := 0
	restore := host.InjectPanic(func(place string) {
		if place == "the export of profiles" {
			if calls++; calls == 1 {
				panic("injected")
			}
		}
	})
	defer restore()
	r := receive(t, accept)
	e, profiles, told, stop := export(t, Config{Pyroscope: r.URL})
	defer stop()
	profiles <- sample()
	wait(t, "the profile has arrived", func() bool { return e.Figures()[0].Sent > 0 })
	if n := told.count("cannot make profiles to push", "panic in the export of profiles: injected"); n != 1 {
		t.Errorf("the panic was reported %d times", n)
	}
}
