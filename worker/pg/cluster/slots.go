package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/worker/limits"
)

// ErrScarce means that a session would take a connection slot that other clients need. See CheckSlots.
var ErrScarce = errors.New("no connection slot to spare")

// errReserved means that only reserved slots are free.
var errReserved = fmt.Errorf("%w", ErrScarce)

// Slots has the figures of a server's connection slots, as one of its sessions sees them. Backends during
// authentication are not included. A role without the privileges of pg_read_all_stats cannot distinguish parallel
// workers from clients, so Used then includes both.
type Slots struct {
	Max      int // max_connections
	Reserved int // superuser_reserved_connections and reserved_connections
	Used     int // by client sessions, this one included
	// Database and Role are the limits of the session's database and role. A limit below 0 means none.
	Database, Role Limited
}

// Limited is the connection limit of a database or role, and how many sessions it has now.
type Limited struct{ Limit, Used int }

// full reports whether the limit has been reached.
func (l Limited) full() bool { return l.Limit >= 0 && l.Used >= l.Limit }

// Ordinary returns the number of slots that are not reserved.
func (s Slots) Ordinary() int { return s.Max - s.Reserved }

// Sessions returns how many sessions the worker may have by default, its main session included.
func (s Slots) Sessions() int {
	return max(limits.MinSessions, min(s.Max/limits.SessionShare, limits.MaxSessions))
}

// Spare returns how many ordinary slots the worker leaves free when it opens a session for a queue.
func (s Slots) Spare() int { return max(1, s.Ordinary()/limits.SessionShare) }

// slotsSQL reads Slots. A role limit does not apply to superusers, as in the server. Used must not include WAL senders,
// of which the worker's own fallback connection is one. Roles without the privileges of pg_read_all_stats cannot see
// backend_type, so slotsSQL then finds WAL senders by pg_stat_get_wal_senders().
const slotsSQL = `
WITH client AS MATERIALIZED (
    SELECT a.datid, a.usesysid,
           coalesce(a.backend_type = 'walsender', a.pid IN (SELECT s.pid FROM pg_catalog.pg_stat_get_wal_senders() s)) AS sender
    FROM pg_catalog.pg_stat_activity a
    WHERE a.datid IS NOT NULL AND a.usesysid IS NOT NULL
      AND coalesce(a.backend_type, 'client backend') IN ('client backend', 'walsender')
)
SELECT pg_catalog.current_setting('max_connections')::int,
       pg_catalog.current_setting('superuser_reserved_connections')::int
           + coalesce(pg_catalog.current_setting('reserved_connections', true)::int, 0),
       (SELECT count(*) FROM client c WHERE c.sender IS NOT TRUE),
       d.datconnlimit, (SELECT count(*) FROM client c WHERE c.datid = d.oid),
       CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END, (SELECT count(*) FROM client c WHERE c.usesysid = r.oid)
FROM pg_catalog.pg_database d, pg_catalog.pg_roles r
WHERE d.datname = pg_catalog.current_database() AND r.rolname = session_user`

// ReadSlots reads the figures of the connection slots.
func ReadSlots(ctx context.Context, conn *pgx.Conn) (s Slots, err error) {
	if err := scanSlots(conn.QueryRow(ctx, slotsSQL), &s); err != nil {
		return s, fmt.Errorf("asking for the connection slots: %w", err)
	}
	return s, nil
}

// QueueSlots adds the statement of ReadSlots to a batch. The result is valid after the batch.
func QueueSlots(batch *pgx.Batch, s *Slots) {
	batch.Queue(slotsSQL).QueryRow(func(row pgx.Row) error { return scanSlots(row, s) })
}

func scanSlots(row pgx.Row, s *Slots) error {
	return row.Scan(&s.Max, &s.Reserved, &s.Used, &s.Database.Limit, &s.Database.Used, &s.Role.Limit, &s.Role.Used)
}

// CheckSlots returns an error that wraps ErrScarce if the session has a slot that it must leave to other clients.
// This is a reserved slot, or the last slot of its database or role. The caller must then close the session.
func CheckSlots(ctx context.Context, conn *pgx.Conn) error {
	s, err := ReadSlots(ctx, conn)
	if err != nil {
		return err
	}
	config := conn.Config()
	switch {
	case s.Used > s.Ordinary():
		return fmt.Errorf("%w: all %d slots that are not reserved are in use (max_connections %d, reserved %d)",
			errReserved, s.Ordinary(), s.Max, s.Reserved)
	case s.Database.full():
		return fmt.Errorf("%w: a session would take the last of database %q (CONNECTION LIMIT %d)",
			ErrScarce, config.Database, s.Database.Limit)
	case s.Role.full():
		return fmt.Errorf("%w: a session would take the last of role %q (CONNECTION LIMIT %d)",
			ErrScarce, config.User, s.Role.Limit)
	}
	return nil
}

// CheckSpare returns an error that wraps ErrScarce if fewer slots are free than the worker leaves to others, see Slots.Spare.
func CheckSpare(ctx context.Context, conn *pgx.Conn) error {
	s, err := ReadSlots(ctx, conn)
	if err == nil && s.Ordinary()-s.Used < s.Spare() {
		err = fmt.Errorf("%w: %d of %d slots that are not reserved are in use", ErrScarce, s.Used, s.Ordinary())
	}
	return err
}

// Welcome verifies that conn is a session of this server, and that it does not take a slot that other clients need.
func (c Cluster) Welcome(ctx context.Context, conn *pgx.Conn) error {
	if err := c.Verify(ctx, conn); err != nil {
		return err
	}
	return CheckSlots(ctx, conn)
}
