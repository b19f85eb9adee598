package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// queryIDs reports whether statements have a query id. The commands that sum up by query need it.
func queryIDs(ctx context.Context, conn *pgx.Conn, p *place) (finding, error) {
	var reported, identified bool
	var mode string
	err := conn.QueryRow(ctx, `SELECT state IS DISTINCT FROM 'disabled', query_id IS NOT NULL,
		pg_catalog.current_setting('compute_query_id')
		FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()`).Scan(&reported, &identified, &mode)
	return queryFeatures(reported, identified, mode, p), err
}

// queryFeatures returns the finding on whether a session reports its activity and has a query id. mode is the setting
// compute_query_id.
func queryFeatures(reported, identified bool, mode string, p *place) finding {
	const what = "queries"
	switch {
	case !reported:
		return finding{
			warn, what, "track_activities is off: top, activity, history and waits show no query and no state",
			p.psql("ALTER SYSTEM SET track_activities = on", "SELECT pg_reload_conf()"),
		}
	case !identified:
		return finding{
			warn, what, fmt.Sprintf("compute_query_id is %s, and statements have no query id: the columns by query of waits, "+
				"profile -D, top, history and the metrics are empty", mode),
			p.psql("ALTER SYSTEM SET compute_query_id = on", "SELECT pg_reload_conf()") + "  # no restart is needed",
		}
	}
	return finding{good, what, fmt.Sprintf("statements have a query id (compute_query_id is %s)", mode), ""}
}
