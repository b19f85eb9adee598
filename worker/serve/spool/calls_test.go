package spool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/limits"
)

// files lists the answers in the directory.
func (s *service) files() []string {
	s.t.Helper()
	names, err := filepath.Glob(s.path("*" + repSuffix))
	if err != nil {
		s.t.Fatal(err)
	}
	return names
}

// TestCallGivenUp checks that a backend's new request ends its earlier one, running or answered, without leaving a
// file.
func TestCallGivenUp(t *testing.T) {
	began, ended := make(chan string, 10), make(chan string, 10)
	s := serve(t, Config{}, func(ctx context.Context, r Request) Answer {
		if r.ID == id(1) {
			began <- r.ID
			<-ctx.Done()
			ended <- r.ID
		}
		return echo(ctx, r)
	})
	s.put(id(1)+reqSuffix, s.lineOf(id(1), 7, false))
	<-began
	s.put(id(2)+reqSuffix, s.lineOf(id(2), 7, false))
	<-ended
	s.answered(2)
	s.put(id(3)+reqSuffix, s.lineOf(id(3), 7, false))
	s.answered(3)
	s.put(id(4)+reqSuffix, s.lineOf(id(4), 8, false)) // another backend
	s.answered(4)
	wait(t, "the answers that nobody waits for are gone", func() bool { return len(s.files()) == 2 })
	for _, n := range []int{3, 4} {
		if got := s.answer(n); got != "|||||pid 4711" {
			t.Errorf("got %q", got)
		}
	}
	wait(t, "nothing is left", func() bool {
		s.calls.mu.Lock()
		defer s.calls.mu.Unlock()
		return len(s.files()) == 0 && len(s.calls.byBackend) == 0 && len(s.calls.answers) == 0
	})
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// answered waits for an answer without reading it.
func (s *service) answered(n int) {
	s.t.Helper()
	wait(s.t, "answer "+id(n), func() bool { return exists(s.path(id(n) + repSuffix)) })
}

// TestCallsInAnyOrder checks that the older one of two requests without events is dropped, in whatever order they are
// found.
func TestCallsInAnyOrder(t *testing.T) {
	now := time.Now()
	c := newCalls(limits.NewGate(answerRoom(0)), func(string) {})
	req := func(n int) *Request { return &Request{ID: id(n), Backend: 7, Deadline: now.Add(time.Minute)} }
	newer := c.begin(t.Context(), req(2), now, false)
	if older := c.begin(t.Context(), req(1), now.Add(-time.Second), false); older != nil || newer.over {
		t.Error("an older call took the place of a newer one")
	}
	same := c.begin(t.Context(), req(3), now, false)
	if same == nil || newer.over {
		t.Error("of two calls of the same moment only one is answered")
	}
	if late := c.begin(t.Context(), req(4), now.Add(time.Second), false); late == nil || !same.over {
		t.Error("a newer call did not take the place of an older one")
	}
	// A clock that is set back keeps no backend from being answered.
	if back := c.begin(t.Context(), req(5), now.Add(-time.Hour), true); back == nil {
		t.Error("a call whose event came last was dropped")
	}
}

// TestUnfetchedAnswers checks that unfetched answers take a bounded room, for each role and in total. The superusers'
// part stays free. The oldest answers of the role that needs room are removed first.
func TestUnfetchedAnswers(t *testing.T) {
	const megabyte = 1 << 20
	removed := map[string]bool{}
	c := newCalls(limits.NewGate(answerRoom(0)), func(name string) { removed[name] = true })
	now := time.Now()
	n := 0
	deliver := func(role uint32, superuser bool, size int64) *call {
		n++
		now = now.Add(time.Millisecond)
		req := &Request{ID: id(n), Backend: n, Caller: role, Superuser: superuser, Deadline: now.Add(time.Minute)}
		k := c.begin(t.Context(), req, now, true)
		if wanted, room := c.deliver(k, size, now); !wanted || !room {
			t.Fatalf("answer %d of role %d: %v, %v", n, role, wanted, room)
		}
		return k
	}
	total := func(role uint32) (bytes int64) {
		for _, k := range c.answers {
			if role == 0 || k.who.Role == role {
				bytes += k.size
			}
		}
		return bytes
	}
	quiet := deliver(1, false, 100)
	first := deliver(2, false, 8*megabyte-2048)
	for range 200 {
		deliver(2, false, megabyte)
	}
	if got := total(2); got > limits.UnfetchedBytes/4 || got < limits.UnfetchedBytes/8 {
		t.Errorf("one role has %d bytes", got)
	}
	if !first.over || !removed[first.answer] || quiet.over {
		t.Error("not the oldest answer of the role made room")
	}
	for range 100_000 { // empty answers take room too
		deliver(3, false, 0)
	}
	for role := uint32(10); role < 50; role++ {
		deliver(role, false, 7*megabyte)
	}
	if got := total(0); got > limits.UnfetchedBytes*3/4 {
		t.Errorf("all roles have %d bytes", got)
	}
	if quiet.over {
		t.Error("the role with the least had to make room")
	}
	super := deliver(5, true, 8*megabyte-2048)
	deliver(60, false, 7*megabyte)
	if super.over {
		t.Error("an ordinary role took the room of a superuser")
	}
	if c.expire(now) == 0 {
		t.Error("the loss is not counted")
	}
	c.expire(now.Add(time.Hour))
	if len(c.answers)+len(c.byBackend) != 0 {
		t.Errorf("left: %d answers, %d backends", len(c.answers), len(c.byBackend))
	}
}

// TestSuperuserAmongMany checks calls while one role uses all the handlers and room that it may have. A superuser and
// another role must get their answers.
func TestSuperuserAmongMany(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, Config{Concurrency: 8, Pending: 40}, func(ctx context.Context, r Request) Answer {
		if r.Backend < 1000 {
			<-release
		}
		return echo(ctx, r)
	})
	for n := 1; n <= 100; n++ {
		s.put(id(n)+reqSuffix, s.lineOf(id(n), n, false))
	}
	wait(t, "those that are too many are refused", func() bool { return len(s.files()) == 80 })
	s.put(id(2000)+reqSuffix, s.lineOf(id(2000), 2000, true))
	if got := s.answer(2000); got != "|||||pid 4711" {
		t.Errorf("superuser: %q", got)
	}
	other := strings.Replace(string(s.lineOf(id(3000), 3000, false)), " 60000 10 ", " 60000 11 ", 1)
	body := other[:strings.LastIndexByte(other, ' ')]
	s.put(id(3000)+reqSuffix, []byte(body+" "+s.keys.signing().sign([]byte(body))+"\n"))
	if got := s.answer(3000); got != "|||||pid 4711" {
		t.Errorf("another role: %q", got)
	}
	close(release)
	answers := 0
	for n := 1; n <= 100; n++ {
		data, err := os.ReadFile(s.path(id(n) + repSuffix))
		if err == nil && strings.HasPrefix(string(data), "ERROR"+separator+"53400") {
			answers++
		}
	}
	if answers != 80 {
		t.Errorf("%d of one role were refused", answers)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestRequestMemory checks that waiting requests are bounded in bytes too.
func TestRequestMemory(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, Config{}, func(context.Context, Request) Answer {
		<-release
		return Answer{Text: "x"}
	})
	list := strings.Repeat("1000000000,", limits.MaxTargets-1) + "1"
	const requests = 400
	for n := 1; n <= requests; n++ {
		body := fmt.Sprintf("1 %s get %s 60000 10 f %d UTF8 706f737467726573 706f737467726573", id(n), list, n)
		s.put(id(n)+reqSuffix, []byte(body+" "+s.keys.signing().sign([]byte(body))+"\n"))
	}
	most := limits.PendingBytes / 2 / (len(list) + 100)
	wait(t, "all requests are taken", func() bool {
		names, err := filepath.Glob(s.path("*" + reqSuffix))
		return err == nil && len(names) == 0
	})
	if refused := len(s.files()); refused < requests-most-2 || refused > requests-most+2 {
		t.Errorf("%d are refused, want about %d", refused, requests-most)
	}
	close(release)
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestHandlerThatHangs checks that a blocked handler does not prevent answers to its caller and others. The spool
// must also be able to end.
func TestHandlerThatHangs(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	s := serve(t, Config{Concurrency: 1, Pending: 1}, func(ctx context.Context, r Request) Answer {
		if r.Backend == 1 {
			<-never
		}
		return echo(ctx, r)
	})
	body := strings.Replace(string(s.lineOf(id(1), 1, true)), " 60000 ", " 2000 ", 1) // ms: a request that is found later is not answered
	body = body[:strings.LastIndexByte(body, ' ')]
	s.put(id(1)+reqSuffix, []byte(body+" "+s.keys.signing().sign([]byte(body))+"\n"))
	if got := s.answer(1); !strings.HasPrefix(got, "ERROR|55000|the pg_stat_backtrace worker could not finish") {
		t.Errorf("got %q", got)
	}
	for n := 2; n < 5; n++ {
		wait(t, "there is room for another one", func() bool {
			s.put(id(n)+reqSuffix, s.lineOf(id(n), n, true))
			return s.answer(n) == "|||||pid 4711"
		})
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestCallAwaited checks how long an answer is kept for its caller at a shutdown: as long as the caller may sleep
// between two looks.
func TestCallAwaited(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		took, age time.Duration
		want      bool
	}{
		{0, 0, true},
		{0, 100 * time.Millisecond, true},
		{0, time.Second, false},
		{4 * time.Second, time.Second, true},
		{4 * time.Second, 2 * time.Second, false},
		{time.Minute, 2 * time.Second, true},
		{time.Minute, 3 * time.Second, false},
	} {
		delivered := now.Add(-c.age)
		calls := newCalls(nil, nil)
		calls.answers["a"] = &call{begun: delivered.Add(-c.took), delivered: delivered}
		if got := calls.awaited(now); got != c.want {
			t.Errorf("an answer after %v is awaited for %v: %v", c.took, c.age, got)
		}
	}
	if newCalls(nil, nil).awaited(now) {
		t.Error("no answer is awaited")
	}
}
