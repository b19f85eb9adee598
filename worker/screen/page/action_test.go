package page

import (
	"testing"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
)

// TestCaptureCommand: the command has the process id on this host, and never the process id that a server in a container has.
func TestCaptureCommand(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		pid, serverPID int
		own            bool
	}{
		"pg_stat_backtrace capture --nonstop 900":              {900, 57, true},
		"pg_stat_backtrace capture --nonstop 901":              {901, 901, false},
		"pg_stat_backtrace top -D '/srv/a b' --batch --pid 57": {57, 57, true},
	} {
		now := &source.SessionLine{Session: moment.Session{PID: c.pid, ServerPID: c.serverPID}}
		d := &view.Data{Info: &source.Info{DataDir: "/srv/a b", OwnPIDs: c.own}, Session: &source.Session{Now: now}}
		if got := captureCommand(d); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
