package worker

import (
	"errors"
	"fmt"
	"testing"

	"pg_stat_backtrace/worker/pg/cluster"
)

func TestFatal(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		cluster.ErrNotDataDir, cluster.ErrWrongUser, cluster.ErrNoAccess, &cluster.WrongClusterError{},
	} {
		if !fatal(fmt.Errorf("x: %w", err)) {
			t.Errorf("%v is waited for", err)
		}
	}
	for _, err := range []error{cluster.ErrNotRunning, cluster.ErrNoServer, errors.New("connection refused")} {
		if fatal(err) {
			t.Errorf("%v is not waited for", err)
		}
	}
}
