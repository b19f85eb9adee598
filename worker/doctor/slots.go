package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/units"
)

// slots returns the findings on connection slots: how many the server has, how many the worker may use, and whether
// enough are free.
func slots(ctx context.Context, conn *pgx.Conn) ([]finding, error) {
	s, err := cluster.ReadSlots(ctx, conn)
	if err != nil {
		return nil, err
	}
	var sessions, databases int
	err = conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE application_name = 'pg_stat_backtrace worker'
			OR application_name = 'pg_stat_backtrace' AND pid <> pg_backend_pid()),
		(SELECT count(*) FROM pg_catalog.pg_database WHERE datallowconn AND NOT datistemplate)
		FROM pg_catalog.pg_stat_activity`).Scan(&sessions, &databases)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("max_connections is %d, %d are reserved, %d are in use; by default the worker may have "+
		"%s, and has %d", s.Max, s.Reserved, s.Used, units.Count(s.Sessions(), "session"), sessions)
	if databases >= s.Sessions() {
		text += fmt.Sprintf("; %s in %d of them", units.Plural(databases, "%d {database takes its turn|databases take turns}"), s.Sessions()-1)
	}
	found := []finding{{good, "slots", text, ""}}
	if s.Ordinary()-s.Used < s.Spare() {
		found[0].mark = warn
		found[0].hint = fmt.Sprintf("The worker leaves %s free, so queued requests wait. Raise max_connections.",
			units.Count(s.Spare(), "slot"))
	}
	limited, err := limits(ctx, conn)
	if err != nil {
		return nil, err
	}
	if s.Role.Limit >= 0 && s.Role.Limit <= fewSessions {
		limited = append(limited, finding{
			warn, "slots", fmt.Sprintf("role %q has CONNECTION LIMIT %d", conn.Config().User, s.Role.Limit),
			"The worker leaves the last slot of its role to others. It needs a limit of at least 3 to serve the queue.",
		})
	}
	return append(found, limited...), nil
}

// fewSessions is the largest CONNECTION LIMIT of a role with which the worker has only its main session, or none.
const fewSessions = 2

// limits warns about databases whose CONNECTION LIMIT is so low that a session of the worker would be the last one, or
// is not allowed.
func limits(ctx context.Context, conn *pgx.Conn) ([]finding, error) {
	rows, err := conn.Query(ctx, `SELECT `+cluster.RawText("datname")+`, datconnlimit FROM pg_catalog.pg_database
		WHERE datallowconn AND NOT datistemplate AND datconnlimit IN (0, 1) ORDER BY datname LIMIT 20`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (finding, error) {
		var name []byte
		var limit int
		err := row.Scan(&name, &limit)
		return finding{
			warn, "slots", fmt.Sprintf("database %q has CONNECTION LIMIT %d", name, limit),
			"Its queue is not served: the worker leaves the last slot to others. Waiting calls work.",
		}, err
	})
}
