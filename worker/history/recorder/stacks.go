package recorder

import (
	"cmp"
	"context"
	"fmt"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/units"
)

// Limits of the cost of stacks.
const (
	stackShare  = 0.03                   // part of one processor's time that all stacks together may use
	stackCredit = time.Second            // processor time that may be saved for later sweeps
	stackSweep  = 250 * time.Millisecond // longest time for which a sweep waits for its stacks; also at most a quarter of the period
	stackLimit  = 50 * time.Millisecond  // time for one stack
	firstWait   = time.Second            // time until a stack with Stack.Unnamed is taken again; doubles up to lastWait
	lastWait    = time.Minute
	unchanged   = "unchanged" // store.Row.Method of a stack that was taken earlier
)

// stackTaker takes the stacks of a sweep in another goroutine. The sweep does not wait longer than its limit. If the goroutine has
// not ended by then, a later sweep collects its result.
type stackTaker struct {
	take  func(ctx context.Context, pid int, limit time.Duration) (*Stack, error)
	known map[identity]*knownStack
	// plans reads plans after the stacks; nil: none.
	plans *planTaker
	// busy receives the results of the goroutine; nil: it does not run.
	busy   chan takenSweep
	credit time.Duration // processor time that stacks may use now
	used   time.Duration // processor time of the worker when the goroutine began
	last   time.Time     // time of the last addition to credit
	// local translates a process id of the server to the id that this program sees; nil: both are equal.
	local func(int) int
	// parents has only the id of the postmaster, as this program sees it; nil: not known.
	parents []int
	// files keeps descriptors of processes open between sweeps. While busy is not nil, only the goroutine uses files.
	files *process.Keeper
	// fresh has the complete stacks that the last add has collected, by process id, for the rules.
	fresh map[int32]rules.Sample
}

// knownStack is the last stack of a process, with the number of the process's context switches at that time.
type knownStack struct {
	switches uint64
	stack    *Stack // nil: the attempt failed
	at       time.Time
	// again is the time from which on a stack with Stack.Unnamed is taken again. wait is the time between the fields at and again.
	again time.Time
	wait  time.Duration
}

type takenStack struct {
	id        identity
	switches  uint64
	statement int64 // start of the statement, microseconds since 1970
	stack     *Stack
}

// takenSweep has the stacks and plans that the goroutine has read for a sweep.
type takenSweep struct {
	at     time.Time // time of that sweep
	stacks []takenStack
	plans  []takenPlan
}

// add takes the stacks that a sweep needs, and sets the stacks of its rows. It returns these stacks, and a note if stacks are
// missing.
func (t *stackTaker) add(now time.Time, period, delay time.Duration, rows []store.Row, procs map[int32]rules.Proc) ([]store.Stack, string) {
	t.save(now)
	t.fresh = nil
	t.collect(0)
	var wanted []takenStack
	lacking := 0 // number of sessions in wanted that have no valid stack
	present := make(map[identity]bool, len(rows))
	for i := range rows {
		id := identity{rows[i].PID, rows[i].Start}
		present[id] = true
		p, ok := procs[id.pid]
		same := ok && t.same(id, p)
		if !ok || same && !t.unnamed(id, now) {
			continue
		}
		if !same {
			lacking++
		}
		wanted = append(wanted, takenStack{id: id, switches: p.Switches, statement: rows[i].QueryStart})
	}
	for id := range t.known {
		if !present[id] {
			delete(t.known, id)
		}
	}
	plans := t.plans.wanted(now, rows, procs, t.current)
	if t.credit < stackCredit/2 { // keep the rest of the credit for stacks, which are more important
		plans = nil
	}
	missing := len(wanted)
	reason := ""
	switch {
	case missing == 0 && (len(plans) == 0 || t.busy != nil || delay > period):
	case t.busy != nil:
		reason = "the sweep before still takes stacks"
	case delay > period:
		reason = "the sweep is late"
	case t.credit <= 0:
		reason = fmt.Sprintf("stacks have used more than %.0f %% of a processor", stackShare*100)
	default:
		reason = "no time was left"
		sort.SliceStable(wanted, func(i, j int) bool {
			a, b := wanted[i], wanted[j]
			return cmp.Compare(t.when(a.id), t.when(b.id)) < 0
		})
		limit := min(stackSweep, period/4)
		t.begin(now, wanted, plans, limit)
		missing -= t.collect(limit)
	}
	note := ""
	if missing = min(missing, lacking); missing > 0 {
		note = fmt.Sprintf("no stacks of %s: %s", units.Count(missing, "session"), reason)
	}
	return t.fill(now, rows, procs), note
}

// same reports whether the process sleeps, and has not run since its last stack was taken.
func (t *stackTaker) same(id identity, p rules.Proc) bool {
	k := t.known[id]
	return k != nil && k.stack != nil && k.switches == p.Switches && (p.State == 'S' || p.State == 'D')
}

// unnamed reports whether the process's last stack has Stack.Unnamed, and it is time to take it again.
func (t *stackTaker) unnamed(id identity, now time.Time) bool {
	k := t.known[id]
	return k != nil && k.stack != nil && k.stack.Unnamed && !now.Before(k.again)
}

