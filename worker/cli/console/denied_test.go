package console_test

import (
	"fmt"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestDescribeSingleUser: a server in single-user mode cannot be started, but its process can be captured.
func TestDescribeSingleUser(t *testing.T) {
	err := fmt.Errorf("/data: %w: %w", cluster.ErrNotRunning, &cluster.SingleUserError{PID: 4711})
	if text := console.Describe(err, console.Subject{}); !strings.Contains(text, "capture 4711") || strings.Contains(text, "Start the server") {
		t.Error(text)
	}
}
