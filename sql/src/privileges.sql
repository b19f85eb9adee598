-- Privileges -------------------------------------------------------------------------------------------------------------

-- Default privileges may have given any role any privilege on the new objects.  With TRIGGER on backtrace.request, a
-- role's trigger would run as the extension's owner.  So the script first removes every entry of every access control
-- list except the owner's.  An update keeps the owner's grants on the functions and the view for users, and on the
-- functions for the worker.  The objects about wait events and memory contexts are new in 1.2, so they have no grants
-- to keep; the same holds for pg_get_blocking_backtraces without a PID.  pg_get_backtrace_frames is new, too, and the update restores its grants.
DO $$
DECLARE
    keep      CONSTANT boolean := @keep@;
    -- No administrator grants start_of, log_entry or INSERT on the table: a role that has them got them by default
    -- privileges.
    strangers CONSTANT oid[] := ARRAY(
        SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid IN ('backtrace.start_of(int)'::regprocedure, 'backtrace.log_entry(int, text)'::regprocedure)
          AND a.grantee <> p.proowner
        UNION
        SELECT a.grantee FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'backtrace.request'::regclass AND a.grantee <> c.relowner AND a.privilege_type <> 'SELECT');
    entry     record;
BEGIN
    FOR entry IN
        WITH member AS (
            SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pg_stat_backtrace'
        ), object AS (
            SELECT 'ALL ON FUNCTION ' || p.oid::regprocedure AS what, p.proowner AS owner,
                   coalesce(p.proacl, acldefault('f', p.proowner)) AS acl,
                   p.pronamespace <> 'backtrace'::regnamespace
                       AND p.proname NOT IN ('pg_backtrace_result', 'pg_get_memory_contexts', 'pg_trace_function',
                                             'pg_get_backtrace_frames', 'pg_get_running_plan', 'pg_backtrace_history',
                                             'pg_backtrace_history_summary', 'pg_backtrace_stack', 'pg_backtrace_incidents',
                                             'pg_backtrace_summary_text',
                                             'pg_backtrace_incident', 'pg_get_backtrace_on_call',
                                             'pg_get_backtrace_to_file')
                       AND p.proname NOT LIKE '%wait_event%'
                       AND (p.proname <> 'pg_get_blocking_backtraces' OR p.pronargs = 1)
                       OR p.proname IN ('claim', 'finish', 'journal', 'prune') AS offered
            FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
            UNION ALL
            SELECT 'ALL ON ' || CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass, c.relowner,
                   c.relacl, c.relnamespace <> 'backtrace'::regnamespace AND c.relname NOT LIKE '%wait_event%' AND c.relname <> 'pg_backtrace_incidents'
            FROM pg_class c
            WHERE c.relkind IN ('r', 'v', 'S') AND (c.oid = 'backtrace.request_id_seq'::regclass
                OR EXISTS (SELECT FROM member m WHERE m.classid = 'pg_class'::regclass AND m.objid = c.oid))
            UNION ALL
            SELECT format('ALL (%I) ON TABLE %s', a.attname, c.oid::regclass), c.relowner, a.attacl,
                   c.relnamespace <> 'backtrace'::regnamespace AND c.relname NOT LIKE '%wait_event%' AND c.relname <> 'pg_backtrace_incidents'
            FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
                 JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
            UNION ALL
            SELECT 'ALL ON TYPE ' || t.oid::regtype, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner)), false
            FROM member m JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
            WHERE t.typtype IN ('c', 'd')
            UNION ALL
            SELECT 'ALL ON SCHEMA ' || n.nspname, n.nspowner, n.nspacl, false
            FROM member m JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
        )
        SELECT DISTINCT o.what, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee
        FROM object o, aclexplode(o.acl) a
        WHERE a.grantee <> o.owner
          AND NOT (keep AND o.offered AND a.grantee <> ALL (strangers))
    LOOP
        EXECUTE format('REVOKE %s FROM %s CASCADE', entry.what, entry.grantee);
    END LOOP;
END
$$;

-- These may be used by everyone: each speaks for current_user, or has nothing to hide.  A role sees its own rows of
-- backtrace.request.
GRANT USAGE ON SCHEMA backtrace TO PUBLIC;
GRANT USAGE ON TYPE backtrace.answer, backtrace.seal, backtrace.token TO PUBLIC;
GRANT SELECT ON backtrace.request TO PUBLIC;
GRANT EXECUTE ON FUNCTION
    backtrace.ask(backtrace.seal, text, int[], text[]), backtrace.call(oid, text, int[], text[]),
    backtrace.queue(backtrace.seal, text, int[], boolean), backtrace.enqueue(oid, text, int[], boolean),
    backtrace.served(), backtrace.stat(), backtrace.answers(text), backtrace.write_log(text, text),
    backtrace.recorded(text), @extschema@.pg_backtrace_result(bigint) TO PUBLIC;

-- Monitoring roles read the figures of wait events.
GRANT EXECUTE ON FUNCTION
    @extschema@.pg_stat_get_wait_event_timing(), @extschema@.pg_stat_get_wait_event_timing_overflow(),
    @extschema@.pg_stat_get_wait_event_timing_by_query() TO pg_read_all_stats;
GRANT SELECT ON
    @extschema@.pg_stat_wait_event_timing, @extschema@.pg_stat_wait_event_timing_overflow,
    @extschema@.pg_stat_wait_event_timing_by_query TO pg_read_all_stats;
GRANT SELECT ON @extschema@.pg_wait_event_timing_histogram_buckets TO PUBLIC;

-- They also read the memory contexts, as in the view pg_backend_memory_contexts.
GRANT EXECUTE ON FUNCTION @extschema@.pg_get_memory_contexts(int) TO pg_read_all_stats;

-- And the history, as the texts of all sessions in pg_stat_activity.
-- EXECUTE alone is not enough: see may_ask.
GRANT EXECUTE ON FUNCTION
    @extschema@.pg_backtrace_history(timestamptz, timestamptz, int[]),
    @extschema@.pg_backtrace_history_summary(timestamptz, timestamptz, interval), @extschema@.pg_backtrace_stack(bigint),
    @extschema@.pg_backtrace_incidents(), @extschema@.pg_backtrace_incident(text) TO pg_read_all_stats;
GRANT SELECT ON @extschema@.pg_backtrace_incidents TO pg_read_all_stats;

-- @include refuse.sql

-- The random name, see the identity of the caller.  Last: the scripts name the type.
DO $$
BEGIN
    EXECUTE format('ALTER DOMAIN backtrace.seal RENAME TO %I', 'seal_' || replace(gen_random_uuid()::text, '-', ''));
END
$$;
