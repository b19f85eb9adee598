package recorder

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
)

// taker takes stacks of processes that it counts.
func taker(take func(pid int) (*Stack, error)) *stackTaker {
	return &stackTaker{known: map[identity]*knownStack{}, take: func(_ context.Context, pid int, _ time.Duration) (*Stack, error) { return take(pid) }}
}

// sweepOf adds stacks until the goroutine has ended, which a busy host may delay beyond the limit of a sweep.
func sweepOf(t *testing.T, s *stackTaker, now time.Time, rows []store.Row, procs map[int32]rules.Proc) (list []store.Stack, note string) {
	t.Helper()
	list, note = s.add(now, time.Minute, 0, rows, procs)
	for s.busy != nil {
		s.collect(time.Minute)
		list, note = s.fill(now, rows, procs), ""
	}
	return list, note
}

// TestUnchanged expects a stack to be taken again only if the process has run since.
func TestUnchanged(t *testing.T) {
	var taken atomic.Int32
	s := taker(func(pid int) (*Stack, error) {
		taken.Add(1)
		return &Stack{ID: int64(pid), Frames: []string{"f"}, Method: "blocked", Phrase: "waits"}, nil
	})
	now := time.Unix(1_800_000_000, 0)
	step := func(name string, p rules.Proc, want int32, method string) {
		t.Helper()
		now = now.Add(time.Minute)
		rows := []store.Row{{PID: 1, Start: 1}}
		list, note := sweepOf(t, s, now, rows, map[int32]rules.Proc{1: p})
		if got := taken.Swap(0); got != want || rows[0].Method != method || rows[0].Stack != 1 || len(list) != 1 || note != "" {
			t.Errorf("%s: %d stacks taken, want %d; %+v, %v, %q", name, got, want, rows[0], list, note)
		}
	}
	step("first", rules.Proc{State: 'S', Switches: 5}, 1, "blocked")
	step("asleep", rules.Proc{State: 'S', Switches: 5}, 0, unchanged)
	step("disk", rules.Proc{State: 'D', Switches: 5}, 0, unchanged)
	step("awake", rules.Proc{State: 'R', Switches: 5}, 1, "blocked")
	step("has run", rules.Proc{State: 'S', Switches: 6}, 1, "blocked")
	rows := []store.Row{{PID: 1, Start: 2}} // another process with the number
	sweepOf(t, s, now.Add(time.Minute), rows, map[int32]rules.Proc{1: {State: 'S', Switches: 6}})
	if got := taken.Load(); got != 1 || len(s.known) != 1 {
		t.Errorf("%d stacks of another process, %d known", got, len(s.known))
	}
}

// TestNamedLater expects the stack of a process that does not run to be taken again, less and less often, until its names are known.
func TestNamedLater(t *testing.T) {
	taken := 0
	s := taker(func(int) (*Stack, error) {
		taken++
		return &Stack{ID: int64(taken), Frames: []string{"f"}, Method: "blocked", Unnamed: taken < 4}, nil
	})
	now := time.Unix(1_800_000_000, 0)
	var at []int
	for second := range 30 {
		rows := []store.Row{{PID: 1, Start: 1}}
		before := taken
		if list, note := sweepOf(t, s, now.Add(time.Duration(second)*time.Second), rows, map[int32]rules.Proc{1: {State: 'S', Switches: 5}}); len(list) != 1 ||
			note != "" || rows[0].Stack != int64(taken) {
			t.Errorf("second %d: %v, %q, %+v", second, list, note, rows[0])
		}
		if taken > before {
			at = append(at, second)
		}
	}
	if want := []int{0, 1, 3, 7}; !slices.Equal(at, want) {
		t.Errorf("taken at %v, want %v", at, want)
	}
}

// TestStacksDropped has a stack that takes too long, a late sweep, a used-up budget and a failure. Each has a note.
func TestStacksDropped(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	rows := []store.Row{{PID: 1, Start: 1}, {PID: 2, Start: 1}}
	procs := map[int32]rules.Proc{1: {State: 'S', Switches: 1}, 2: {State: 'S', Switches: 1}}
	hang := make(chan struct{})
	s := taker(func(int) (*Stack, error) {
		<-hang
		return nil, errors.New("too late")
	})
	expect := func(name string, s *stackTaker, period, delay time.Duration, want string) {
		t.Helper()
		now = now.Add(time.Second)
		if list, note := s.add(now, period, delay, rows, procs); len(list) != 0 || !strings.Contains(note, want) || !strings.Contains(note, "2 sessions") {
			t.Errorf("%s: %v, %q", name, list, note)
		}
	}
	expect("hangs", s, 20*time.Millisecond, 0, "no time was left")
	expect("still hangs", s, 20*time.Millisecond, 0, "still takes stacks")
	close(hang)
	fails := taker(func(int) (*Stack, error) { return nil, errors.New("no") })
	expect("late", fails, time.Second, 2*time.Second, "late")
	fails.credit = -time.Hour
	expect("budget", fails, time.Second, 0, "3 % of a processor")
	fails.credit = time.Second
	if _, note := sweepOf(t, fails, now.Add(time.Second), rows, procs); note == "" && rows[0].Stack != 0 {
		t.Errorf("%+v after a failure", rows[0])
	}
	panics := taker(func(int) (*Stack, error) { panic("injected") })
	sweepOf(t, panics, now.Add(time.Minute), rows, procs)
}

// TestLateStack has a stack that was taken for one sweep and arrives at the next. It is used only if the process has not run meanwhile.
func TestLateStack(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for switches, want := range map[uint64]store.Row{
		1: {PID: 1, Start: 1, Stack: 7, Method: unchanged},
		2: {PID: 1, Start: 1},
	} {
		s := taker(func(int) (*Stack, error) { return &Stack{ID: 7, Method: "blocked"}, nil })
		s.begin(now, []takenStack{{id: identity{1, 1}, switches: 1}}, nil, time.Minute)
		taken := <-s.busy
		s.busy = make(chan takenSweep, 1)
		s.busy <- taken
		s.last, s.credit = now, -time.Hour // so that the next sweep takes no stacks
		rows := []store.Row{{PID: 1, Start: 1}}
		s.add(now.Add(time.Second), time.Second, 0, rows, map[int32]rules.Proc{1: {State: 'S', Switches: switches}})
		if !reflect.DeepEqual(rows[0], want) {
			t.Errorf("%d switches: %+v, want %+v", switches, rows[0], want)
		}
	}
}

// TestBudgetBounded expects the credit to grow with time, and not beyond its limit.
func TestBudgetBounded(t *testing.T) {
	s := taker(nil)
	now := time.Unix(1_800_000_000, 0)
	s.save(now)
	s.credit = -time.Second
	s.save(now.Add(10 * time.Second))
	if want := -700 * time.Millisecond; s.credit != want {
		t.Errorf("%s after 10 s, want %s", s.credit, want)
	}
	s.save(now.Add(time.Hour))
	s.save(now) // the clock was set back
	if s.credit != stackCredit {
		t.Errorf("%s after an hour", s.credit)
	}
}
