package view

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"pg_stat_backtrace/worker/screen/source"
)

// Live reports whether the screen shows the time until now, not an earlier span.
func (s *State) Live() bool { return s.Span.To.IsZero() }

// SetLive returns to the time until now.
func (s *State) SetLive() { s.Span, s.Moment = source.Span{}, time.Time{} }

// SetSpan shows an earlier span and a moment in it; zero: the end of the span. The part of the span after now is cut off. If the
// times are not valid, SetSpan changes nothing and returns an error for the user.
func (s *State) SetSpan(span source.Span, moment, now time.Time) error {
	if span.To.After(now) {
		span.To = now
	}
	switch {
	case !span.From.Before(span.To):
		return errors.New("the time must begin before it ends, and before now")
	case span.To.Sub(span.From) < time.Second:
		return errors.New("the time must have at least a second")
	case !moment.IsZero() && (moment.Before(span.From) || moment.After(span.To)):
		return errors.New("the moment must be in the span")
	}
	s.Span, s.Moment = span, moment
	return nil
}

// SetMoment shows an earlier moment in the middle of a span of the chosen length. If this span would end after now, the span ends
// at now. The error is for the user.
func (s *State) SetMoment(moment, now time.Time) error {
	if moment.After(now) {
		return errors.New("this time is in the future")
	}
	half := windows()[s.window] / 2
	span := source.Span{From: moment.Add(-half), To: moment.Add(half)}
	if span.To.After(now) {
		span = source.Span{From: now.Add(-2 * half), To: now}
	}
	return s.SetSpan(span, moment, now)
}

// SpanAt returns the span that the screen shows at the time now.
func (s *State) SpanAt(now time.Time) source.Span {
	if s.Live() {
		return source.Span{From: now.Add(-s.Window()), To: now}
	}
	return s.Span
}

// moment returns the moment to show in an earlier span: s.Moment or, if it is zero, the end of the span.
func (s *State) moment() time.Time {
	if s.Moment.IsZero() {
		return s.Span.To
	}
	return s.Moment
}

// movesTime handles keys that choose a time. It returns false, and does nothing, for other keys.
func (s *State) movesTime(d *Data, key string) (Action, bool) {
	earlierOrLater := map[string]float64{"<": -0.5, ",": -0.5, ">": 0.5, ".": 0.5}[key]
	step := map[string]int{"[": -1, "]": 1}[key]
	if s.Page == PageLoad || s.Page == PageBlocking {
		step += map[string]int{"left": -1, "right": 1}[key]
	}
	switch {
	case key == "0":
		s.SetLive()
		return Refresh, true
	case key == "t":
		s.typing, s.typed = typingTime, ""
		return None, true
	case key == "+" || key == "=":
		s.zoom(d, -1)
		return Refresh, true
	case key == "-":
		s.zoom(d, 1)
		return Refresh, true
	case earlierOrLater == 0 && step == 0:
		return None, false
	case d == nil || d.Time.IsZero():
		s.Message = "There is no data yet."
		return None, true
	case step != 0:
		s.stepMoment(d.Time, step)
	default:
		s.pan(d.Time, earlierOrLater)
	}
	return Refresh, true
}

// pan moves the span by a part of its length. If the span would end at or after now, the screen becomes live.
func (s *State) pan(now time.Time, part float64) {
	span := s.SpanAt(now)
	length := span.To.Sub(span.From)
	by := time.Duration(part * float64(length))
	if !span.To.Add(by).Before(now) {
		s.SetLive()
		return
	}
	s.Span = source.Span{From: span.From.Add(by), To: span.To.Add(by)}
	if !s.Moment.IsZero() {
		s.Moment = s.Moment.Add(by)
	}
}

// stepMoment moves the moment by step hundredths of the span, but at least by step seconds. From the live time, it can move only
// back.
func (s *State) stepMoment(now time.Time, step int) {
	const steps = 100
	span := s.SpanAt(now)
	by := max(span.To.Sub(span.From)/steps, time.Second)
	at := span.To
	if !s.Live() {
		at = s.moment()
	} else if step > 0 {
		return
	}
	s.Span = span
	s.Moment = later(span.From, earlier(span.To, at.Add(time.Duration(step)*by)))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// zoom chooses the next shorter (step -1) or longer (1) window. The new middle of an earlier span is its moment or, without a
// moment, its middle before.
func (s *State) zoom(d *Data, step int) {
	if s.Live() {
		s.window = min(max(s.window+step, 0), len(windows())-1)
		return
	}
	length, all := s.Window(), windows()
	s.window = 0
	if step > 0 {
		s.window = len(all) - 1
	}
	for i := range all {
		if step < 0 && all[i] < length {
			s.window = i // ends as the longest window that is shorter
		}
		if k := len(all) - 1 - i; step > 0 && all[k] > length {
			s.window = k // ends as the shortest window that is longer
		}
	}
	now := s.Span.To
	if d != nil && d.Time.After(now) {
		now = d.Time
	}
	at := s.Moment
	middle := at
	if middle.IsZero() {
		middle = s.Span.From.Add(length / 2)
	}
	if err := s.SetMoment(middle, now); err != nil {
		s.Message = err.Error()
	}
	s.Moment = at
	if !at.IsZero() && (at.Before(s.Span.From) || at.After(s.Span.To)) {
		s.Moment = time.Time{}
	}
}

// goTo shows a time that the user has typed: a moment, or two times with ".." between them.
func (s *State) goTo(d *Data, text string) Action {
	text = strings.TrimSpace(text)
	switch {
	case text == "" || text == "now":
		s.SetLive()
		return Refresh
	case d == nil || d.Time.IsZero() || s.When == nil:
		s.Message = "There is no data yet."
		return None
	}
	now := d.Time.In(time.Local)
	from, to, isSpan := strings.Cut(text, "..")
	at, err := s.When(from, now)
	if err == nil && isSpan {
		end, err2 := s.When(strings.TrimSpace(to), now)
		if err = err2; err == nil && !at.Before(end) && end.AddDate(0, 0, 1).After(at) && !strings.ContainsAny(to, "-y") {
			end = time.Date(at.Year(), at.Month(), at.Day(), end.Hour(), end.Minute(), end.Second(), 0, end.Location())
		}
		if err == nil {
			err = s.SetSpan(source.Span{From: at, To: end}, time.Time{}, now)
		}
	} else if err == nil {
		if at.After(now) && !strings.ContainsAny(text, "-T") { // "23:00" typed at noon means yesterday
			at = at.AddDate(0, 0, -1)
		}
		err = s.SetMoment(at, now)
	}
	if err != nil {
		s.Message = err.Error()
		return None
	}
	return Refresh
}

// spanText returns begin and end of an earlier span, with the date if it is not today's.
func spanText(span source.Span, now time.Time) string {
	from, to := span.From.Local(), span.To.Local()
	layout, day := "15:04:05", "2006-01-02"
	text := from.Format(layout)
	if from.Format(day) != now.Local().Format(day) {
		text = from.Format(day + " " + layout)
	}
	end := to.Format(layout)
	if from.Format(day) != to.Format(day) {
		end = to.Format(day + " " + layout)
	}
	return fmt.Sprintf("%s to %s %s", text, end, to.Format("MST"))
}

// clockLayout returns the layout of the times on an axis of this length: with seconds, without them, or with the date.
func clockLayout(length time.Duration) string {
	switch {
	case length > 36*time.Hour:
		return "01-02 15:04"
	case length > 2*time.Hour:
		return "15:04"
	}
	return "15:04:05"
}
