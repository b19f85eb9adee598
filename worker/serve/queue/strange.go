package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/sql"
)

// strangeSQL lists differences between the extension's objects and its scripts: in privileges, owners, and row security. Default
// privileges may have caused the differences. The query knows the objects of versions 1.1 and 1.2. It does not list privileges of
// users on the functions and the views for them, or privileges of the worker's role on the functions that the worker calls. All
// privileges on the views for users are harmless: these views are not updatable, and the owner's functions do not write to them.
// The query sql.Foreign lists objects that the scripts did not make.
//
//nolint:dupword // SQL
const strangeSQL = `
WITH extension AS (
    SELECT e.oid, e.extowner FROM pg_extension e WHERE e.extname = 'pg_stat_backtrace'
), member AS (
    SELECT d.classid, d.objid FROM pg_depend d, extension e
    WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
), relation AS (
    SELECT c.* FROM pg_class c
    WHERE c.oid IN (SELECT objid FROM member WHERE classid = 'pg_class'::regclass)
       OR c.oid = to_regclass('backtrace.request_id_seq')
), object AS (
    SELECT 'function' AS kind, p.oid::regprocedure::text AS name, p.pronamespace AS schema, p.proname AS word,
           p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl
    FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
    UNION ALL
    SELECT CASE r.relkind WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' ELSE 'table' END, r.oid::regclass::text,
           r.relnamespace, r.relname, r.relowner, r.relacl
    FROM relation r
    UNION ALL
    SELECT 'column', r.oid::regclass || '.' || quote_ident(a.attname), r.relnamespace, r.relname, r.relowner, a.attacl
    FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attacl IS NOT NULL
    UNION ALL
    SELECT 'schema', quote_ident(n.nspname), n.oid, n.nspname, n.nspowner, n.nspacl
    FROM member m JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
    UNION ALL
    SELECT 'type', t.oid::regtype::text, t.typnamespace, t.typname, t.typowner, t.typacl
    FROM member m JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
)
SELECT format('%s has %s on %s %s',
           CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE 'role ' || coalesce(g.rolname, a.grantee::text) END,
           a.privilege_type, o.kind, o.name)
FROM object o, aclexplode(o.acl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
WHERE a.grantee <> o.owner AND NOT CASE
    WHEN o.schema <> 'backtrace'::regnamespace
        THEN o.kind IN ('view', 'column') OR a.privilege_type IN ('EXECUTE', 'SELECT')
    WHEN o.word = 'request' THEN a.privilege_type = 'SELECT'
    WHEN o.word IN ('claim', 'finish', 'journal', 'prune', 'renew_secret') THEN a.grantee <> 0
    ELSE a.grantee = 0 AND CASE o.kind
        WHEN 'function' THEN o.word IN
            ('ask', 'call', 'queue', 'enqueue', 'served', 'stat', 'answers', 'write_log', 'recorded')
        WHEN 'view' THEN o.word = 'whoami' AND a.privilege_type = 'SELECT'
        ELSE o.kind IN ('schema', 'type') AND a.privilege_type = 'USAGE'
        END
    END
UNION ALL
SELECT format('%s %s belongs to role %s', o.kind, o.name, g.rolname)
FROM object o, extension e, pg_roles g WHERE o.owner <> e.extowner AND g.oid = o.owner
UNION ALL
SELECT format('row security is off for %s', r.oid::regclass)
FROM relation r WHERE r.relname = 'request' AND NOT r.relrowsecurity
ORDER BY 1`

// maxStrange is the largest number of differences in an error or a report.
const maxStrange = 20

// errStrange means that the extension's objects differ from its scripts. Because of such a difference, functions that run with
// their owner's privileges could do too much, or the wrong roles could call them.
var errStrange = errors.New("objects of the extension are not as its script made them")

// Strange returns the differences between the extension's objects in the connection's database and its scripts. Each
// is one sentence, and only the first few are returned. The database must have the extension,
// and the connection's search path must be pg_catalog.
func Strange(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	var found []string
	for _, query := range []string{sql.Foreign, strangeSQL} {
		rows, err := conn.Query(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("comparing the extension's objects: %w", err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("comparing the extension's objects: %w", err)
		}
		for _, text := range texts {
			if query == sql.Foreign {
				text += " is not the extension's"
			}
			found = append(found, text)
		}
	}
	if len(found) > maxStrange {
		found = append(found[:maxStrange:maxStrange], fmt.Sprintf("and %d more", len(found)-maxStrange))
	}
	return found, nil
}

// compare returns an error that wraps errStrange if the extension's objects differ from its scripts. The queue must not be served
// then.
func (s *session) compare(ctx context.Context) error {
	s.compared = time.Now()
	found, err := Strange(ctx, s.conn)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("%w: %s (revoke or drop these, or give them to the extension's owner with ALTER ... OWNER; "+
			"the queue and the journal of this database wait)", errStrange, strings.Join(found, "; "))
	}
	return err
}
