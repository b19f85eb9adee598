package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/cli/console"
)

// suspendable has the terminal's stop signal (^Z) suspend the program only while it holds no process, until the result
// is called: one that it holds would stand still until the program is continued.
func suspendable(stderr io.Writer) (stop func()) {
	if signal.Ignored(syscall.SIGTSTP) {
		return func() {} // as whoever has started it wants
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
