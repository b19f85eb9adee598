package source

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/state"
)

// Bounds of following a recorder.
const (
	followBack   = 15 * time.Minute       // age of the oldest sweep that is read at the start
	followBudget = 700 * time.Millisecond // time limit for decoding sweeps, per call
	followLook   = 5 * time.Second        // time after which this program itself reads the idle sessions again
	followLate   = 2 * time.Second        // added to three periods: a recorder without a new sweep for so long does not run
	maxMissing   = 10                     // damaged parts of the journal that are shown
	noSessions   = "no sessions: "        // part of the note of a sweep in which the recorder could not read the server
)

// following has the state of a live source that takes its samples from a running recorder.
type following struct {
	f      *store.Follower
	newest time.Time // time of the newest sweep
	period time.Duration
	looked time.Time
	seen   map[session]*moment.Session // sessions that this program itself read last, at the time looked
	frames map[int64][]string          // by number of the stack, guarded by Live.mu; empty: the files do not have the stack
	stacks time.Time                   // time of the newest sweep with a stack, guarded by Live.mu
}

// runs reports whether the newest sweep is so fresh that the recorder must be running. A sweep is later than now if the clock was set
// back: until the clock has caught up, the follower passes no sweeps.
func (w *following) runs(now time.Time) bool {
	return !w.newest.IsZero() && now.Sub(w.newest).Abs() < 3*w.period+followLate
}

// follow reads the new sweeps of the recorder. It returns false if the recorder does not run, or cannot read the server. The
// caller must have locked l.reading.
func (l *Live) follow() bool {
	if l.recorded.Load() == nil {
		return false
	}
	w, now := &l.following, time.Now()
	if w.f == nil {
		w.f = l.recorded.Load().reader.Follow(now.Add(-followBack))
	}
	var sweeps []*store.Sweep
	done := l.reads()
	left, err := w.f.Next(followBudget, func(s *store.Sweep) { sweeps = append(sweeps, s) })
	done()
	if err != nil || len(sweeps) == 0 {
		return err == nil && w.runs(now) && l.reader != nil
	}
	last := sweeps[len(sweeps)-1]
	w.newest, w.period = last.Time, last.Period
	if !w.runs(now) || strings.Contains(last.Note, noSessions) || l.reader == nil || !l.reader.Cluster().Alive() {
		w.newest = time.Time{}
		return false
	}
	if left > 0 {
		l.mu.Lock()
		l.past.first = reasonReading
		l.mu.Unlock()
	}
	for i, s := range sweeps {
		if !strings.Contains(s.Note, noSessions) {
			l.takeSweep(s, i == len(sweeps)-1)
		}
	}
	return true
}

// takeSweep adds a sweep as a sample. If last is set, the sample also gets data that the recorder does not keep; see
// addOwnLook.
func (l *Live) takeSweep(s *store.Sweep, last bool) {
	span := &store.SpanSweep{Time: s.Time, Period: s.Period, Delay: s.Delay, Lost: s.Lost, Note: s.Note, Rows: s.Rows}
	m := momentOf(span)
	f := &facts{m: m, older: true}
	if last {
		l.addOwnLook(m)
		f = l.look(m)
	}
	f.interval, f.looks = s.Period, max(s.Period, l.o.Interval)
	w := &l.following
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range s.Stacks {
		w.keepFrames(k.ID, k.Frames)
	}
	l.add(m, f, l.rules.apply(f), KindRecorded, 2*s.Period)
	for _, err := range w.f.Damage() {
		if l.info.Missing = append(slices.Clone(l.info.Missing), err.Error()); len(l.info.Missing) >= maxMissing {
			break
		}
	}
	l.info.IntervalSeconds = s.Period.Seconds()
	if l.past.addRecordedStacks(span, m, w.frames) {
		w.stacks = s.Time
	}
}

// keepFrames keeps the frames of a stack for later sweeps. The caller must have locked Live.mu.
func (w *following) keepFrames(id int64, frames []string) {
	if len(w.frames) >= maxStacks || w.frames == nil {
		w.frames = map[int64][]string{}
	}
	w.frames[id] = frames
}

