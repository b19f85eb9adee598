package verb

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/spool"
)

// TestReaderOfSummaryIsUsedOnce: requests of the same summary can run at the same time, because a client need not wait for its
// answer. Only one of them uses the reader of the server's memory.
func TestReaderOfSummaryIsUsedOnce(t *testing.T) {
	t.Parallel()
	var users, most atomic.Int32
	s := &Service{cfg: Config{Server: func() (cluster.Cluster, error) {
		if n := users.Add(1); n > 1 {
			most.Store(n)
		}
		for range 100 {
			runtime.Gosched()
		}
		users.Add(-1)
		return cluster.Cluster{}, errors.New("no server")
	}}}
	var requests sync.WaitGroup
	var all summary
	for range 8 {
		requests.Go(func() {
			for range 100 {
				s.backendTypes(&all)
			}
		})
	}
	requests.Wait()
	if n := most.Load(); n > 0 {
		t.Errorf("%d requests open the reader at the same time", n)
	}
}

// TestSummaryOfEndedBackend: the summaries of backends that have ended make room for others, of all roles. Summaries of other
// backends stay.
func TestSummaryOfEndedBackend(t *testing.T) {
	t.Parallel()
	s := newService(limits.Rate{PerSecond: 1, Burst: 1}, io.Discard)
	none := func(int) bool { return false }
	begin := func(backend int, role uint32, gone func(int) bool) error {
		_, err := s.summaries.begin(s.bounds, spool.Request{Backend: backend, Caller: role}, summaryStep{next: time.Hour}, gone)
		return err
	}
	backend, err := 0, error(nil)
	for err == nil {
		backend++
		err = begin(backend, 16384, none)
	}
	if !errors.Is(err, limits.ErrBusy) || backend < 2 {
		t.Fatalf("backend %d: %v", backend, err)
	}
	if err := begin(backend, 16384, func(pid int) bool { return pid == 1 }); err != nil {
		t.Error("although a backend has ended:", err)
	}
	if err := begin(backend+1, 16384, none); !errors.Is(err, limits.ErrBusy) {
		t.Error("although all backends are there:", err)
	}
	if s.summaries.byBackend[1] != nil || s.summaries.byBackend[2] == nil {
		t.Error("not the summary of the backend that has ended has ended")
	}
}

// TestBackendThatHasEnded: the worker sees that the process of a backend has ended, also before its parent has waited for it.
func TestBackendThatHasEnded(t *testing.T) {
	t.Parallel()
	s := &Service{cfg: Config{Server: serving(cluster.Cluster{PostmasterPID: os.Getpid(), PostmasterStart: startOf(t, os.Getpid())})}}
	backend := exec.Command("cat")
	input, err := backend.StdinPipe()
	if err == nil {
		err = backend.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.hasEnded(backend.Process.Pid) {
		t.Error("a backend that waits has ended")
	}
	_ = input.Close()
	pgtest.Wait(t, "the backend ends", func() bool { return s.hasEnded(backend.Process.Pid) })
	if err := backend.Wait(); err != nil || !s.hasEnded(backend.Process.Pid) {
		t.Errorf("a backend without a process is there: %v", err)
	}
	// Process id 0 stands for a backend whose process on this host is not found, here because the children cannot be listed.
	s.cfg.Server = serving(cluster.Cluster{PostmasterPID: backend.Process.Pid})
	if s.hasEnded(0) {
		t.Error("a backend has ended although the server's processes cannot be listed")
	}
}
