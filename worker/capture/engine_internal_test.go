package capture

import (
	"testing"

	"pg_stat_backtrace/ptrace/process"
)

// TestReasonOfTraced checks the words for each kind of tracer.
func TestReasonOfTraced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  process.TracedError
		want string
	}{
		{process.TracedError{PID: 1}, "traced by a process in another PID namespace"},
		{process.TracedError{PID: 1, Tracer: 2}, "traced by process 2"},
		{process.TracedError{PID: 1, Tracer: 2, Name: "gdb"}, "traced by process 2 (gdb)"},
	} {
		if got := reason(&tt.err); got != tt.want {
			t.Errorf("%+v: %q", tt.err, got)
		}
	}
}
