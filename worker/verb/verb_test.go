package verb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/queue"
	"pg_stat_backtrace/worker/serve/spool"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	o, err := settings(map[string]string{"max_frames": "7", "timeout": "1500"})
	if err != nil || o.MaxFrames != 7 || o.Deadline != 1500*time.Millisecond {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := settings(nil); err != nil || o.MaxFrames != 0 || o.Deadline != 0 || !o.PreferNonStop {
		t.Errorf("no settings: %+v, %v", o, err)
	}
	for name, values := range map[string][]string{
		"max_frames": {"0", "-1", "65537", "x", "", "1e3", "99999999999999999999"},
		"timeout":    {"0", "100000", "3s"},
	} {
		for _, value := range values {
			_, err := settings(map[string]string{name: value})
			var f *render.Fault
			if !errors.As(err, &f) || f.SQLState != render.InvalidParameterValue ||
				!strings.Contains(f.Message, "pg_stat_backtrace."+name) {
				t.Errorf("%s = %q: %v", name, value, err)
			}
		}
	}
}

// idle is a service whose server does not run.
func idle() *Service { return newService(limits.Rate{PerSecond: 0.001, Burst: 20}, io.Discard) }

// newService makes a service with its own log, whose server does not run.
func newService(rate limits.Rate, log io.Writer) *Service {
	s := New(Config{
		Log: zerolog.New(zerolog.SyncWriter(log)), Lines: limits.NewLines(), Limits: rate, Journal: new(queue.Journal),
		Looker: &authz.Lookup{Server: noSession{}},
		Server: func() (cluster.Cluster, error) { return cluster.Cluster{}, errNoServer },
	})
	s.cfg.Waits = waitevent.NewTimer(waitevent.Config{Current: func() (cluster.Cluster, error) { return s.cfg.Server() }})
	return s
}

// serving returns a running server.
func serving(c cluster.Cluster) func() (cluster.Cluster, error) {
	return func() (cluster.Cluster, error) { return c, nil }
}

// TestVerbsNameProcesses: the functions for one process take one, not a list, and not none, which would be all. No
// other request without a list is about all processes either, unless it is for that.
func TestVerbsNameProcesses(t *testing.T) {
	t.Parallel()
	s := idle()
	s.cfg.Server = serving(cluster.Cluster{PostmasterPID: os.Getpid(), PostmasterStart: startOf(t, os.Getpid())})
	for _, verb := range []string{"get", "log", "frames"} {
		for _, targets := range [][]int{nil, {}, {1, 2}, {1, 2, 3}} {
			a := s.Answer(t.Context(), spool.Request{Verb: verb, Targets: targets, Superuser: true})
			if a.SQLState != render.InvalidParameterValue || a.Text != "" || a.Rows != nil {
				t.Errorf("%s of %v: %+v", verb, targets, a)
			}
		}
	}
	for _, verb := range []string{"logs", "blocking"} {
		a := s.Answer(t.Context(), spool.Request{Verb: verb, Superuser: true, Deadline: time.Now().Add(time.Minute)})
		if a.Level != "" || a.Rows == nil || len(a.Rows) != 0 {
			t.Errorf("%s of none: %+v", verb, a)
		}
	}
}

// TestFailuresCost: a request that fails early costs as much as another one, and one that names many processes costs
// each of them.
func TestFailuresCost(t *testing.T) {
	t.Parallel()
	state := func(s *Service, req spool.Request) string {
		req.Caller = 16384
		return s.Answer(t.Context(), req).SQLState
	}
	for name, req := range map[string]spool.Request{
		"an invalid setting": {Verb: "get", Targets: []int{1}, Settings: map[string]string{"max_frames": "x"}},
		"an unknown verb":    {Verb: "tomorrow"},
		"none named":         {Verb: "get"},
		"no such process":    {Verb: "get", Targets: []int{1}},
	} {
		s := idle()
		s.cfg.Server = serving(cluster.Cluster{PostmasterPID: os.Getpid(), PostmasterStart: startOf(t, os.Getpid())})
		for n := range 20 {
			if got := state(s, req); got == "53400" {
				t.Errorf("%s, %d: refused", name, n)
			}
		}
		if got := state(s, req); got != "53400" {
			t.Errorf("%s: %q, want a refusal", name, got)
		}
	}
	s := idle()
	many := spool.Request{Verb: "logs"}
	for pid := range 21 {
		many.Targets = append(many.Targets, pid+1)
	}
	if got := state(s, many); got != "53400" {
		t.Errorf("21 processes: %q", got)
	}
	many.Targets = many.Targets[:15]
	many.Settings = map[string]string{"threads": "perhaps"}
	if got := state(s, many); got != "22023" {
		t.Errorf("15 processes: %q", got)
	}
	if got := state(s, many); got != "53400" {
		t.Errorf("15 more processes: %q", got)
	}
}

