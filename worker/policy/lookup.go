package policy

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Looker gets the facts for one decision. An error means that they could not be had, never that a role or a process
// does not exist.
type Looker interface {
	Look(ctx context.Context, pid int, caller uint32) (Facts, error)
	// LookAll returns the facts for each of the processes, by pid.
	LookAll(ctx context.Context, pids []int, caller uint32) (map[int]Facts, error)
}

// Querier runs a function in a session of the server; cluster.Conn is one.
type Querier interface {
	Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
}

// Lookup is the Looker that asks the server.
//
// Its role needs no privilege beyond logging in: pids and roles of pg_stat_get_activity, pg_roles and pg_has_role are
// open to everybody on 14 and later. With the privileges of pg_read_all_stats (pg_monitor has them) it also sees
// backend_type, which only makes a refusal name the kind of the process.
type Lookup struct {
	Server Querier
}

// facts follows a FROM item asked (pid, caller) and one called a, the activity of that pid; it returns one row for each
// pid. As a statement of its own it sees the state
// of now. pg_has_role with USAGE is has_privs_of_role: it honors NOINHERIT, and the option of each single grant since
// 16. It does not mind an oid without a role, so the existence of both roles is asked for apart.
const facts = `
SELECT asked.pid, c.oid IS NOT NULL,
       coalesce(c.rolsuper, false),
       a.pid IS NOT NULL,
       coalesce(a.usesysid, 0::oid),
       r.oid IS NOT NULL,
       coalesce(r.rolsuper, false),
       coalesce(pg_catalog.pg_has_role(c.oid, r.oid, 'USAGE'), false),
       coalesce(a.backend_type, '')
FROM %s AS asked (pid, caller)
LEFT JOIN pg_catalog.pg_roles AS c ON c.oid = asked.caller
LEFT JOIN pg_catalog.pg_stat_get_activity(%s) AS a ON a.pid = asked.pid
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid`

// The parameters are the pid or pids, and the caller.
var (
	queryOne = fmt.Sprintf(facts,
		"(VALUES ($1::pg_catalog.int4, $2::pg_catalog.oid))", "$1::pg_catalog.int4")
	queryMany = fmt.Sprintf(facts,
		"(SELECT p, $2::pg_catalog.oid FROM pg_catalog.unnest($1::pg_catalog.int4[]) AS p)", "NULL::pg_catalog.int4")
)

// Look asks the server about the process pid and the role caller.
func (l Lookup) Look(ctx context.Context, pid int, caller uint32) (Facts, error) {
	all, err := l.look(ctx, queryOne, int32(pid), caller)
	if err != nil {
		return Facts{}, fmt.Errorf("looking up process %d for role %d: %w", pid, caller, err)
	}
	return all[pid], nil
}

// LookAll asks the server about several processes at once.
func (l Lookup) LookAll(ctx context.Context, pids []int, caller uint32) (map[int]Facts, error) {
	all, err := l.look(ctx, queryMany, pids, caller)
	if err != nil {
		return nil, fmt.Errorf("looking up %d processes for role %d: %w", len(pids), caller, err)
	}
	return all, nil
}

// look asks until there is an answer or ctx ends: the server may be too busy to answer one statement in its time, and a
// cancel request meant for the statement before can arrive late.
func (l Lookup) look(ctx context.Context, query string, args ...any) (map[int]Facts, error) {
	for {
		all, err := l.lookOnce(ctx, query, args)
		switch {
		case !canceled(err) && !errors.Is(err, context.DeadlineExceeded):
			return all, err
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

func (l Lookup) lookOnce(ctx context.Context, query string, args []any) (map[int]Facts, error) {
	all := map[int]Facts{}
	err := l.Server.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		var pid int
		var f Facts
		_, err = pgx.ForEachRow(rows, []any{
			&pid, &f.CallerExists, &f.CallerSuperuser, &f.Found, &f.Role,
			&f.RoleExists, &f.RoleSuperuser, &f.HasPrivileges, &f.BackendType,
		}, func() error {
			all[pid] = f
			return nil
		})
		return err
	})
	return all, err
}

func canceled(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == "57014"
}
