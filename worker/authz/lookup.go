package authz

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Looker reads the facts for one decision. An error means that the facts are unknown, never that a role or a process
// does not exist.
type Looker interface {
	Look(ctx context.Context, pid int, caller uint32) (Facts, error)
	// LookAll returns the facts about each of the processes, by pid.
	LookAll(ctx context.Context, pids []int, caller uint32) (map[int]Facts, error)
}

// Querier calls f with a session of the server, and calls it again with the next session if the session breaks.
// cluster.Conn implements it.
type Querier interface {
	Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
}

// Lookup is the Looker that asks the server. It is safe for concurrent use, and must not be copied after first use.
//
// The role of the session needs only LOGIN: pids and roles of pg_stat_get_activity, pg_roles and pg_has_role are
// readable by every role in version 14 and later. With the privileges of pg_read_all_stats (which pg_monitor has) it
// also sees backend_type. A refusal can then name the kind of the process.
type Lookup struct {
	Server Querier

	together batcher
}

// facts is the format of a query. Its arguments are a FROM item, which gets the name asked and the columns pid, caller
// and nr, and the argument of pg_stat_get_activity. The query returns one row for each nr. As a separate statement it
// sees the current state. pg_has_role with USAGE is has_privs_of_role, which respects NOINHERIT and, since 16, the
// option of each grant. It accepts an oid without a role, so the query checks separately whether both roles exist.
const facts = `
SELECT asked.nr::pg_catalog.int4, c.oid IS NOT NULL,
       coalesce(c.rolsuper, false),
       a.pid IS NOT NULL,
       coalesce(a.usesysid, 0::oid),
       r.oid IS NOT NULL,
       coalesce(r.rolsuper, false),
       coalesce(pg_catalog.pg_has_role(c.oid, r.oid, 'USAGE'), false),
       coalesce(a.backend_type, ''),
       coalesce(pg_catalog.pg_has_role(c.oid, 'pg_read_all_stats', 'USAGE'), false)
FROM %s AS asked (pid, caller, nr)
LEFT JOIN pg_catalog.pg_roles AS c ON c.oid = asked.caller
LEFT JOIN pg_catalog.pg_stat_get_activity(%s) AS a ON a.pid = asked.pid
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid`

// The parameters are $1, the pid or the pids, and $2, the caller of each pid.
var (
	queryOne = fmt.Sprintf(facts,
		"(VALUES ($1::pg_catalog.int4, $2::pg_catalog.oid, 1))", "$1::pg_catalog.int4")
	queryMany = fmt.Sprintf(facts,
		"ROWS FROM (pg_catalog.unnest($1::pg_catalog.int4[]), pg_catalog.unnest($2::pg_catalog.oid[])) WITH ORDINALITY",
		"NULL::pg_catalog.int4")
)

// Look asks the server about the process pid and the role caller.
func (l *Lookup) Look(ctx context.Context, pid int, caller uint32) (Facts, error) {
	all, err := l.look(ctx, []int{pid}, caller)
	if err != nil {
		return Facts{}, fmt.Errorf("looking up process %d for role %d: %w", pid, caller, err)
	}
	return all[pid], nil
}

// LookAll asks the server about several processes at once.
func (l *Lookup) LookAll(ctx context.Context, pids []int, caller uint32) (map[int]Facts, error) {
	all, err := l.look(ctx, pids, caller)
	if err != nil {
		return nil, fmt.Errorf("looking up %d processes for role %d: %w", len(pids), caller, err)
	}
	return all, nil
}

// look repeats the query until there is an answer or ctx ends, because the server may be too busy to answer within
// the timeout.
func (l *Lookup) look(ctx context.Context, pids []int, caller uint32) (map[int]Facts, error) {
	for {
		all, err := l.together.ask(ctx, l.Server, requestKey{pids: pids, caller: caller})
		switch {
		case !late(err):
			return all, err
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// late reports whether a statement exceeded its timeout. It is also true if the statement was cancelled by a request
// that was meant for the previous statement.
func late(err error) bool {
	var answer *pgconn.PgError
	canceled := errors.As(err, &answer) && answer.Code == "57014"
	return canceled || errors.Is(err, context.DeadlineExceeded)
}

// statement queries the facts about all pairs of a process and a caller at once. The results are in the order of the
// pairs.
func statement(ctx context.Context, server Querier, pids []int32, callers []uint32) ([]Facts, error) {
	query, args := queryMany, []any{pids, callers}
	if len(pids) == 1 {
		query, args = queryOne, []any{pids[0], callers[0]}
	}
	all := make([]Facts, len(pids))
	err := server.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		var nr int
		var f Facts
		_, err = pgx.ForEachRow(rows, []any{
			&nr, &f.CallerExists, &f.CallerSuperuser, &f.Found, &f.Role,
			&f.RoleExists, &f.RoleSuperuser, &f.HasPrivileges, &f.BackendType, &f.ReadsQueries,
		}, func() error {
			all[nr-1] = f
			return nil
		})
		return err
	})
	return all, err
}
