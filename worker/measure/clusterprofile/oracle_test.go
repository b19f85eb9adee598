package clusterprofile

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// spin recurses, and works at the bottom until the statement is cancelled. It spends its time in few places, so that
// captures find them all.
const spin = `CREATE FUNCTION spin(n int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE b bytea := convert_to(repeat('x', 1000000), 'UTF8'); x numeric;
BEGIN
	IF n > 0 THEN
		RETURN spin(n - 1) + 1;
	END IF;
	PERFORM pg_advisory_lock_shared(1); -- it is at the bottom
	LOOP
		x := factorial(3000);
		PERFORM sha512(b);
	END LOOP;
END $$`

// places are where captures have found the sessions: whole stacks, functions, functions with the places of their calls,
// and these places.
type places struct {
	stacks, functions, calls, callers map[string]bool
}

// place is the address of a frame in its image.
func place(f *backtrace.Frame) string {
	return fmt.Sprintf("%s+0x%x %s", f.Module, f.ModuleOffset, f.Function)
}

// function is the function of a frame, as far as it has a name; otherwise the address.
func function(f *backtrace.Frame) string {
	if f.Function == "" {
		return place(f)
	}
	return f.Module + " " + f.Function
}

// pathOf lists the places of a stack, and the reason why it ends.
func pathOf(t *backtrace.Thread) (list []string) {
	for i := range t.Frames {
		list = append(list, place(&t.Frames[i]))
	}
	reason, _, _ := strings.Cut(t.Stop, " at 0x")
	return append(list, reason)
}

// calls returns the function of each frame with the place of the call, or with the end of the stack.
func calls(t *backtrace.Thread) (list []string) {
	path := pathOf(t)
	for i := range t.Frames {
		list = append(list, function(&t.Frames[i])+" called by "+path[i+1])
	}
	return list
}

// add adds the stack of a capture.
func (p *places) add(t *backtrace.Thread) {
	path := pathOf(t)
	p.stacks[strings.Join(append([]string{function(&t.Frames[0])}, path[1:]...), "\n")] = true
	for i, call := range calls(t) {
		p.functions[function(&t.Frames[i])] = true
		p.calls[call] = true
		p.callers[path[i+1]] = true
	}
}

// equal reports whether a capture has the stack. The innermost frame may be at another instruction of its function.
func (p *places) equal(t *backtrace.Thread) bool {
	return p.stacks[strings.Join(append([]string{function(&t.Frames[0])}, pathOf(t)[1:]...), "\n")]
}

// contradiction returns a call of a sampled stack that no capture has, although captures have the function and the
// place of the call. Known is false if no capture has been in one of the frames. An innermost frame without a name does
// not count: its function may have been called, or jumped to at the end of another one.
func (p *places) contradiction(t *backtrace.Thread) (call string, known bool) {
	for _, place := range pathOf(t)[1:] {
		if !p.callers[place] {
			return "", false
		}
	}
	if t.Frames[0].Function != "" && !p.functions[function(&t.Frames[0])] {
		return "", false
	}
	for i, call := range calls(t) {
		if !p.calls[call] && (i > 0 || t.Frames[0].Function != "") {
			return call, true
		}
	}
	return "", true
}

