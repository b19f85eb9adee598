package worker

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

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
	w := &Worker{log: zerolog.New(log), cfg: Config{Record: RecordConfig{Rules: file, Dir: t.TempDir(), Period: time.Second}}}
	write("rules: {lock: off}")
	if err := w.cfg.checkRules(); err == nil || !WrongOption(err) || !strings.Contains(err.Error(), `line 1: unknown rule "lock"`) {
		t.Errorf("%v at the start", err)
	}
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
	cancel()
	wg.Wait()
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
	for range 100 {
		at = at.Add(time.Second)
		v.look(&rules.Look{Time: at, Clients: 100, Slots: 100})
	}
	if n := strings.Count(log.String(), "too many at the same time"); n != 3 || len(v.jobs) != maxIncidentJobs {
		t.Errorf("%d dropped, %d wait", n, len(v.jobs))
	}
	if n := strings.Count(log.String(), "budget is used up"); n != 1 {
		t.Errorf("%d lines about the budget: %s", n, log.String())
	}
	w.cfg.Record.Rules = RulesOff
	if v, err := w.newWatcher(); v != nil || err != nil {
		t.Errorf("%v, %v with the rules off", v, err)
	}
}
