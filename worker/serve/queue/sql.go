package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// channel is the channel that SQL notifies of a new request.
const channel = "pg_stat_backtrace"

// needed lists the objects that must belong to the extension. The worker may be newer or older than the extension, so
// it checks objects and not the version.
//
//nolint:dupword // signatures
const needed = `
WITH needed (class, object) AS (
    SELECT 'pg_class'::regclass, to_regclass('backtrace.request')::oid
    UNION ALL
    SELECT 'pg_proc'::regclass, to_regprocedure('backtrace.' || signature)::oid
    FROM unnest(ARRAY[
        'claim(int, bigint[], oid[])',
        'finish(bigint[], text[], float8[], int[], text[], text[], text[], text[], text[])',
        'journal(text[], oid[], text[], int[], int[], timestamptz[], timestamptz[], text[], float8[], int[], text[],
            text[], text[], text[])',
        'prune(interval, bigint, int)']) signature
), owned AS (
    SELECT n.class, n.object
    FROM needed n, pg_depend d, pg_extension e
    WHERE e.extname = 'pg_stat_backtrace' AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
      AND d.deptype = 'e' AND d.classid = n.class AND d.objid = n.object
)`

// probe returns the version of the extension, whether the database has all objects of needed, and whether this role may use
// them.
const probe = needed + `
SELECT (SELECT extversion FROM pg_extension WHERE extname = 'pg_stat_backtrace'),
       (SELECT count(*) FROM owned) = (SELECT count(*) FROM needed),
       NOT EXISTS (SELECT FROM owned
                   WHERE class = 'pg_proc'::regclass AND NOT has_function_privilege(object, 'EXECUTE'))
`

// hold prevents a DROP of the extension until the transaction ends. After that, the statement guard fails unless the locked
// table and the functions belong to the extension. Without guard, a database owner could drop the extension and make functions
// with the same names. The worker would run these with its own privileges, which often are a superuser's.
const (
	begin = `BEGIN READ WRITE`
	hold  = `LOCK TABLE backtrace.request IN ACCESS SHARE MODE`
	guard = needed + `
SELECT 1 / ((SELECT count(*) FROM owned) = (SELECT count(*) FROM needed))::int`
	commit = `COMMIT`
	// DROP EXTENSION and this transaction both lock the objects one after another, so a deadlock is possible. The lock timeout
	// is shorter than the server's deadlock timeout, so that this transaction fails and not the DROP EXTENSION. The commit
	// waits for NOTIFY's lock without a timeout.
	shortLockTimeout = `SET LOCAL lock_timeout = '300ms'`
	noLockTimeout    = `SET LOCAL lock_timeout = 0`
)

const (
	claimSQL  = `SELECT * FROM backtrace.claim($1::int, $2::bigint[], $3::oid[])`
	finishSQL = `SELECT backtrace.finish($1::bigint[], $2::text[], $3::float8[], $4::int[], $5::text[], $6::text[],
	$7::text[], $8::text[], $9::text[])`
	journalSQL = `SELECT backtrace.journal($1::text[], $2::oid[], $3::text[], $4::int[], $5::int[], $6::timestamptz[],
	$7::timestamptz[], $8::text[], $9::float8[], $10::int[], $11::text[], $12::text[], $13::text[], $14::text[])`
	// Version 1.1 of the extension has a key in a table, which pg_upgrade copies.
	keyedSQL           = `SELECT to_regprocedure('backtrace.renew_secret()') IS NOT NULL`
	renewSQL           = `SELECT backtrace.renew_secret()`
	pruneSQL           = `SELECT backtrace.prune($1::interval, $2::bigint, $3::int)`
	asynchronousCommit = `SET LOCAL synchronous_commit = off` // a crash may lose the last of these rows without harm
)

// errAbsent means that the database has no extension with a queue, or that the worker's role may not use the queue.
var errAbsent = errors.New("no queue here")

// errNone is errAbsent for a database without the extension.
var errNone = fmt.Errorf("%w: no extension", errAbsent)

// guarded returns a batch with the begin of a transaction. The transaction fails if the objects do not belong to the extension.
func guarded() *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(begin)
	b.Queue(shortLockTimeout)
	b.Queue(hold)
	b.Queue(guard)
	return b
}

// readGuarded reads the results of the four statements of guarded.
func readGuarded(results pgx.BatchResults) error {
	for range 4 {
		if _, err := results.Exec(); err != nil {
			return asAbsent(err)
		}
	}
	return nil
}

// asAbsent wraps errors of the server in errAbsent if they mean that the queue is not there: undefined schema, table or
// function, missing privilege, and the division by zero of guard. It returns other errors as they are.
func asAbsent(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		switch e.Code {
		case "3F000", "42P01", "42883", "42501", "22012":
			return fmt.Errorf("%w: %w", errAbsent, err)
		}
	}
	return err
}

// runGuarded runs one statement in its own transaction, after the statements of guarded. It stores the result in the
// variable to which the parameter into points, unless into is nil.
func runGuarded(ctx context.Context, conn *pgx.Conn, into any, sql string, args ...any) error {
	b := guarded()
	b.Queue(asynchronousCommit)
	b.Queue(sql, args...)
	b.Queue(noLockTimeout)
	b.Queue(commit)
	results := conn.SendBatch(ctx, b)
	defer func() { _ = results.Close() }()
	if err := readGuarded(results); err != nil {
		return err
	}
	if _, err := results.Exec(); err != nil {
		return err
	}
	if into != nil {
		if err := results.QueryRow().Scan(into); err != nil {
			return err
		}
	} else if _, err := results.Exec(); err != nil {
		return err
	}
	return results.Close() // also returns an error of the last two statements
}
