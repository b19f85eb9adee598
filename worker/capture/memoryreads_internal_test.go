package capture

import (
	"context"
	"errors"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming"
)

// TestMemoryReads checks that reads of one process wait for each other, except for an abandoned read, and that another
// process with the same id is not affected.
func TestMemoryReads(t *testing.T) {
	t.Parallel()
	m := newMemoryReads()
	now := time.Now()
	key, reused := naming.ProcessKey{PID: 1, StartTime: 1}, naming.ProcessKey{PID: 1, StartTime: 2}
	first, err := m.begin(t.Context(), key, now)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.begin(canceled, key, now); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that cannot wait: %v", err)
	}
	second := make(chan *memoryRead)
	go func() {
		read, _ := m.begin(t.Context(), key, now)
		second <- read
	}()
	m.end(key, first)
	read := <-second
	if read == nil {
		t.Fatal("the second read of the process was refused")
	}
	close(read.abandoned)
	if _, err := m.begin(t.Context(), key, now); !errors.Is(err, process.ErrUnreachable) {
		t.Errorf("behind an abandoned read: %v", err)
	}
	other, err := m.begin(t.Context(), reused, now)
	if err != nil {
		t.Fatal(err)
	}
	m.end(reused, other)
	m.end(key, read)
	if len(m.byProcess) != 0 {
		t.Errorf("%d reads are left behind", len(m.byProcess))
	}
}
