package cli

import (
	"context"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of the stacks that are taken for the phrases of one moment.
const (
	maxPhrases  = 500
	phrasesTime = 2 * time.Second
)

// addPhrases sets the phrases of the sessions that are not idle. It takes call stacks without stopping the processes. A session
// whose state, statement or wait event has changed since the moment was read gets no phrase.
func (f *activityFlags) addPhrases(ctx context.Context, reader *state.Reader, m *moment.Moment) {
	if f.capturer == nil {
		c, err := capture.New(capture.Config{})
		if err != nil {
			m.Missing = append(m.Missing, "phrases: "+err.Error())
			return
		}
		f.capturer = c
	}
	ctx, cancel := context.WithTimeout(ctx, phrasesTime)
	defer cancel()
	looks, left := &sessions{reader: reader, before: m}, 0
	running := map[int]string{} // phrases of plans, by process
	for i := range m.Sessions {
		s := &m.Sessions[i]
		switch {
		case s.State == "idle", !f.isChosen(s):
		case len(looks.traces) == maxPhrases || ctx.Err() != nil:
			left++
		default:
			if t := f.trace(ctx, reader, s); t != nil {
				looks.traces = append(looks.traces, t)
				if f.plans && s.State == "active" {
					running[t.PID] = f.planPhrase(ctx, reader, s)
				}
			} else if ctx.Err() != nil {
				left++
			}
		}
	}
	if left > 0 {
		m.Missing = append(m.Missing, "phrases: there was no time for "+units.Count(left, "process"))
	}
	looks.end(nil)
	f.lockPhrases = map[int]string{}
	for _, t := range looks.traces {
		s, after := sessionOf(m, t.PID), sessionOf(looks.after, t.PID)
		if after == nil || s.State != after.State || !sameTime(s.QueryStart, after.QueryStart) || !sameWait(s.Wait, t.Wait) {
			continue
		}
		phrase := render.Phrase(t)
		s.Phrase, s.Function = phrase.Text, render.Function(t)
		if t.Wait.Class == "Lock" {
			f.lockPhrases[s.ServerPID] = phrase.Key
		}
		switch node := running[t.PID]; {
		case node == "":
		case s.Phrase == "":
			s.Phrase = node
		case s.Wait != nil: // so it was still in this node
			s.Phrase += "; " + node
		default:
			s.Phrase += "; a moment later it " + node
		}
	}
}

// planPhrase returns the running node of a session's plan in words; empty: it could not be read, or the plans of this build were
// not compared with EXPLAIN. The process is not stopped.
func (f *activityFlags) planPhrase(ctx context.Context, reader *state.Reader, s *moment.Session) (phrase string) {
	_ = host.Catch("plans", func() error {
		target, err := reader.Cluster().Contains(s.ServerPID)
		if err != nil {
			return err
		}
		defer target.Held.Release()
		r := runningplan.Reader{Capturer: f.capturer, NonStop: true, Proof: console.ProvenPlans(reader.Cluster().DataDir)}
		p := r.Read(ctx, target, nil)
		if p.Err == nil && p.Plans.Proven {
			phrase = plan.Phrase(p.Plans.Levels)
		}
		return p.Err
	})
	return phrase
}

// trace captures the stack of a process without stopping it. It returns nil if that fails.
func (f *activityFlags) trace(ctx context.Context, reader *state.Reader, s *moment.Session) (t *backtrace.Trace) {
	_ = host.Catch("stacks", func() error {
		target, err := reader.Cluster().Contains(s.ServerPID)
		if err != nil {
			return err
		}
		defer target.Held.Release()
		if err := f.capturer.AwaitProgram(ctx, target.PID); err != nil { // without the wait event, there is no phrase
			return err
		}
		t, err = f.capturer.Capture(ctx, target, capture.Options{Deadline: phrasesTime, NonStop: true})
		return err
	})
	if t != nil {
		t.Session = &backtrace.Session{}
	}
	return t
}

// sameWait reports whether two waits are equal. w is the wait of a session in a moment (nil: none). of is the wait event that
// was read together with the session's stack.
func sameWait(w *moment.Wait, of backtrace.Wait) bool {
	if w == nil {
		return of.Class == ""
	}
	return w.Type == of.Class && w.Event == of.Event
}
