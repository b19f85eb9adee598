package worker

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestUnreadableServerRuns: a server that cannot be read runs, and the log has the reason once. A server that has ended
// does not run, and the log has no line for it.
func TestUnreadableServerRuns(t *testing.T) {
	t.Parallel()
	stat, err := process.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	reader := &processReader{worker: &Worker{log: zerolog.New(&log), cluster: cluster.Cluster{
		DataDir: t.TempDir(), PostmasterPID: os.Getpid(), PostmasterStart: stat.StartTime, Version: 99,
	}}}
	for range 2 {
		server, err := reader.read()
		if !errors.Is(err, waits.ErrUnsupported) || !server.Running || server.Version != 99 {
			t.Errorf("a server of an unknown version: %+v, %v", server, err)
		}
	}
	if n := strings.Count(log.String(), "cannot be read"); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
	log.Reset()
	reader.worker.cluster.PostmasterStart++
	if server, err := reader.read(); err == nil || server.Running || log.Len() > 0 {
		t.Errorf("a server that has ended: %+v, %v, %s", server, err, log.String())
	}
}