func startOf(t *testing.T, pid int) uint64 {
	t.Helper()
	stat, err := process.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.StartTime
}

// noSession is a server to which the worker has no connection.
type noSession struct{}

func (noSession) Query(context.Context, func(context.Context, *pgx.Conn) error) error {
	return errNoServer
}

// TestLogOfEachVerbIsBounded: no kind of request has lines beyond the limit, or long ones.
func TestLogOfEachVerbIsBounded(t *testing.T) {
	t.Parallel()
	for _, verb := range Names() {
		var log bytes.Buffer
		s := newService(limits.Rate{PerSecond: 1e6, Burst: 1e6}, &log)
		s.cfg.Server = serving(cluster.Cluster{PostmasterPID: os.Getpid(), PostmasterStart: startOf(t, os.Getpid())})
		began := time.Now()
		for range 300 {
			s.Answer(t.Context(), spool.Request{
				Verb: verb, Targets: []int{1}, Caller: 16384, Deadline: time.Now().Add(time.Minute),
				Settings: map[string]string{"trace": "1 " + strings.Repeat("x", 30_000)},
			})
		}
		lines, took := strings.Split(strings.TrimSpace(log.String()), "\n"), time.Since(began)
		most := 150 + 11*int(took.Seconds()) // ten lines a second, and one about the others
		if log.Len() == 0 || len(lines) > most || log.Len() > most*1024 {
			t.Errorf("%s: %d lines, %d bytes in %s", verb, len(lines), log.Len(), took)
		}
	}
}

// TestLogIsBounded: whatever a role asks, and how often, its lines in the log and its rows in the journal are few and
// short, and omitted parts are counted.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newService(limits.Rate{PerSecond: 100, Burst: 1000}, &log)
		req := spool.Request{
			Verb: "get", Targets: []int{1}, Caller: 16384, CallerName: "flooder", Database: "d",
			Settings: map[string]string{"max_frames": strings.Repeat("é", 15000)},
		}
		const requests = 20_000
		refused := 0
		for range requests {
			if s.Answer(t.Context(), req).SQLState == "53400" {
				refused++
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) > 400 || log.Len() > 200*1024 {
			t.Errorf("%d lines, %d bytes", len(lines), log.Len())
		}
		failed, told := 0, 0
		for _, text := range lines {
			var line struct {
				Message  string `json:"message"`
				Requests int    `json:"requests"`
				LeftOut  int    `json:"left_out"`
			}
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			switch line.Message {
			case "request failed":
				failed += 1 + line.LeftOut
			case "request refused":
				told += line.Requests
			}
		}
		if told != refused || refused == 0 {
			t.Errorf("%d requests were refused, and %d are told of", refused, told)
		}
		if rest := requests - refused - failed; rest < 0 || rest > 200 { // left out since the last line
			t.Errorf("%d requests failed, and %d are told of", requests-refused, failed)
		}
	})
}

// TestAnswer: what only another release's extension asks for is refused.
func TestAnswer(t *testing.T) {
	t.Parallel()
	a := idle().Answer(t.Context(), spool.Request{Verb: "tomorrow", Superuser: true})
	if a.Level != "ERROR" || a.SQLState != render.NotInPrerequisiteState ||
		a.Message != `the pg_stat_backtrace worker cannot "tomorrow"` || !strings.Contains(a.Hint, "same release") {
		t.Errorf("%+v", a)
	}
}

