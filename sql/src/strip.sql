-- Default privileges may have given any role any privilege on the new objects.  With TRIGGER on a table, or CREATE on schema
-- backtrace, a role's code would run as the extension's owner.  An update keeps what administrators have granted on the
-- functions of version 1.0, except to roles that have a privilege which no administrator grants.
DO $$
DECLARE
    keep      CONSTANT boolean := @keep@;
    strangers CONSTANT oid[] := ARRAY(
        SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = to_regprocedure('backtrace.start_of(int)') AND a.grantee NOT IN (0, p.proowner));
    entry     record;
BEGIN
    FOR entry IN
        WITH member AS (
            SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pg_stat_backtrace'
        ), object AS (
            SELECT 'FUNCTION ' || p.oid::regprocedure AS what, p.proowner AS owner, p.proacl AS acl,
                   '{EXECUTE}'::text[] AS open,     -- to PUBLIC; the script has removed it where it must be
                   keep AND p.pronamespace <> 'backtrace'::regnamespace AND p.proargtypes = '23'
                       AND p.proname IN ('pg_get_backtrace', 'pg_log_backtrace') AS offered
            FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
            UNION ALL
            SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass, c.relowner, c.relacl,
                   CASE WHEN c.relname IN ('whoami', 'request') THEN '{SELECT}'::text[] ELSE '{}' END, false
            FROM pg_class c
            WHERE c.oid = to_regclass('backtrace.request_id_seq') OR c.relkind IN ('r', 'v')
                AND EXISTS (SELECT FROM member m WHERE m.classid = 'pg_class'::regclass AND m.objid = c.oid)
            UNION ALL
            SELECT 'TYPE ' || t.oid::regtype, t.typowner, t.typacl, '{USAGE}', false
            FROM member m JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid WHERE t.typtype = 'c'
            UNION ALL
            SELECT 'SCHEMA ' || n.nspname, n.nspowner, n.nspacl, '{USAGE}', false
            FROM member m JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
        )
        SELECT o.what, a.privilege_type AS privilege,
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee
        FROM object o, aclexplode(o.acl) a
        WHERE a.grantee <> o.owner AND NOT (a.grantee = 0 AND a.privilege_type = ANY (o.open))
          AND (NOT o.offered OR a.grantee = ANY (strangers))
    LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s CASCADE', entry.privilege, entry.what, entry.grantee);
    END LOOP;
END
$$;
