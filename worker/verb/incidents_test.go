package verb

import (
	"encoding/json"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/serve/spool"
)

// TestIncidentWithEscapes reads an incident that is too large for an answer because a database cannot have its characters. Its older
// spans are left out, with a notice.
func TestIncidentWithEscapes(t *testing.T) {
	t.Parallel()
	const spans = 300
	for encoding, left := range map[string]int{encodingUTF8: 0, "LATIN1": spans / 2} {
		i := &incident.Incident{ID: "1", History: incident.History{Spans: make([]incident.Span, spans)}}
		for n := range i.History.Spans {
			i.History.Spans[n].Session.PID, i.History.Spans[n].Session.Query = int32(n), strings.Repeat("ж", 5000)
		}
		rows, err := incidentJSON(i, encoding)
		if err != nil {
			t.Fatal(err)
		}
		text := rows[1][0]
		var read incident.Incident
		if err := json.Unmarshal([]byte(text), &read); err != nil {
			t.Fatal(err)
		}
		kept := read.History.Spans
		if n := spool.Size(text, encoding); n > limits.MaxRows || read.History.LeftOut != left || len(kept) != spans-left {
			t.Errorf("%s: %d bytes, %d spans, %d left out", encoding, n, len(kept), read.History.LeftOut)
			continue
		}
		if kept[len(kept)-1].Session.PID != spans-1 || (rows[0][0] != "") != (left > 0) {
			t.Errorf("%s: the last span is %d, notice %q", encoding, kept[len(kept)-1].Session.PID, rows[0][0])
		}
	}
}
