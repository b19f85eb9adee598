package doctor

import (
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/serve/spool"
)

// TestRecorded has the states of a recorder: a loss has a remedy while it lasts.
func TestRecorded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 3, 20, 0, 0, time.Local)
	lost := spool.Recorder{
		Dir: "/var/lib/x", Lost: 312, Since: now.Add(-10 * time.Minute), Until: now.Add(-5 * time.Minute), Reason: "no space left on device",
	}
	failing, remedied, waiting, yesterday := lost, lost, lost, lost
	failing.Failing = true
	remedied.Failing, remedied.Remedy = true, "free space in /var/lib/x"
	waiting.Failing, waiting.Lost = true, 0
	yesterday.Since, yesterday.Failing = now.Add(-24*time.Hour), true
	for name, c := range map[string]struct {
		r          spool.Recorder
		mark       mark
		text, hint string
	}{
		"nothing is recorded": {spool.Recorder{}, good, "none is recorded; to record one, give the worker --record-dir DIRECTORY", ""},
		"works":               {spool.Recorder{Dir: "/var/lib/x"}, good, "recorded to /var/lib/x; no sweep was lost since the worker started", ""},
		"fails":               {failing, warn, "312 sweeps lost since 03:10:00: no space left on device", "Read the worker's log."},
		"has a remedy":        {remedied, warn, "312 sweeps lost since 03:10:00: no space left on device", "Free space in /var/lib/x."},
		"waits":               {waiting, warn, "sweeps wait to be written to /var/lib/x: no space left on device", "Read the worker's log."},
		"since yesterday":     {yesterday, warn, "312 sweeps lost since 2026-11-27 03:20:00: no space left on device", "Read the worker's log."},
		"works again":         {lost, good, "recorded to /var/lib/x; 312 sweeps lost from 03:10:00 to 03:15:00: no space left on device", ""},
	} {
		if f := recorded(&c.r, now); f.mark != c.mark || f.text != c.text || f.hint != c.hint || !strings.HasPrefix(f.what, "history") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
