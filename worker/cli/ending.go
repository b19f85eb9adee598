package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// withQuit returns a context that ends at SIGQUIT (Ctrl-\). Go's runtime would print all goroutines and end the program with
// status 2. A second SIGQUIT ends the program at once. The caller must call stop.
func withQuit(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGQUIT)
	go func() {
		for range signals {
			if ctx.Err() != nil {
				os.Exit(exitFailed)
			}
			cancel()
		}
	}()
	return ctx, func() { signal.Stop(signals); close(signals); cancel() }
}
