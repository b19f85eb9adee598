package worker

import (
	"context"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/cluster"
)

// learn reads symbols and call frame information of the server's program and of libraries before the first request, because the
// server's disk may hang at the time of a request. To do so, learn captures the stack of the postmaster, because all processes
// of the server run the same program. It does not stop the postmaster for this, because no user has requested its stack.
func (w *Worker) learn(ctx context.Context, c cluster.Cluster) {
	target, err := c.Postmaster()
	if err == nil {
		err = host.Catch("the first capture", func() error {
			_, err := w.capturer.Capture(ctx, target, capture.Options{NonStop: true})
			return err
		})
	}
	if err != nil && ctx.Err() == nil {
		w.log.Debug().Err(err).Msg("the first request will find out about the server's program")
	}
}
