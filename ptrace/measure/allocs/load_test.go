package allocs

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
)

func needTracer(t *testing.T) {
	t.Helper()
	if err := Check(); errors.Is(err, unix.EPERM) || errors.Is(err, ErrUnsupported) && !errors.Is(err, unix.EACCES) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%+v", err)
	}
}

func TestLoad(t *testing.T) { needTracer(t) }

// TestUncountedThreadsRefused: an older kernel counts the calls of the main thread only.
func TestUncountedThreadsRefused(t *testing.T) {
	tracer := programs{uprobes: bpf.Uprobes{MainThreadOnly: true}}
	if err := tracer.CheckThreads(os.Getpid()); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a process with several threads, whose calls would not all count: %v", err)
	}
}
