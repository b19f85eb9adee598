package worker_test

import (
	"context"
	"runtime/debug"
	"testing"

	"pg_stat_backtrace/worker"
)

// TestLowerMemoryLimitStays expects that a worker keeps a memory limit below its own one, such as the limit that follows from
// RLIMIT_DATA.
func TestLowerMemoryLimitStays(t *testing.T) { // not parallel, because the limit is the process's
	t.Setenv("GOMEMLIMIT", "")
	const lower = 300 << 20
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(lower))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := worker.Run(ctx, worker.Config{DataDir: t.TempDir()})
	if got := debug.SetMemoryLimit(-1); got != lower {
		t.Errorf("the limit is %d MB, not %d MB; the worker ended with %v", got>>20, lower>>20, err)
	}
}