// TestRunningStacksEqualCaptures samples sessions that work, and stops the same sessions for captures. Each frame of
// each sampled stack must have a caller that captures show. Wrong unwinding leaves out a frame, or invents one. A rare
// path that was sampled once and never captured looks the same: with few captures, one sample in a hundred may.
func TestRunningStacksEqualCaptures(t *testing.T) {
	samples, most, allowed := 500, time.Minute, 5
	if os.Getenv("PGSB_PROFILE_SOAK") != "" {
		samples, most, allowed = 10_000, 5*time.Minute, 0
	}
	pgtest.One(t, func(t *testing.T, bin string) {
		server := pgtest.Lend(t, bin, pgtest.Options{})
		server.Exec(t, spin)
		pids := work(t, server)
		capturer, err := capture.New(capture.Config{AwaitNames: true, LinesWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		sampled := sampledThreads(t, Options{
			DataDir: server.DataDir, Mode: Wall, Rate: 999, Duration: most, Capturer: capturer,
		}, pids, samples)
		seen := &places{make(map[string]bool), make(map[string]bool), make(map[string]bool), make(map[string]bool)}
		var r comparison
		for began := time.Now(); ; {
			for range 100 {
				tr, err := capturer.Capture(context.Background(), process.Target{PID: pids[r.captures%2], UID: -1},
					capture.Options{NoContext: true})
				if err != nil {
					t.Fatal(err)
				}
				seen.add(&tr.Threads[0])
				r.captures++
			}
			r.compare(sampled, seen)
			if r.captures >= 2*samples && (r.passes(allowed) || time.Since(began) > most) {
				break
			}
		}
		t.Logf("%+v", r)
		if !r.passes(allowed) {
			t.Errorf("of %d samples, %d equal a capture, %d were where no capture was, and %d differ from all, such as %s",
				r.all, r.equal, r.unknown, r.different, r.example)
		}
	})
}

// comparison counts samples: equal ones have the stack of a capture, mixed ones frames and callers of several captures,
// and different ones contradict all captures. Unknown ones were in a place where no capture was.
type comparison struct {
	captures, all, equal, mixed, unknown, different int
	example                                         string
}

// passes reports whether enough samples equal a capture, and no more than the allowed number differ from all captures.
// After more captures a failed comparison can pass, because they find rare paths.
func (r *comparison) passes(allowed int) bool {
	return r.all > 0 && 2*r.equal >= r.all && 20*r.unknown <= r.all && r.different <= allowed
}

func (r *comparison) compare(sampled map[*backtrace.Thread]int, seen *places) {
	*r = comparison{captures: r.captures}
	for th, n := range sampled {
		r.all += n
		call, known := seen.contradiction(th)
		switch {
		case seen.equal(th):
			r.equal += n
		case !known:
			r.unknown += n
		case call == "":
			r.mixed += n
		default:
			r.different += n
			r.example = call + " in\n" + strings.Join(pathOf(th), "\n")
		}
	}
}

// work has two sessions execute spin until the end of the test. It waits until both are at the bottom: no capture finds
// the places before.
func work(t *testing.T, server *pgtest.Server) (pids []int) {
	t.Helper()
	var working sync.WaitGroup
	for range 2 {
		c := server.Connect(t, "postgres", "postgres")
		t.Cleanup(working.Wait) // before the connection is closed
		pids = append(pids, int(c.PgConn().PID()))
		working.Go(func() { _, _ = c.Exec(t.Context(), "SELECT spin(5)") }) // until the test ends
	}
	admin := server.Connect(t, "postgres", "postgres")
	pgtest.Wait(t, "both to work", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted").Scan(&n)
		return err == nil && n == 2
	})
	return pids
}

// sampledThreads samples processes until there are so many stacks. It returns how often each was there.
func sampledThreads(t *testing.T, o Options, pids []int, stacks int) map[*backtrace.Thread]int {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o.Progress = func(_ time.Duration, n int) {
		if n >= stacks {
			cancel()
		}
	}
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCollector(&o)
	if err != nil {
		t.Skip(err)
	}
	defer c.sampler.Close()
	if err := c.run(ctx); err != nil {
		t.Fatal(err)
	}
	_ = c.profile(context.Background())
	list := make(map[*backtrace.Thread]int)
	add := func(key *stackKey, n int) {
		if slices.Contains(pids, key.process.pid) {
			list[key.thread] += n
		}
	}
	for key, n := range c.cpu {
		add(&key, n)
	}
	for _, w := range c.off {
		for key, share := range w.stacks {
			add(&key, share.samples[partSleeping]+share.samples[partRunnable])
		}
	}
	return list
}
