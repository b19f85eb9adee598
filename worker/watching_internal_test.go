package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/history/command"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/rules"
)

// safeBuffer is a log that a test reads.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestRulesReload changes the file of rules and sends SIGHUP. An error leaves the old rules.
func TestRulesReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := &safeBuffer{}
	asked := make(chan struct{})
	w := &Worker{log: zerolog.New(log), cfg: Config{
		Log: zerolog.New(log), Record: RecordConfig{Rules: file, Dir: t.TempDir(), Period: time.Second, Reload: asked},
	}}
	write("rules: {lock: off}")
	if err := w.cfg.checkRules(); err == nil || !WrongOption(err) || !strings.Contains(err.Error(), `line 1: unknown rule "lock"`) {
		t.Errorf("%v at the start", err)
	}
	w.cfg.Record.RulesOptional = true
	if err := w.cfg.checkRules(); err != nil || !strings.Contains(log.String(), `line 1: unknown rule \"lock\"`) {
		t.Errorf("%v at the start of a worker of a host: %s", err, log.String())
	}
	if c, err := w.cfg.Record.startRules(); err != nil || c.Rule(rules.LockWait).After != rules.Default().Rules[0].After {
		t.Error(c, err)
	}
	w.cfg.Record.RulesOptional = false
	write("rules: {lock_wait: {after: 1s}}")
	v, err := w.newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGHUP) // as the command worker does
	t.Cleanup(func() { signal.Reset(syscall.SIGHUP) })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { v.run(ctx) })
	after := func() time.Duration {
		v.look(&rules.Look{Time: time.Now(), Unread: true})
		c := v.engine.Config()
		return c.Rule(rules.LockWait).After
	}
	hangup := func(text string) {
		t.Helper()
		for begin := time.Now(); !strings.Contains(log.String(), text); time.Sleep(10 * time.Millisecond) {
			// Before the worker has asked for it, the signal is ignored.
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil || time.Since(begin) > time.Minute {
				t.Fatal(err, log.String())
			}
		}
	}
	write("rules: {lock_wait: {after: 2}}")
	hangup("line 1: after must be a time")
	if got := after(); got != time.Second {
		t.Errorf("%s after an error, want the old 1s", got)
	}
	write("rules: {lock_wait: {after: 3s}}")
	hangup("rules were read again")
	for begin := time.Now(); after() != 3*time.Second; time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal(log.String())
		}
	}
	write("rules: {lock_wait: {after: 4s}}")
	asked <- struct{}{}
	for begin := time.Now(); after() != 4*time.Second; time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal(log.String())
		}
	}
	cancel()
	wg.Wait()
}

// TestAlertWithoutFiles has an earlier incident whose files wait for a disk that does not answer: the next alert is sent without files.
func TestAlertWithoutFiles(t *testing.T) {
	bodies := make(chan string, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
	}))
	defer receiver.Close()
	w := &Worker{log: zerolog.New(&safeBuffer{})}
	v, err := w.newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	v.late, v.systemID = make(chan incidentFiles), "7577921432"
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { v.hook.Run(ctx) })
	c := rules.Default()
	c.Webhook.URL = receiver.URL
	finding := rules.Finding{Rule: "lock_wait", Cause: "cause", Summary: "1 session waits", Since: time.Now()}
	if err := v.write(ctx, incidentJob{finding: finding, config: c}); !errors.Is(err, errNoAnswer) {
		t.Errorf("error: %v", err)
	}
	if text := <-bodies; !strings.Contains(text, "1 session waits") || !strings.Contains(text, v.systemID) || strings.Contains(text, `"incident"`) {
		t.Error(text)
	}
	if len(v.alerts) != 1 {
		t.Errorf("the ends of %d alerts will be sent", len(v.alerts))
	}
	cancel()
	wg.Wait()
}

// TestAlertOfEndingWorker has an incident that waits when the worker ends: its alert is sent.
func TestAlertOfEndingWorker(t *testing.T) {
	bodies := make(chan string, 2)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
	}))
	defer receiver.Close()
	w := &Worker{log: zerolog.New(&safeBuffer{})}
	v, err := w.newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	v.late = make(chan incidentFiles) // so that no files are made
	c := rules.Default()
	c.Webhook.URL = receiver.URL
	v.jobs <- incidentJob{finding: rules.Finding{Rule: "lock_wait", Summary: "1 session waits", Since: time.Now()}, config: c}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	v.run(ctx)
	if len(bodies) != 1 {
		t.Fatalf("%d alerts", len(bodies))
	}
	if text := <-bodies; !strings.Contains(text, "1 session waits") {
		t.Error(text)
	}
}

// TestEndOfLateIncident has an incident whose files were written after its alert: they get its end too.
func TestEndOfLateIncident(t *testing.T) {
	w := &Worker{log: zerolog.New(&safeBuffer{})}
	v, err := w.newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	finding := rules.Finding{Rule: "lock_wait", Cause: "cause"}
	dir := incident.Dir{Path: filepath.Join(t.TempDir(), "incidents")}
	i := incident.Collect(t.Context(), incident.Source{}, finding, &rules.Look{Time: time.Now()})
	if _, err := dir.Write(i); err != nil {
		t.Fatal(err)
	}
	v.late = make(chan incidentFiles, 1)
	v.late <- incidentFiles{key: alertKey{finding.Rule, finding.Cause}, incident: i, dir: dir}
	v.end(&incidentJob{finding: finding, until: time.Now()})
	v.profiles.Wait()
	if found, err := dir.Read(i.ID); err != nil || found.Ended == nil {
		t.Errorf("the incident has no end: %v", err)
	}
}

