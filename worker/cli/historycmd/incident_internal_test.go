package historycmd

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
)

// TestIncidentsAfterClockStep lists an incident during which the clock was set back, so that its end is before its begin.
func TestIncidentsAfterClockStep(t *testing.T) {
	t.Parallel()
	f := incidentFlags{recordDir: t.TempDir() + "/state", cluster: "1", format: console.FormatText}
	w, err := store.Open(store.Options{Dir: f.recordDir, Meta: store.Meta{SystemID: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := incident.Dir{Path: incident.DirOf(f.recordDir, "1"), Keep: 9}
	begin := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for name, lasted := range map[string]time.Duration{"back": -20 * time.Minute, "usual": 40 * time.Minute, "short": -time.Millisecond} {
		ended := begin.Add(lasted)
		i := &incident.Incident{Schema: incident.Schema, ID: name, Time: begin, Ended: &ended, Reason: rules.Finding{Rule: rules.LockWait, Since: begin}}
		if _, err := d.Write(i); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := f.list(&out); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		words := strings.Fields(line)
		got[words[0]] = strings.Join(words[1:min(4, len(words))], " ")
	}
	if !strings.HasPrefix(got["back"], "ended") || got["usual"] != "lasted 40 min" || got["short"] != "lasted 0 ms" {
		t.Errorf("%q\n%s", got, out.String())
	}
}
