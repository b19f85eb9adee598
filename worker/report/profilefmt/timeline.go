package profilefmt

import (
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
)

// Timeline is the time axis of a page: columns of equal length in time, each with a value for each class. Its texts are treated as
// hostile, like the names of a profile.
type Timeline struct {
	// Since and Until are the ends of the axis.
	Since, Until time.Time
	// Noun is the word for the things that the values count, such as "sessions".
	Noun string
	// Classes are the names of the parts of a column, from the bottom up. The wait event classes of PostgreSQL have their own
	// colours; all others share a colour.
	Classes []string
	// Columns have a value for each class, at most MaxColumns.
	Columns [][]float64
	// Gaps are the times without data. At most maxTimelineGaps are shown.
	Gaps []TimelineGap
}

// TimelineGap is a time without data.
type TimelineGap struct {
	From, To time.Time
	Reason   string
}

// MaxColumns is the largest number of columns of a Timeline.
const MaxColumns = 400

const maxTimelineGaps = 500

// timelineColours are the classes of wait events that have a style in page.css, such as t-IO.
//
//nolint:gochecknoglobals // read only
var timelineColours = []string{
	"CPU", "IO", "Lock", "LWLock", "IPC", "Client", "Timeout", "BufferPin", "Extension", "InjectionPoint",
}

func timelineColour(class string) string {
	if class == "Buffer" { // since PostgreSQL 19, of the locks of pages, and of BufferPin
		class = "LWLock"
	}
	if slices.Contains(timelineColours, class) {
		return "t-" + class
	}
	return "t-other"
}

const timelineTime = "2006-01-02 15:04:05"

// writeTimeline returns the timeline as HTML; "" for nil. The HTML has no script and no style, since the page permits only its own
// (see hash). It returns an error for no columns, too many columns or an empty axis.
func writeTimeline(t *Timeline) (string, error) {
	if t == nil {
		return "", nil
	}
	if len(t.Columns) > MaxColumns || len(t.Columns) == 0 || !t.Until.After(t.Since) {
		return "", fmt.Errorf("a time axis of %d columns from %s to %s", len(t.Columns), t.Since, t.Until)
	}
	var b strings.Builder
	text := func(s string) string { return html.EscapeString(shown(s)) }
	most := 0.0
	used := make([]bool, len(t.Classes))
	for _, values := range t.Columns {
		sum := 0.0
		for i, v := range values {
			sum += max(0, v)
			used[i] = used[i] || v > 0
		}
		most = max(most, sum)
	}
	_, _ = fmt.Fprintf(&b, `<figure id="timeline" aria-label="Time axis"><figcaption>%s by time, at most %.1f `, text(t.Noun), most)
	for i, class := range t.Classes {
		if used[i] {
			_, _ = fmt.Fprintf(&b, `<span class="key"><svg viewBox="0 0 1 1"><rect class="%s" width="1" height="1"/></svg>%s</span>`,
				timelineColour(class), text(class))
		}
	}
	if len(t.Gaps) > 0 {
		b.WriteString(`<span class="key"><svg viewBox="0 0 1 1"><rect class="t-gap" width="1" height="1"/></svg>not recorded</span>`)
	}
	b.WriteString(`</figcaption><svg id="axis" viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="columns">`)
	t.writeColumns(&b, most, text)
	t.writeGaps(&b, text)
	b.WriteString(`</svg><div class="ticks">`)
	const ticks = 4
	form := "15:04:05"
	if t.Until.Sub(t.Since) > 24*time.Hour {
		form = timelineTime
	}
	for i := range ticks + 1 {
		at := t.Since.Add(t.Until.Sub(t.Since) / ticks * time.Duration(i))
		_, _ = fmt.Fprintf(&b, "<span>%s</span>", at.Format(form))
	}
	b.WriteString("</div>")
	t.listGaps(&b, text)
	b.WriteString("</figure>")
	return b.String(), nil
}

// axisWidth and axisHeight are the size of the drawing, in units of its viewBox.
const axisWidth, axisHeight = 1000.0, 100.0

func (t *Timeline) writeColumns(b *strings.Builder, most float64, text func(string) string) {
	width := axisWidth / float64(len(t.Columns))
	length := t.Until.Sub(t.Since) / time.Duration(len(t.Columns))
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	for c, values := range t.Columns {
		top, title := axisHeight, []string{}
		for i, v := range values {
			if v <= 0 {
				continue
			}
			height := v / most * axisHeight
			top -= height
			_, _ = fmt.Fprintf(b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, timelineColour(t.Classes[i]),
				number(float64(c)*width), number(top), number(width), number(height))
			title = append(title, text(t.Classes[i])+" "+number(v))
		}
		if len(title) > 0 {
			_, _ = fmt.Fprintf(b, `<rect class="t-over" x="%s" y="0" width="%s" height="100"><title>%s: %s</title></rect>`,
				number(float64(c)*width), number(width), t.Since.Add(time.Duration(c)*length).Format(timelineTime), strings.Join(title, ", "))
		}
	}
}

// writeGaps draws the gaps, each at least half a unit of the viewBox wide.
func (t *Timeline) writeGaps(b *strings.Builder, text func(string) string) {
	at := func(moment time.Time) float64 {
		part := moment.Sub(t.Since).Seconds() / t.Until.Sub(t.Since).Seconds()
		return min(1, max(0, part)) * axisWidth
	}
	for _, g := range t.Gaps[:min(len(t.Gaps), maxTimelineGaps)] {
		const least = 0.5
		from, to := at(g.From), at(g.To)
		_, _ = fmt.Fprintf(b, `<rect class="t-gap" x="%.2f" y="0" width="%.2f" height="100"><title>%s</title></rect>`, from,
			max(least, to-from), g.text(text))
	}
}

func (g TimelineGap) text(text func(string) string) string {
	return fmt.Sprintf("not recorded: %s to %s (%s): %s", g.From.Format(timelineTime), g.To.Format(timelineTime),
		units.Age(g.To.Sub(g.From)), text(g.Reason))
}

func (t *Timeline) listGaps(b *strings.Builder, text func(string) string) {
	if len(t.Gaps) == 0 {
		return
	}
	_, _ = fmt.Fprintf(b, "<details><summary>gaps: %d</summary><ul>", len(t.Gaps))
	for _, g := range t.Gaps[:min(len(t.Gaps), maxTimelineGaps)] {
		_, _ = fmt.Fprintf(b, "<li>%s</li>", g.text(text))
	}
	if more := len(t.Gaps) - maxTimelineGaps; more > 0 {
		_, _ = fmt.Fprintf(b, "<li>%s</li>", units.Count(more, "further gap"))
	}
	b.WriteString("</ul></details>")
}
