package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/cli/console"
)

// suspendable handles the terminal's stop signal (^Z) until the caller calls the function stop. Until then, this
// program suspends itself only at a time when it has no process stopped. Otherwise that process would stay stopped
// until the user continues this program.
func suspendable(stderr io.Writer) (stop func()) {
	if signal.Ignored(syscall.SIGTSTP) {
		return func() {} // the parent process has chosen to ignore the signal
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTSTP)
	go func() {
		for range signals {
			if err := ptrace.Suspend(); err != nil {
				console.Tellf(stderr, "not suspended: %v", err)
			}
		}
	}()
	return func() { signal.Stop(signals); close(signals) }
}
