package view

import (
	"context"
	"errors"
	"time"

	"pg_stat_backtrace/worker/screen/source"
)

// Bounds of the answers.
const (
	mostColumns  = 400
	mostSessions = 500
	mostRows     = 200
	memoryEvery  = 5 * time.Second // memory contexts are read less often than other data, as there can be many
)

// Fetch requests the data of the chosen page from the source. Reasons for missing data are in Errors of the result. before is the
// result of the last call; nil: none. wide is set if the page Session shows all panels, so that Fetch needs the data of all. If
// whole is set, Fetch requests the data of all pages, except Flame if it is not chosen.
func Fetch(ctx context.Context, src source.Source, s *State, before *Data, now time.Time, wide, whole bool) *Data {
	d := &Data{Time: now, Errors: map[string]string{}, Filter: s.Filter, PID: s.PID, page: s.Page, captures: s.captures}
	failed := func(name string, err error) {
		if err != nil {
			d.Errors[name] = err.Error()
		}
	}
	var err error
	all := src
	if !s.Live() {
		earlier, err := past(ctx, src, s)
		if err != nil {
			d.Info, _ = src.Info(ctx)
			d.failAll(err)
			return d
		}
		src = earlier
	}
	d.Info, err = src.Info(ctx)
	failed("info", err)
	span := s.SpanAt(now)
	q := source.Query{Span: span, Filter: s.Filter}
	on := func(p Page) bool { return whole || s.Page == p }
	if on(PageLoad) {
		d.Load, err = src.Load(ctx, q, mostColumns)
		failed("load", err)
		d.Sessions, err = src.Sessions(ctx, s.Filter, mostSessions)
		failed("sessions", err)
	}
	if on(PageLoad) || on(PageBlocking) {
		d.Findings, err = src.Findings(ctx, span)
		failed("findings", err)
	}
	switch {
	case !on(PageWho):
	case s.Compare.IsZero():
		d.Who, err = src.Who(ctx, q, s.By, mostRows)
		failed("who", err)
	default:
		failed("comparison", d.compare(ctx, src, all, s, q))
	}
	if on(PageBlocking) {
		d.Blocking, err = src.Blocking(ctx)
		failed("blocking", err)
	}
	if s.Page == PageFlame { // only for this page: the request makes a live source take stacks, which no other page needs
		if flamer, ok := src.(source.Flamer); ok {
			d.Flame, err = flamer.Flame(ctx, q, s.Side)
			failed("flame", err)
		} else {
			failed("flame", errors.New("this source has no stacks"))
		}
	}
	if s.PID != 0 && on(PageSession) {
		d.session(ctx, src, s, before, span, wide)
	}
	return d
}

// past returns the source for the earlier span and moment of s.
func past(ctx context.Context, src source.Source, s *State) (source.Source, error) {
	historian, ok := src.(source.Historian)
	if !ok {
		return nil, source.ErrNotRecorded
	}
	return historian.Past(ctx, s.Span, s.Moment)
}

// failAll sets the reason for all members of d that could have been requested.
func (d *Data) failAll(err error) {
	for _, name := range []string{"load", "findings", "sessions", "who",
		"comparison", "blocking", "session", "stack", "plan", "memory", "flame"} {
		d.Errors[name] = err.Error()
	}
}

// session requests the data of the process s.PID.
func (d *Data) session(ctx context.Context, src source.Source, s *State, before *Data, span source.Span, wide bool) {
	var err error
	d.Session, err = src.Session(ctx, s.PID, span)
	if err != nil {
		d.Errors["session"] = err.Error()
	}
	prober, ok := src.(source.Prober)
	if !ok {
		d.Errors["stack"] = "this source has no stacks"
		return
	}
	if errors.Is(err, source.ErrNoSession) || d.Session != nil && d.Session.Now == nil {
		for _, name := range []string{"stack", "plan", "memory"} {
			d.Errors[name] = "the process has ended"
		}
		return
	}
	same := before != nil && before.PID == s.PID && before.captures == s.captures
	held := func(name string, has bool) bool { // reports whether the last data or error stays, because s.Held is set
		if !same || !s.Held {
			return false
		}
		if text := before.Errors[name]; text != "" {
			d.Errors[name] = text
			return true
		}
		return has
	}
	failed := func(name string, err error) {
		if err != nil {
			d.Errors[name] = err.Error()
		}
	}
	if held("stack", same && before.Stack != nil) {
		d.Stack = before.Stack
	} else if wide || s.Panel == panelStack {
		d.Stack, err = prober.Stack(ctx, s.PID)
		failed("stack", err)
	}
	if held("plan", same && before.Plan != nil) {
		d.Plan = before.Plan
	} else if wide || s.Panel == panelPlan {
		d.Plan, err = prober.Plan(ctx, s.PID)
		failed("plan", err)
	}
	fresh := same && before.Memory != nil && d.Time.Sub(before.Memory.Time) < memoryEvery
	if held("memory", same && before.Memory != nil) || fresh {
		d.Memory = before.Memory
	} else if wide || s.Panel == panelMemory {
		d.Memory, err = prober.Memory(ctx, s.PID)
		failed("memory", err)
	}
}

// Received completes data that a worker has sent for the state s. If s.Held is set on the page Session, and before (the last
// answer) is of the same process and capture, Received takes stack, plan and memory from before.
func Received(d *Data, s *State, before *Data) {
	d.PID, d.Filter, d.page, d.captures = s.PID, s.Filter, s.Page, s.captures
	if s.Page != PageSession || !s.Held || before == nil || before.PID != s.PID || before.captures != s.captures {
		return
	}
	for name, has := range map[string]bool{"stack": before.Stack != nil, "plan": before.Plan != nil, "memory": before.Memory != nil} {
		text := before.Errors[name]
		if !has && text == "" {
			continue
		}
		delete(d.Errors, name)
		if text != "" {
			d.Errors[name] = text
		}
		switch name {
		case "stack":
			d.Stack = before.Stack
		case "plan":
			d.Plan = before.Plan
		case "memory":
			d.Memory = before.Memory
		}
	}
}

// Unanswered returns the data of the last answer (the parameter before; it may be nil), and notes err as the reason why there is
// no newer answer.
func Unanswered(s *State, before *Data, now time.Time, err error) *Data {
	d := &Data{Time: now, Info: &source.Info{}, PID: s.PID}
	if before != nil {
		*d = *before
		if d.Info = new(source.Info); before.Info != nil {
			*d.Info = *before.Info
		}
	}
	d.Info.Error = err.Error()
	if !d.has(s.Page) { // the page itself shows the reason, in place of its data
		d.page, d.Errors = s.Page, map[string]string{}
		d.failAll(err)
	}
	return d
}
