package view

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/screen/source"
)

// before returns the other span of a comparison: it begins at s.Compare and is as long as the chosen span.
func (s *State) before() source.Span {
	return source.Span{From: s.Compare, To: s.Compare.Add(s.Window())}
}

// SetCompare makes the page `Who` compare the chosen span with a span of the same length that begins at begin. It returns an
// error if that span ends after now, or is the chosen span itself.
func (s *State) SetCompare(begin, now time.Time) error {
	switch {
	case begin.Add(s.Window()).After(now):
		return errors.New("the other span must end before now: choose an earlier time, or a shorter span")
	case begin.Equal(s.SpanAt(now).From):
		return errors.New("the other span must begin at another time")
	}
	s.Compare, s.Page = begin, PageWho
	return nil
}

// compareWith compares with a time that the user has typed. An empty text means the span directly before the chosen one. A text
// such as "-24h" is relative to the begin of the chosen span.
func (s *State) compareWith(d *Data, text string) Action {
	if d == nil || d.Time.IsZero() || s.When == nil {
		s.Message = "There is no data yet."
		return None
	}
	now := d.Time.In(time.Local)
	from := s.SpanAt(now).From
	begin, err := from.Add(-s.Window()), error(nil)
	if text = strings.TrimSpace(text); strings.HasPrefix(text, "-") {
		begin, err = s.When(text, from)
	} else if text != "" {
		begin, err = s.When(text, now)
	}
	if err == nil {
		err = s.SetCompare(begin, now)
	}
	if err != nil {
		s.Message = err.Error()
		return None
	}
	return Refresh
}

// compare sets d.Comparison from the answers of both spans. The parameter now is the source for the chosen span. The parameter
// before must be a Historian, whose method Past gives the source for the span to compare with.
func (d *Data) compare(ctx context.Context, now, before source.Source, s *State, q source.Query) error {
	w, err := now.Who(ctx, q, s.By, 0)
	if err != nil {
		return err
	}
	historian, ok := before.(source.Historian)
	if !ok {
		return source.ErrNotRecorded
	}
	other, err := historian.Past(ctx, s.before(), time.Time{})
	if err != nil {
		return fmt.Errorf("the other span: %w", err)
	}
	o, err := other.Who(ctx, source.Query{Span: s.before(), Filter: q.Filter}, s.By, 0)
	if err != nil {
		return fmt.Errorf("the other span: %w", err)
	}
	if o.Seconds == 0 {
		return errors.New("the other span has no data: " + spanText(s.before(), d.Time))
	}
	d.Comparison = source.Compare(w, o, mostRows)
	return nil
}

// changes draws the comparison of two spans.
func (c *canvas) changes(y, end int) {
	x := c.d.Comparison
	if x == nil {
		c.failed(y, c.Width, "comparison")
		return
	}
	const active, before, change, name = 10, 19, 28, 30
	at := c.Text(1, y, c.Width-1, plain, "compared with "+spanText(x.Before, c.d.Time))
	if gap := x.Before.To.Sub(x.Before.From).Seconds() - x.SecondsBefore; gap > 2 {
		c.Text(at+2, y, c.Width-1, warn, fmt.Sprintf("░ %s without data", units.Age(time.Duration(gap*float64(time.Second)))))
	}
	y++
	c.Right(active, y, dim, "sessions")
	c.Right(before, y, dim, "before")
	c.Right(change, y, dim, "change")
	c.Text(name, y, c.Width, dim, string(x.By))
	c.Right(c.Width-1, y, dim, fmt.Sprintf("average %s, before %s", figure(x.Active), figure(x.ActiveBefore)))
	y++
	var r rows
	for i := range x.Rows {
		row := &x.Rows[i]
		r.add("who:"+row.Key, func(y int, selected bool) {
			style := c.pick(y, selected, plain)
			c.Right(active, y, style, figure(row.Active))
			c.Right(before, y, style, figure(row.Before))
			mark := style
			if row.Change >= 0.05 && !selected {
				mark = bold
			}
			c.Right(change, y, mark, fmt.Sprintf("%+.1f", row.Change))
			c.Text(name, y, c.Width-1, style, oneLine(row.Name))
		})
	}
	if x.More > 0 {
		r.add("", func(y int, _ bool) { c.Text(name, y, c.Width, dim, fmt.Sprintf("and %d more", x.More)) })
	}
	if len(x.Rows) == 0 {
		r.add("", func(y int, _ bool) { c.Text(1, y, c.Width, dim, "no session was active in either span") })
	}
	r.draw(c, y, end)
}
