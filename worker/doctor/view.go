package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/spool"
)

// view returns the finding on how the server finds out whether the worker runs: by /proc, or by a file that the worker
// touches.
func view(c cluster.Cluster) finding {
	seen := c.ProcView()
	switch {
	case seen.Hides:
		return finding{
			good, "view",
			"the server may not see the worker's process: " + seen.Reason + "; the worker touches a file instead", "",
		}
	case !c.SeesWorker():
		return finding{
			good, "view",
			"the server knows the worker's process by another number or time; the worker touches a file instead", "",
		}
	}
	return finding{good, "view", "the server can see a worker's process in its own /proc", ""}
}

// seen asks the server whether it sees that a worker runs, because SQL calls depend on the server's view and not on
// this process's view.
func seen(ctx context.Context, conn *pgx.Conn, c cluster.Cluster) ([]finding, error) {
	var there *bool
	err := conn.QueryRow(ctx, "SELECT pg_catalog.to_regprocedure('backtrace.served()') IS NOT NULL").Scan(&there)
	if err != nil || there == nil || !*there {
		return nil, err
	}
	var served bool
	if err := conn.QueryRow(ctx, "SELECT backtrace.served()").Scan(&served); err != nil {
		return nil, fmt.Errorf("asking the server whether it sees the worker: %w", err)
	}
	info, err := spool.Find(c.DataDir)
	switch runs := err == nil && info.Alive(); {
	case err != nil && !errors.Is(err, spool.ErrNoWorker), !runs && !served:
		return nil, nil // the finding "worker" has the reason
	case runs && served:
		return []finding{{good, "view", "the server knows that the worker runs", ""}}, nil
	case served:
		return []finding{{warn, "view", "the server has not noticed yet that the worker has ended", "Start the worker."}}, nil
	}
	return []finding{{
		bad, "view", "the server does not see the worker, so SQL calls say that it is not running",
		"Restart the worker. If that does not help, mount /proc in the server's environment without hidepid.",
	}}, nil
}
