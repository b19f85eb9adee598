-- Properties of the extension that are the same on every machine and version,
-- with or without a worker: signatures, privileges, and calls that end before
-- a worker is needed.
\set SHOW_CONTEXT never
CREATE EXTENSION pg_stat_backtrace;

-- The functions for users.
SELECT p.oid::regprocedure AS function, p.prorettype::regtype AS returns, p.pronargs AS args,
       p.provolatile AS volatile, p.proisstrict AS strict, p.proparallel AS parallel, p.prosecdef AS definer
FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND p.proname ~ 'backtrace'
ORDER BY 1;

-- Only superusers and the owner may call them. Callers see their own results only.
SELECT p.oid::regprocedure AS function, has_function_privilege('public', p.oid, 'EXECUTE') AS public
FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND p.proname ~ 'backtrace'
ORDER BY 1;

-- Every function has a pinned search_path or a body that is parsed already, every object a comment.
SELECT count(*) AS unpinned
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
     JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_stat_backtrace'
WHERE p.prosqlbody IS NULL
  AND NOT EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c LIKE 'search\_path=pg\_catalog, pg\_temp');
SELECT pg_describe_object(d.classid, d.objid, 0) AS uncommented
FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_stat_backtrace'
WHERE d.deptype = 'e' AND d.classid IN ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_namespace'::regclass)
  AND obj_description(d.objid, d.classid::regclass::name) IS NULL
ORDER BY 1;

SELECT has_table_privilege('public', 'pg_stat_backtrace', 'SELECT') AS view_public;
SELECT a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type
FROM pg_attribute a WHERE a.attrelid = 'pg_stat_backtrace'::regclass ORDER BY a.attnum;

-- STRICT.
SELECT pg_get_backtrace(NULL) IS NULL AS get, pg_log_backtrace(NULL) IS NULL AS log;

-- An invalid pid causes a warning, and the query continues.
SELECT i, pg_get_backtrace(i), pg_log_backtrace(i) FROM (VALUES (0), (-1), (-2147483648)) v (i);

-- The own backend.
SELECT pg_get_backtrace(pg_backend_pid());
\echo :LAST_ERROR_SQLSTATE
SELECT pg_log_backtrace(pg_backend_pid());
\echo :LAST_ERROR_SQLSTATE

-- A role first without the privilege, then with it.
CREATE ROLE regress_backtrace;
SET ROLE regress_backtrace;
SELECT pg_get_backtrace(1);
\echo :LAST_ERROR_SQLSTATE
-- The inner functions are not a way around it, for oneself or for a superuser.
SELECT backtrace.ask(0, 'get', '{1}');
\echo :LAST_ERROR_SQLSTATE
SELECT backtrace.call(10, 'get', '{1}', '{}');
\echo :LAST_ERROR_SQLSTATE
DO $$
DECLARE
    caller  oid := 10;
    verb    text := 'get';
    targets int[] := '{1}';
    waiting text[] := '{}';
    result  text[];
BEGIN
    SELECT backtrace.call(caller, verb, targets, waiting) AS answer INTO result;
END
$$;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION pg_get_backtrace(int) TO regress_backtrace;
SET ROLE regress_backtrace;
SELECT pg_get_backtrace(0);
SELECT pg_log_backtrace(0);
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
REVOKE ALL ON FUNCTION pg_get_backtrace(int) FROM regress_backtrace;
DROP ROLE regress_backtrace;

-- Again and again, and nothing is left.
DO $$
BEGIN
    FOR i IN 1..5 LOOP
        DROP EXTENSION pg_stat_backtrace;
        IF to_regnamespace('backtrace') IS NOT NULL OR to_regproc('pg_get_backtrace') IS NOT NULL
           OR to_regclass('pg_stat_backtrace') IS NOT NULL THEN
            RAISE EXCEPTION 'DROP EXTENSION has left something';
        END IF;
        CREATE EXTENSION pg_stat_backtrace;
    END LOOP;
END
$$;
DROP EXTENSION pg_stat_backtrace;
