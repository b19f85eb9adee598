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

// keepBelowMemoryLimits lowers the garbage collector's memory limit below RLIMIT_AS and RLIMIT_DATA of this process.
func keepBelowMemoryLimits() {
	for _, r := range []struct {
		resource int
		other    int64 // bytes outside of the heap that the kernel also counts for this limit
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

// withProcessorLimit returns a context that ends with the cause errProcessorTime when this process has used the processor time
// that RLIMIT_CPU allows. It reports on stderr that the limit is reached as soon as this happens, because the kernel kills the
// process if it does not end soon. The caller must call stop.
func withProcessorLimit(parent context.Context, stderr io.Writer) (ctx context.Context, stop func()) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CPU, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return parent, func() {}
	}
	allowed := l.Cur
	if l.Cur == l.Max && l.Cur > 1 {
		l.Cur-- // lower the soft limit to get SIGXCPU first: at the hard limit, the kernel kills the process
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

// procMounted returns an error if /proc is not mounted. Without /proc, this program would report that other users' processes are
// hidden.
func procMounted() error {
	if _, err := os.Stat("/proc/self/stat"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("/proc is not mounted; mount it with \"mount -t proc none /proc\"")
	}
	return nil
}