// TestRefusal: of a process that has ended meanwhile, or is about to, it is not said that it runs for no role.
func TestRefusal(t *testing.T) {
	t.Parallel()
	unlisted := authz.Decide(authz.Caller{OID: 10}, 1, authz.Facts{CallerExists: true})
	auxiliary := authz.Decide(authz.Caller{OID: 10}, 1, authz.Facts{CallerExists: true, Found: true})
	start := func() (*exec.Cmd, process.Target) {
		c := exec.CommandContext(t.Context(), "sleep", "100")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		held, err := process.Hold(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(held.Release)
		return c, process.Target{PID: c.Process.Pid, Held: held}
	}
	stays, living := start()
	ends, ending := start()
	for _, tt := range []struct {
		name   string
		err    error
		target process.Target
	}{
		{"allowed", nil, ending},
		{"an auxiliary process", auxiliary, ending},
		{"one that lives", unlisted, living},
		{"one that is not held", unlisted, process.Target{PID: ending.PID}},
	} {
		if got := refusal(tt.err, tt.target, endsIn); !errors.Is(got, tt.err) || errors.Is(got, process.ErrExited) {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	answer := make(chan error)
	go func() { answer <- refusal(unlisted, ending, time.Minute) }()
	_ = ends.Process.Kill()
	if err := <-answer; !errors.Is(err, process.ErrExited) || failure(ending.PID, err).SQLState != "55000" {
		t.Errorf("one that ends: %v", err)
	}
	_ = ends.Wait()
	if err := refusal(auxiliary, ending, 0); errors.Is(err, process.ErrExited) {
		t.Errorf("an auxiliary process that has ended: %v", err)
	}
	_ = stays.Process.Kill()
	_ = stays.Wait()
}

func TestFailure(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err            error
		level, state   string
		message, other string
	}{
		{
			fmt.Errorf("%w: %w", errNoProcess, cluster.ErrNotMember), "WARNING", "01000",
			"PID 4711 is not a PostgreSQL server process", "",
		},
		{postmaster(4711), "ERROR", "42501", "the postmaster, process 4711", "No connection is accepted"},
		{
			&authz.Denied{SQLState: "42501", Message: "permission denied", Detail: "D.", Hint: "H."}, "ERROR", "42501",
			"permission denied", "D.",
		},
		{fmt.Errorf("x: %w", process.ErrExited), "ERROR", "55000", "process with PID 4711 has exited", ""},
		{errors.New("surprise in /a/file"), "ERROR", "XX000", "could not capture process with PID 4711", ""},
		{fmt.Errorf("%w: %w", errNoServer, cluster.ErrNotRunning), "ERROR", "55000", "the server is shutting down", ""},
	}
	for _, tt := range tests {
		a := failure(4711, tt.err)
		if a.Level != tt.level || a.SQLState != tt.state || !strings.Contains(a.Message, tt.message) ||
			!strings.Contains(a.Detail, tt.other) {
			t.Errorf("%v: %+v", tt.err, a)
		}
		if strings.Contains(a.Message+a.Detail+a.Hint, "/a/file") {
			t.Errorf("the answer tells of files: %+v", a)
		}
	}
}

// TestWaitFailure expects the reason once.
func TestWaitFailure(t *testing.T) {
	t.Parallel()
	const option = "--wait-event-capture=stats"
	for _, c := range []struct {
		err          error
		restricted   bool
		superuser    bool
		detail, hint string
	}{
		{fmt.Errorf("%w: the kernel is too old", waits.ErrUnsupported), false, true, "The kernel is too old.", "doctor"},
		{fmt.Errorf("%w: the method sampled sees no single waits", waits.ErrUnsupported), true, true, "The method sampled", option},
		{waitevent.ErrOff, true, true, "", "Start it with SELECT"}, {waitevent.ErrOff, true, false, "", "A superuser, or a role"},
	} {
		a := waitFailure(c.err, waitevent.Limits{Restricted: c.restricted}, c.superuser)
		if !strings.HasPrefix(a.Message, "wait events ") || !strings.HasPrefix(a.Detail, c.detail) || !strings.Contains(a.Hint, c.hint) {
			t.Errorf("%v: %+v", c.err, a)
		}
	}
	if a := onlySampled(waitevent.Limits{Sampled: true, Restricted: true}); a.Level != "WARNING" || !strings.Contains(a.Hint, option) {
		t.Errorf("%+v", a)
	}
}
