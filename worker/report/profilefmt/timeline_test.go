package profilefmt

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestTimeline has hostile names. The figure is well-formed, and has no element that a name has made.
func TestTimeline(t *testing.T) {
	at := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	evil := `"><script>alert(1)</script><b x='` + "\x1b\u202e"
	line := &Timeline{
		Since: at, Until: at.Add(time.Minute), Noun: "sessions", Classes: []string{"CPU", evil},
		Columns: [][]float64{{1, 2}, nil, {0, -1}}, Gaps: make([]TimelineGap, maxTimelineGaps+7),
	}
	for i := range line.Gaps {
		line.Gaps[i] = TimelineGap{From: at.Add(-time.Hour), To: at.Add(time.Hour), Reason: evil}
	}
	text, err := writeTimeline(line)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for name := range strings.FieldsSeq("figure figcaption span svg rect title div details summary ul li") {
		known[name] = true
	}
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok && !known[e.Name.Local] {
			t.Errorf("element %s", e.Name.Local)
		}
	}
	if strings.ContainsAny(text, "\x1b\u202e") || !strings.Contains(text, "7 further gaps") || !strings.Contains(text, "at most 3.0") {
		t.Errorf("%s", text[:1000])
	}
	for _, broken := range []*Timeline{
		{Since: at, Until: at, Columns: [][]float64{{}}}, {Since: at, Until: at.Add(1)},
		{Since: at, Until: at.Add(time.Hour), Columns: make([][]float64, MaxColumns+1)},
	} {
		if _, err := writeTimeline(broken); err == nil {
			t.Errorf("no error for %d columns", len(broken.Columns))
		}
	}
}

// TestTimelineColours: each class of wait events has its colour, also under the name that it has since PostgreSQL 19.
func TestTimelineColours(t *testing.T) {
	for class, want := range map[string]string{"BufferPin": "t-BufferPin", "Buffer": "t-LWLock", "IO": "t-IO", "Other": "t-other"} {
		if got := timelineColour(class); got != want {
			t.Errorf("%s has the style %s, want %s", class, got, want)
		}
	}
}
