package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/measure/functrace"
)

// TestTraceLimited checks that a trace without one of its probes is no success.
func TestTraceLimited(t *testing.T) {
	t.Parallel()
	f := traceFlags{duration: 10 * time.Second}
	if err := f.limited(&functrace.Result{Took: time.Second, Notes: []string{"note"}}); err != nil {
		t.Errorf("a trace with all probes: %v", err)
	}
	err := f.limited(&functrace.Result{Took: 1500 * time.Millisecond, Removed: []string{"the probe of f was removed"}})
	if !errors.Is(err, errLimited) || !strings.Contains(err.Error(), "the probe of f was removed, after 1.5 s of 10s") {
		t.Errorf("a trace without a probe: %v", err)
	}
}