// addOwnLook adds data that the recorder does not keep: idle processes, the values in statements, and the progress of commands. For
// these, this program reads the server's memory itself, at most once in followLook.
func (l *Live) addOwnLook(m *moment.Moment) {
	w := &l.following
	if time.Since(w.looked) >= followLook {
		w.looked, w.seen = time.Now(), map[session]*moment.Session{}
		if own, err := l.reader.Read(state.Options{Texts: true}); err == nil {
			for i := range own.Sessions {
				w.seen[identityOf(&own.Sessions[i])] = &own.Sessions[i]
			}
		}
	}
	recorded := make(map[int]bool, len(m.Sessions))
	for i := range m.Sessions {
		s := &m.Sessions[i]
		recorded[s.ServerPID] = true
		own := w.seen[identityOf(s)]
		if own == nil {
			continue
		}
		s.PID = own.PID // process id in the namespace of this program, not of the server
		if micro(own.QueryStart) == micro(s.QueryStart) {
			s.Query, s.Progress = cmp.Or(own.Query, s.Query), own.Progress
		}
	}
	for _, own := range w.seen {
		switch {
		case recorded[own.ServerPID]:
		case own.State == stateIdle:
			m.Sessions = append(m.Sessions, *own)
		case own.Type == startupType: // the recorder leaves it out while it waits for WAL
			s := *own
			s.Wait = &moment.Wait{Type: "Activity", Event: "RecoveryWalStream"}
			m.Sessions = append(m.Sessions, s)
		}
	}
}

// stackMark and the stack's number stand in place of the frames of a recorded stack until these are read.
const stackMark = "stack:"

// addRecordedStacks adds the stacks of a sweep, whose moment is m. It reports whether the sweep has stacks.
func (p *past) addRecordedStacks(w *store.SpanSweep, m *moment.Moment, known map[int64][]string) bool {
	var list []takenStack
	some, at := false, 0
	for i := range w.Rows {
		if w.Rows[i].Ended {
			continue
		}
		s := &m.Sessions[at] // momentOf keeps the order of the rows
		at++
		if ClassOf(s) == "" {
			continue
		}
		t := takenStack{session: s}
		if id := w.Rows[i].Stack; id != 0 {
			some = true
			if t.frames = known[id]; t.frames == nil {
				t.frames = []string{stackMark + strconv.FormatInt(id, 10)}
			}
		}
		list = append(list, t)
	}
	p.addStacks(w.Time, KindRecorded, w.Period, list)
	return some
}

// unknownStacks returns the numbers of stacks without frames.
func (k *stackLog) unknownStacks() map[int64]bool {
	list := map[int64]bool{}
	for _, stack := range k.stacks {
		if id, ok := k.stackNumber(stack); ok {
			list[id] = true
		}
	}
	return list
}

// stackNumber returns the number of a recorded stack without frames; false: the stack has frames.
func (k *stackLog) stackNumber(stack []uint32) (int64, bool) {
	if len(stack) != 1 {
		return 0, false
	}
	text, ok := strings.CutPrefix(k.names.get(stack[0]).key, stackMark)
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil
}

// setFrames replaces the numbers of recorded stacks by their frames. Sessions whose stack was not found become sessions
// without a stack.
func (k *stackLog) setFrames(found map[int64]store.Stack) {
	old := *k
	*k = stackLog{sets: old.sets, rows: old.rows}
	again := map[int32]int32{}
	for i := range k.sets {
		for j := range k.sets[i].rows {
			r := &k.sets[i].rows[j]
			if r.stack < 0 {
				continue
			}
			to, ok := again[r.stack]
			if !ok {
				to = -1
				if frames := old.framesOf(old.stacks[r.stack], found); len(frames) > 0 {
					to = k.number(frames)
				}
				again[r.stack] = to
			}
			r.stack = to
		}
	}
}

// framesOf returns the frames of a stack, the innermost first.
func (k *stackLog) framesOf(stack []uint32, found map[int64]store.Stack) []string {
	if id, ok := k.stackNumber(stack); ok {
		return found[id].Frames
	}
	frames := make([]string, 0, len(stack))
	for i := range stack {
		frames = append(frames, k.names.get(stack[len(stack)-1-i]).key)
	}
	return frames
}

// nameStacks reads the frames of recorded stacks that have only a number.
func (l *Live) nameStacks(ctx context.Context) error {
	unknownStacks := func() map[int64]bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.past.stacks.unknownStacks()
	}
	if l.recorded.Load() == nil || len(unknownStacks()) == 0 {
		return nil
	}
	err := l.readEarlier(ctx, func(ctx context.Context) error {
		unknown, now := unknownStacks(), time.Now() // another reader may have named them meanwhile
		if len(unknown) == 0 {
			return nil
		}
		found, err := l.recorded.Load().reader.Stacks(ctx, now.Add(-2*time.Hour), now, unknown)
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.past.stacks.setFrames(found)
		for id := range unknown { // keep the frames, because later sweeps can have the same stacks
			l.following.keepFrames(id, append([]string{}, found[id].Frames...))
		}
		return nil
	})
	if err != nil {
		return errors.New("the recorded stacks could not be read: " + err.Error())
	}
	return nil
}
