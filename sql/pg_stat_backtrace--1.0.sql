/* sql/pg_stat_backtrace--1.0.sql */

\echo Use "CREATE EXTENSION pg_stat_backtrace" to load this file. \quit

-- Generated from the files in sql/src: change those, and run "make sql".

-- pg_get_backtrace and pg_log_backtrace, in the schema chosen for the extension, are what users call.  Everything
-- else is in schema backtrace.  A call goes: public function (runs as its caller, learns from the view whoami who that
-- is, with a proof) -> backtrace.call (runs as the extension's owner, checks the proof, writes the request into the
-- worker's private directory and waits for the answer) -> public function (returns or raises what the answer says).

-- Nothing below is resolved through a schema that others can write.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE SCHEMA backtrace;
COMMENT ON SCHEMA backtrace IS 'internals of pg_stat_backtrace';
GRANT USAGE ON SCHEMA backtrace TO PUBLIC;

-- The two padded key blocks of HMAC-SHA-256 (RFC 2104), made anew by every CREATE EXTENSION and not dumped.  Row
-- security without a policy keeps out those who may read or write every table (pg_read_all_data and the like); without
-- statistics, ANALYZE copies nothing into pg_statistic.
CREATE TABLE backtrace.secret (ikey bytea NOT NULL, okey bytea NOT NULL);
COMMENT ON TABLE backtrace.secret IS 'one row: the key that proves to backtrace.call who calls';
COMMENT ON COLUMN backtrace.secret.ikey IS 'key XOR ipad, 64 bytes';
COMMENT ON COLUMN backtrace.secret.okey IS 'key XOR opad, 64 bytes';
ALTER TABLE backtrace.secret ENABLE ROW LEVEL SECURITY;
ALTER TABLE backtrace.secret ALTER COLUMN ikey SET STATISTICS 0, ALTER COLUMN okey SET STATISTICS 0;
REVOKE ALL ON backtrace.secret FROM PUBLIC;

INSERT INTO backtrace.secret
SELECT string_agg(set_byte('.'::bytea, 0, b # 54), ''::bytea ORDER BY i), -- 54 = 0x36, ipad
       string_agg(set_byte('.'::bytea, 0, b # 92), ''::bytea ORDER BY i)  -- 92 = 0x5c, opad
FROM (SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) AS key OFFSET 0) k,
     generate_series(0, 63) i,
     LATERAL (SELECT CASE WHEN i < 32 THEN get_byte(k.key, i) ELSE 0 END AS b) x;

-- Who is asking, in this statement of this backend of this database.  The role is looked up by its present name, not
-- in an old snapshot.  (Two tables in FROM: so the view cannot be written through, whoever may write to all tables.)
CREATE VIEW backtrace.whoami WITH (security_barrier) AS
SELECT i.caller, i.backend, i.stamp,
       sha256(s.okey || sha256(s.ikey
           || oidsend(i.caller) || int4send(i.backend) || timestamptz_send(i.stamp) || oidsend(d.oid))) AS mac
FROM backtrace.secret s, pg_database d,
     (SELECT to_regrole(quote_ident(current_user::text))::oid AS caller,
             pg_backend_pid() AS backend,
             statement_timestamp() AS stamp) i
WHERE d.datname = current_database();
COMMENT ON VIEW backtrace.whoami IS 'the current user, with a proof for backtrace.call that ends with the statement';
REVOKE ALL ON backtrace.whoami FROM PUBLIC;
GRANT SELECT ON backtrace.whoami TO PUBLIC;

-- Returns {level, SQLSTATE, message, detail, hint, text}; level is '' (text is the result), WARNING or ERROR, which the
-- public function raises, so that the error context is one line.  Anybody may call this, but only with a proof.
-- No string with a backslash outside E'': standard_conforming_strings may be off.
CREATE FUNCTION backtrace.call(me backtrace.whoami, verb text, target int) RETURNS text[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET client_min_messages = warning
SET debug_print_parse = off
SET debug_print_rewritten = off
SET debug_print_plan = off
SET pg_stat_statements.track = 'none'   -- every COPY below has a text of its own, which nobody wants counted
AS $$
DECLARE
    protocol CONSTANT text := '1';
    setting  text := nullif(current_setting('pg_stat_backtrace.timeout', true), '');
    home     text := encode(convert_to(current_setting('data_directory'), 'SQL_ASCII'), 'escape');
    id       uuid := gen_random_uuid();
    begun    timestamptz;
    waited   double precision := 0;     -- seconds slept: the clock may be set meanwhile
    nap      double precision := 0.001;
    genuine  boolean;
    granted  boolean;
    super    boolean;
    worker   text[];                    -- lines of the worker's pid file, see worker/serve/spool/pidfile.go
    stat     text[];                    -- its /proc/PID/stat from the third field on
    request  text;
    refused  boolean := false;          -- the request could not be written
    answer   text;                      -- path of the answer; NULL before the request is written
BEGIN
    -- In a query over the table, so that no key is ever a constant in a plan.  rolsuper comes from the statement's
    -- snapshot, which may be old: pg_has_role (10: the bootstrap superuser) knows whether it is still true.
    SELECT me.backend = pg_backend_pid() AND me.stamp = statement_timestamp()
           AND me.mac = sha256(s.okey || sha256(s.ikey
               || oidsend(me.caller) || int4send(me.backend) || timestamptz_send(me.stamp) || oidsend(d.oid))),
           has_function_privilege(me.caller, (SELECT v.function FROM backtrace.verb v WHERE v.name = verb), 'EXECUTE'),
           EXISTS (SELECT FROM pg_authid r WHERE r.oid = me.caller AND r.rolsuper)
               AND pg_has_role(me.caller, 10::oid, 'USAGE')
      INTO genuine, granted, super
      FROM backtrace.secret s, pg_database d WHERE d.datname = current_database();
    IF genuine IS NOT TRUE OR granted IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('permission denied for function pg_%s_backtrace', verb);
    END IF;

    IF target <= 0 THEN
        RETURN ARRAY['WARNING', '01000', format('PID %s is not a PostgreSQL server process', target), '', '', ''];
    ELSIF target = me.backend THEN
        RETURN ARRAY['ERROR', '55000', 'cannot capture the backtrace of the current backend', '',
            'Ask from another session.', ''];
    ELSIF setting !~ '^[1-9][0-9]{0,4}$' THEN
        RETURN ARRAY['ERROR', '22023', format('invalid value for parameter "pg_stat_backtrace.timeout": "%s"', setting),
            '', 'It is a number of milliseconds, from 1 to 99999.', ''];
    END IF;
    setting := coalesce(setting, '3000');

    worker := string_to_array(encode(pg_read_binary_file('pg_stat_backtrace.pid', 0, 16384, true), 'escape'), E'\n');
    LOOP
        -- Is there a worker?  A file that came with a copy of another data directory names that other directory, and
        -- one that a killed worker left behind a PID that is nobody's, or has a process with another start time.
        IF worker[4] = home AND worker[2] ~ '^[0-9]+$' THEN
            stat := string_to_array(split_part(encode(
                pg_read_binary_file('/proc/' || worker[2] || '/stat', 0, 1024, true), 'escape'), ') ', -1), ' ');
        END IF;
        IF stat[20] IS DISTINCT FROM worker[3] OR stat[20] IS NULL OR stat[1] IN ('Z', 'X') THEN
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker is not running', '', CASE WHEN super
                THEN format('Start it on the server''s host, as the server''s operating system user or as root: '
                    'pg_stat_backtrace worker -D %s', current_setting('data_directory'))
                ELSE 'An administrator can start it on the server''s host: pg_stat_backtrace worker.' END, ''];
        ELSIF worker[1] <> protocol THEN
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker is not of the extension''s version',
                format('The worker (version %s) speaks protocol version %s, the extension protocol version %s.',
                    worker[5], worker[1], protocol),
                'Install worker and extension of the same release, restart the worker, and use ALTER EXTENSION UPDATE.',
                ''];
        ELSIF refused
              OR (pg_stat_file(worker[6] || CASE WHEN answer IS NULL THEN '/ready' ELSE '' END, true)).size IS NULL THEN
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker takes no requests at the moment', '',
                'Its spool directory is full or being replaced, or the server cannot see it; its log may say more.', ''];
        END IF;

        IF answer IS NULL THEN
            -- Ask.  Signed with the key in the pid file, which only the server's operating system user can read.
            request := concat_ws(' ', protocol, id, verb, target, setting, me.caller, super, me.backend,
                getdatabaseencoding(),
                encode(convert_to(pg_get_userbyid(me.caller), 'SQL_ASCII'), 'hex'),
                encode(convert_to(current_database(), 'SQL_ASCII'), 'hex'),
                'timeout=' || encode(convert_to(setting, 'SQL_ASCII'), 'hex'),
                'max_frames=' || encode(convert_to(
                    nullif(current_setting('pg_stat_backtrace.max_frames', true), ''), 'SQL_ASCII'), 'hex'));
            request := format('COPY (SELECT %L) TO %L', request || ' ' || encode(sha256(decode(worker[8], 'hex')
                || sha256(decode(worker[7], 'hex') || convert_to(request, 'SQL_ASCII'))), 'hex'),
                format('%s/%s.req', worker[6], id));
            answer := format('%s/%s.rep', worker[6], id);
            IF current_setting('server_version_num')::int < 170000 THEN
                EXECUTE request;    -- no subtransactions in parallel mode yet
            ELSE
                BEGIN
                    EXECUTE request;
                EXCEPTION WHEN system_error OR insufficient_resources OR insufficient_privilege OR internal_error THEN
                    refused := true;    -- its message would tell the path
                    CONTINUE;
                END;
            END IF;
            begun := clock_timestamp();
            FOR i IN 1..2000 LOOP   -- most answers are there within 0.1 ms: look for some 2 ms before sleeping
                EXIT WHEN (pg_stat_file(answer, true)).size IS NOT NULL
                       OR clock_timestamp() NOT BETWEEN begun AND begun + interval '2 ms';
            END LOOP;
        ELSIF pg_sleep(nap) IS NOT NULL THEN
            waited := waited + nap;
            nap := least(nap * 1.5, 0.05);
        END IF;
        EXIT WHEN (pg_stat_file(answer, true)).size IS NOT NULL;
        IF waited > setting::int / 1000.0 + 1 THEN
            RETURN ARRAY['ERROR', '55000', format('the pg_stat_backtrace worker did not answer within %s ms', setting),
                '', 'It is stopped or overloaded; its log may say more.', ''];
        END IF;
    END LOOP;
    RETURN string_to_array(pg_read_file(answer), E'\x1f');
END
$$;
COMMENT ON FUNCTION backtrace.call(backtrace.whoami, text, int)
    IS 'passes a request to the worker and waits for its answer';
REVOKE ALL ON FUNCTION backtrace.call(backtrace.whoami, text, int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION backtrace.call(backtrace.whoami, text, int) TO PUBLIC;

CREATE FUNCTION @extschema@.pg_get_backtrace(pid int) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me backtrace.whoami;
    a  text[];
BEGIN
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    a := backtrace.call(me, 'get', pid);
    IF a[1] = '' THEN
        RETURN a[6];
    ELSIF a[1] = 'WARNING' THEN
        RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
        RETURN NULL;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_backtrace(int) IS 'call stack of the PostgreSQL process with this PID';
REVOKE ALL ON FUNCTION @extschema@.pg_get_backtrace(int) FROM PUBLIC;

-- The entry must not reach the client, whatever it has client_min_messages set to.  log_error_verbosity = terse would
-- drop the DETAIL, so the frames then go into the message.
CREATE FUNCTION @extschema@.pg_log_backtrace(pid int) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET client_min_messages = warning
AS $$
DECLARE
    me backtrace.whoami;
    a  text[];
BEGIN
    IF current_setting('log_min_messages') IN ('fatal', 'panic') THEN
        RAISE WARNING USING MESSAGE = format('backtrace of PID %s cannot be logged', pid),
            HINT = 'The server log takes no LOG messages: see log_min_messages.';
        RETURN false;
    END IF;
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    a := backtrace.call(me, 'log', pid);
    IF a[1] = '' AND current_setting('log_error_verbosity') = 'terse' THEN
        RAISE LOG USING MESSAGE = format(E'backtrace of PID %s\n%s', pid, a[6]);
        RETURN true;
    ELSIF a[1] = '' THEN
        RAISE LOG USING MESSAGE = format('backtrace of PID %s', pid), DETAIL = a[6];
        RETURN true;
    ELSIF a[1] = 'WARNING' THEN
        RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
        RETURN false;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_log_backtrace(int)
    IS 'writes the call stack of the PostgreSQL process with this PID to the server log';
REVOKE ALL ON FUNCTION @extschema@.pg_log_backtrace(int) FROM PUBLIC;

-- By oid, so that neither function is found by a name that may change.
CREATE VIEW backtrace.verb AS
SELECT 'get' AS name, '@extschema@.pg_get_backtrace(int)'::regprocedure::oid AS function
UNION ALL
SELECT 'log', '@extschema@.pg_log_backtrace(int)'::regprocedure::oid;
COMMENT ON VIEW backtrace.verb IS 'what can be asked of the worker, and the function whose EXECUTE privilege it takes';
REVOKE ALL ON backtrace.verb FROM PUBLIC;

-- Default privileges may have given any role any privilege on the new objects.  With TRIGGER on a table, or CREATE on schema
-- backtrace, a role's code would run as the extension's owner.  An update keeps what administrators have granted on the
-- functions of version 1.0, except to roles that have a privilege which no administrator grants.
DO $$
DECLARE
    keep      CONSTANT boolean := false;
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