// TestEndBeforeLateFiles: an incident whose files are written after its end gets the end too. A later incident of the same cause
// without files does not change it.
func TestEndBeforeLateFiles(t *testing.T) {
	w := &Worker{log: zerolog.New(&safeBuffer{})}
	v, err := w.newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	finding := rules.Finding{Rule: "lock_wait", Cause: "cause"}
	key := alertKey{finding.Rule, finding.Cause}
	dir := incident.Dir{Path: filepath.Join(t.TempDir(), "incidents")}
	i := incident.Collect(t.Context(), incident.Source{}, finding, &rules.Look{Time: time.Now()})
	if _, err := dir.Write(i); err != nil {
		t.Fatal(err)
	}
	late := make(chan incidentFiles, 1)
	v.late, v.lateKey = late, key
	ended := time.Now()
	v.end(&incidentJob{finding: finding, until: ended})
	late <- incidentFiles{key: key, incident: i, dir: dir}
	v.end(&incidentJob{finding: finding, until: ended.Add(time.Hour)})
	v.profiles.Wait()
	if found, err := dir.Read(i.ID); err != nil || found.Ended == nil || found.Ended.Sub(ended).Abs() > time.Minute {
		t.Errorf("the end of the incident: %+v, %v", found.Ended, err)
	}
	if len(v.written) > 0 {
		t.Error("the incident still waits for its end")
	}
}

// TestLookNeverBlocks has more incidents than can be written, with nothing that writes them.
func TestLookNeverBlocks(t *testing.T) {
	log := &safeBuffer{}
	w := &Worker{log: zerolog.New(log)}
	v, err := w.newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	c := rules.Default()
	c.Cooldown, c.Budget = 10*time.Millisecond, maxIncidentJobs+3
	v.engine.Change(c)
	at := time.Now()
	for range 2 * c.Budget {
		v.look(&rules.Look{Time: at, Clients: 100, Slots: 100})
		v.look(&rules.Look{Time: at.Add(time.Second)}) // the stall is over
		at = at.Add(2 * time.Second)
	}
	if n := strings.Count(log.String(), "too many at the same time"); n != 3 || len(v.jobs) != maxIncidentJobs {
		t.Errorf("%d dropped, %d wait", n, len(v.jobs))
	}
	if n := strings.Count(log.String(), "budget is used up"); n != 4 { // one a minute, for 206 seconds
		t.Errorf("%d lines about the budget: %s", n, log.String())
	}
	w.cfg.Record.Rules = RulesOff
	if v, err := w.newWatcher(); v != nil || err != nil {
		t.Errorf("%v, %v with the rules off", v, err)
	}
}

// TestCommandAlerts has a helper that writes each line of its input to a file. The begin and the end of an alert reach it, and the
// log has its results.
func TestCommandAlerts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "requests")
	helper := exec.Command("/bin/sh", "-c", `while read -r line; do echo "$line" >>"$1"; echo '{"rule":"r","status":3,"error":"bad"}'; done`, "sh", file)
	runner, err := command.Start(helper)
	if err != nil {
		t.Fatal(err)
	}
	log := &safeBuffer{}
	v := &watcher{worker: &Worker{log: zerolog.New(log), commands: runner}, alerts: map[alertKey]rules.Alert{}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { v.worker.runCommands(ctx) })
	j := incidentJob{finding: rules.Finding{Rule: rules.LockWait, Cause: "c"}, until: time.Now()}
	if v.send(&j, rules.Alert{Name: rules.LockWait}, "") {
		t.Error("rules without a command ran one")
	}
	j.config.Command.Run = []string{"/bin/true"}
	a := rules.Alert{Name: rules.LockWait, Annotations: map[string]string{"incident": "i"}}
	if !v.send(&j, a, "/state/page.html") || a.Annotations["file"] != "" {
		t.Error("the alert was not sent, or changed", a)
	}
	v.alerts[alertKey{rules.LockWait, "c"}] = a
	v.end(&j)
	v.worker.reloadCommands(&j.config)
	for begin := time.Now(); strings.Count(log.String(), "the command of an alert has ended") < 3; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 5*time.Minute {
			t.Fatal(log.String())
		}
	}
	cancel()
	wg.Wait()
	text, err := os.ReadFile(file)
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) != 4 || !strings.Contains(lines[0], `"firing"`) || !strings.Contains(lines[0], "/state/page.html") ||
		!strings.Contains(lines[1], `"resolved"`) || strings.Contains(lines[1], "page.html") || lines[2] != `{"reload":true}` {
		t.Errorf("%v: %s", err, text)
	}
	if got := log.String(); strings.Count(got, `"status":3`) != 3 || !strings.Contains(got, `"error":"bad"`) || strings.Contains(got, "restart") {
		t.Error(got)
	}
	if v.worker.runCommand(&j, a, "") || !strings.Contains(log.String(), "was not run") {
		t.Error("an ended helper got an alert", log.String())
	}
}
