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

// query takes the target's pid and the caller's oid, and returns one row. As a statement of its own it sees the state
// of now. pg_has_role with USAGE is has_privs_of_role: it honors NOINHERIT, and the option of each single grant since
// 16. It does not mind an oid without a role, so the existence of both roles is asked for apart.
const query = `
SELECT c.oid IS NOT NULL,
       coalesce(c.rolsuper, false),
       a.pid IS NOT NULL,
       coalesce(a.usesysid, 0::oid),
       r.oid IS NOT NULL,
       coalesce(r.rolsuper, false),
       coalesce(pg_catalog.pg_has_role(c.oid, r.oid, 'USAGE'), false),
       coalesce(a.backend_type, '')
FROM (VALUES ($1::pg_catalog.int4, $2::pg_catalog.oid)) AS asked (pid, caller)
LEFT JOIN pg_catalog.pg_roles AS c ON c.oid = asked.caller
LEFT JOIN pg_catalog.pg_stat_get_activity($1::pg_catalog.int4) AS a ON a.pid = asked.pid
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid`

// Look asks the server about the process pid and the role caller.
func (l Lookup) Look(ctx context.Context, pid int, caller uint32) (Facts, error) {
	facts, err := l.look(ctx, pid, caller)
	if canceled(err) && ctx.Err() == nil {
		// A cancel request meant for the statement before can arrive late.
		facts, err = l.look(ctx, pid, caller)
	}
	if err != nil {
		return Facts{}, fmt.Errorf("looking up process %d for role %d: %w", pid, caller, err)
	}
	return facts, nil
}

func (l Lookup) look(ctx context.Context, pid int, caller uint32) (Facts, error) {
	var f Facts
	err := l.Server.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, query, int32(pid), caller).Scan(
			&f.CallerExists, &f.CallerSuperuser, &f.Found, &f.Role,
			&f.RoleExists, &f.RoleSuperuser, &f.HasPrivileges, &f.BackendType)
	})
	return f, err
}

func canceled(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == "57014"
}
