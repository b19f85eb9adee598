package worker

import (
	"context"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/cluster"
)

// learn reads what stacks of the server's processes are read by (the symbols and the call frame information of its
// program, and of the libraries in which it waits) before somebody asks: when that is needed, the disk may be what the
// server hangs on. The postmaster runs the same program as all of them. It is looked at without being stopped, since
// nobody has asked for its stack.
func (w *Worker) learn(ctx context.Context, c cluster.Cluster) {
	target, err := c.Postmaster()
	if err == nil {
		_, err = w.capturer.Capture(ctx, target, capture.Options{NonStop: true})
	}
	if err != nil && ctx.Err() == nil {
		w.log.Debug().Err(err).Msg("the first request will find out about the server's program")
	}
}