// current returns the last stack of a process if the process has not run since the stack was taken, else nil.
func (t *stackTaker) current(id identity, p rules.Proc) *Stack {
	if t.same(id, p) {
		return t.known[id].stack
	}
	return nil
}

// when returns the time of the last attempt to take the process's stack, in ns; 0: there was none, so that this process comes
// first.
func (t *stackTaker) when(id identity) int64 {
	if k := t.known[id]; k != nil {
		return k.at.UnixNano()
	}
	return 0
}

// save adds stackShare of the time since the last call of save to the credit, up to stackCredit.
func (t *stackTaker) save(now time.Time) {
	if since := now.Sub(t.last); !t.last.IsZero() && since > 0 {
		t.credit = min(stackCredit, t.credit+time.Duration(float64(since)*stackShare))
	} else if t.last.IsZero() {
		t.credit = stackCredit
	}
	t.last = now
}

// begin starts the goroutine for the sweep of the time now. It takes the wanted stacks and then reads the plans. It begins no further
// stack or plan after the time limit.
func (t *stackTaker) begin(now time.Time, wanted []takenStack, plans []takenPlan, limit time.Duration) {
	done := make(chan takenSweep, 1)
	t.busy, t.used = done, processTime()
	if t.files == nil {
		t.files = process.NewKeeper(limits.RecorderProcesses)
	}
	local, parents := t.local, t.parents
	go func() {
		taken := takenSweep{at: now}
		_ = host.Catch("stacks", func() error {
			t.files.Begin(append(parents, localIDs(wanted, local)...))
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			for _, w := range wanted {
				if ctx.Err() != nil {
					break
				}
				w.stack, _ = t.take(ctx, int(w.id.pid), stackLimit)
				taken.stacks = append(taken.stacks, w)
			}
			if len(plans) > 0 {
				taken.plans = t.plans.read(ctx, plans, taken.stacks)
			}
			return nil
		})
		done <- taken
	}()
}

// localIDs returns the process ids of the wanted stacks, as this program sees them.
func localIDs(wanted []takenStack, local func(int) int) []int {
	pids := make([]int, len(wanted))
	for i := range wanted {
		if pids[i] = int(wanted[i].id.pid); local != nil {
			pids[i] = local(pids[i])
		}
	}
	return pids
}

// close closes the kept descriptors. It does nothing while the goroutine runs.
func (t *stackTaker) close() {
	if t.busy == nil && t.files != nil {
		t.files.Close()
	}
}

// collect waits for the result of the goroutine, at most for limit. It returns the number of stacks; 0: the goroutine does not run,
// or has not ended.
func (t *stackTaker) collect(limit time.Duration) (n int) {
	if t.busy == nil {
		return 0
	}
	var taken takenSweep
	select {
	case taken = <-t.busy: // first, because with limit 0 the timer may have ended too
	default:
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case taken = <-t.busy:
		case <-timer.C:
			return 0
		}
	}
	t.busy = nil
	t.credit -= processTime() - t.used // includes other work of the worker during this time
	if t.plans != nil {
		t.plans.add(taken.plans)
	}
	for _, s := range taken.stacks {
		// The time of the sweep that wanted the stack: a later sweep must not record it as taken then.
		k := &knownStack{switches: s.switches, stack: s.stack, at: taken.at, wait: firstWait}
		if old := t.known[s.id]; old != nil && s.stack != nil && s.stack.Unnamed && !old.again.IsZero() {
			k.wait = min(2*old.wait, lastWait)
		}
		k.again = taken.at.Add(k.wait)
		t.known[s.id] = k
		if s.stack == nil {
			continue
		}
		n++
		if s.stack.Cut == "" {
			if t.fresh == nil {
				t.fresh = map[int32]rules.Sample{}
			}
			t.fresh[s.id.pid] = rules.Sample{Statement: s.statement, Functions: s.stack.Frames}
		}
	}
	return n
}

// fill sets the columns of each row whose stack was taken in this sweep, or whose process has not run since its stack was taken. It
// returns these stacks.
func (t *stackTaker) fill(now time.Time, rows []store.Row, procs map[int32]rules.Proc) []store.Stack {
	used := map[int64]bool{}
	var list []store.Stack
	for i := range rows {
		r := &rows[i]
		id := identity{r.PID, r.Start}
		k := t.known[id]
		p, ok := procs[r.PID]
		t.plans.fill(now, r, p)
		if !ok || k == nil || k.stack == nil || !k.at.Equal(now) && !t.same(id, p) {
			continue
		}
		s := k.stack
		r.Stack, r.Method, r.Phrase, r.PhraseKey, r.Function = s.ID, s.Method, s.Phrase, s.PhraseKey, s.Function
		if !k.at.Equal(now) {
			r.Method = unchanged
		}
		if !used[s.ID] {
			used[s.ID] = true
			list = append(list, store.Stack{ID: s.ID, Frames: s.Frames, Cut: s.Cut})
		}
	}
	return list
}

func processTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
