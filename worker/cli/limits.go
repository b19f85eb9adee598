package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/host/rlimits"
)

// errProcessorTime is the cause of a context that ended because this process has used its processor time.
var errProcessorTime = errors.New("processor time is used up")

// keepBelowMemoryLimits makes the garbage collector stay below the limits of memory.
func keepBelowMemoryLimits() {
	for _, r := range []struct {
		resource int
		other    int64 // bytes that count and are not of the heap
	}{
		{unix.RLIMIT_AS, rlimits.Reserved}, {unix.RLIMIT_DATA, rlimits.Data / 2},
	} {
		var l unix.Rlimit
		if unix.Getrlimit(r.resource, &l) != nil || l.Cur > math.MaxInt64 || int64(l.Cur) <= r.other {
			continue
		}
		debug.SetMemoryLimit(min(debug.SetMemoryLimit(-1), int64(l.Cur)-r.other))
	}
}

// withProcessorLimit returns a context that ends with the cause errProcessorTime when RLIMIT_CPU is reached. It reports
// the limit at once, because a command that does not end soon is killed by the kernel. The caller calls stop.
func withProcessorLimit(parent context.Context, stderr io.Writer) (ctx context.Context, stop func()) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CPU, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return parent, func() {}
	}
	allowed := l.Cur
	if l.Cur == l.Max && l.Cur > 1 {
		l.Cur-- // the kernel kills a process at the hard limit without a warning
		_ = unix.Setrlimit(unix.RLIMIT_CPU, &l)
	}
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGXCPU)
	go func() {
		if _, ok := <-signals; ok {
			console.Tellf(stderr, "this process has used its processor time: RLIMIT_CPU allows %d s; raise it with "+
				"\"ulimit -t unlimited\"", allowed)
			cancel(errProcessorTime)
		}
	}()
	return ctx, func() { signal.Stop(signals); close(signals); cancel(nil) }
}

// readsProcesses reports whether a command reads processes of this host.
func readsProcesses(cmd *cobra.Command) bool {
	switch cmd.Name() {
	case "worker", "profile", "waits", "trace", "memory", "plan", "take", "doctor", "top":
		return true
	case "capture":
		return !cmd.Flags().Changed("core")
	}
	return false
}

// procMounted returns an error if /proc is not mounted. Without it every process looks hidden.
func procMounted() error {
	if _, err := os.Stat("/proc/self/stat"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("/proc is not mounted; mount it with \"mount -t proc none /proc\"")
	}
	return nil
}
