/* sql/pg_stat_backtrace--1.0--1.1.sql */

\echo Use "ALTER EXTENSION pg_stat_backtrace UPDATE TO '1.1'" to load this file. \quit

-- Generated from the files in sql/src: change those, and run "make sql".
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL quote_all_identifiers = off;   -- the script compares definitions of objects

-- Objects of others in schema backtrace, or on the extension's objects, would run with the rights of the extension's owner
-- or of any caller.
DO $$
DECLARE
    found text[] := ARRAY(
        -- A query: the objects that can run code of others, or can take the place of the extension's objects, and that the
        -- extension's scripts did not make.  One row for each.  The scripts, the worker and "doctor" all use it.
        WITH RECURSIVE made (classid, objid) AS (   -- the members of the extension, and their row types, sequences and rules
            SELECT d.classid, d.objid
            FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
            WHERE d.deptype = 'e' AND e.extname = 'pg_stat_backtrace'
            UNION
            SELECT d.classid, d.objid
            FROM made m JOIN pg_depend d ON d.refclassid = m.classid AND d.refobjid = m.objid AND d.deptype = 'i'
        ), relation (oid) AS (
            SELECT m.objid FROM made m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
            WHERE c.relkind IN ('r', 'v', 'S', 'c')
        ), datatype (oid) AS (
            SELECT m.objid FROM made m WHERE m.classid = 'pg_type'::regclass
        ), constraint_made (name, definition) AS (
            VALUES ('request_pkey', 'PRIMARY KEY (id)'),
                ('request_check', 'CHECK (((state = ''queued''::text) = (finished_at IS NULL)))'),
                ('request_check1', 'CHECK (((state = ''failed''::text) = (sqlstate IS NOT NULL)))'),
                ('request_kind_check', 'CHECK ((kind = ANY (ARRAY[''queued''::text, ''waiting''::text])))'),
                ('request_state_check', 'CHECK ((state = ANY (ARRAY[''queued''::text, ''done''::text, ''failed''::text])))')
        ), default_made (name, value) AS (
            VALUES ('kind', '''queued''::text'), ('state', '''queued''::text'), ('requested_at', 'clock_timestamp()')
        ), index_made (name, definition) AS (
            VALUES ('request_pkey', 'CREATE UNIQUE INDEX request_pkey ON backtrace.request USING btree (id)'),
                ('request_queued', 'CREATE INDEX request_queued ON backtrace.request USING btree (caller, id) '
                    'WHERE (state = ''queued''::text)'),
                ('request_queued', 'CREATE INDEX request_queued ON backtrace.request USING btree (id) '     -- version 1.1
                    'WHERE (state = ''queued''::text)')
        ), dependent (classid, objid) AS (   -- on schema backtrace
            SELECT d.classid, d.objid
            FROM made m JOIN pg_depend d ON d.refclassid = m.classid AND d.refobjid = m.objid
            WHERE m.classid = 'pg_namespace'::regclass
              -- These are never in a schema by themselves.
              AND d.classid <> ALL ('{pg_attrdef,pg_constraint,pg_policy,pg_publication_rel,pg_rewrite,pg_trigger}'::regclass[])
            EXCEPT
            SELECT m.classid, m.objid FROM made m
        ), foreign_object (classid, objid) AS (
            -- Of any class: functions, operators, tables, other extensions, default privileges, ...  Each role may also name the
            -- schema in an expression, as 'backtrace'::regnamespace in a temporary view.  The object with this expression depends on
            -- the schema, too, but is in another schema.
            SELECT d.classid, d.objid
            FROM dependent d LEFT JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) i ON true
            WHERE (i.schema = quote_ident('backtrace')
                   OR d.classid IN ('pg_extension'::regclass, 'pg_default_acl'::regclass, to_regclass('pg_publication_namespace')))
              -- Each role may set default privileges for its objects in any schema.
              AND NOT EXISTS (SELECT FROM pg_default_acl a JOIN pg_extension e ON e.extname = 'pg_stat_backtrace'
                              WHERE d.classid = 'pg_default_acl'::regclass AND a.oid = d.objid AND a.defaclrole <> e.extowner)
            UNION
            SELECT 'pg_trigger'::regclass, t.oid FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid
            WHERE NOT t.tgisinternal
            UNION
            SELECT 'pg_rewrite'::regclass, w.oid
            FROM relation r JOIN pg_class c ON c.oid = r.oid JOIN pg_rewrite w ON w.ev_class = r.oid
            WHERE c.relkind <> 'v' OR w.ev_type <> '1'
            UNION
            SELECT 'pg_policy'::regclass, p.oid FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
            WHERE p.polname <> 'own' OR p.polcmd <> 'r' OR NOT p.polpermissive OR p.polroles <> '{0}' OR p.polwithcheck IS NOT NULL
               OR regexp_replace(pg_get_expr(p.polqual, p.polrelid), '[\n ]+', ' ', 'g')
                  <> '((caller = ( SELECT (to_regrole(quote_ident((CURRENT_USER)::text)))::oid AS to_regrole)) '
                     'OR ( SELECT pg_has_role(''pg_read_all_stats''::name, ''USAGE''::text) AS pg_has_role))'
            UNION
            SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c
            WHERE c.contype <> 'n' AND NOT EXISTS (SELECT FROM constraint_made k
                      WHERE k.name = c.conname AND k.definition = pg_get_constraintdef(c.oid) AND c.confrelid = 0)
              AND (c.conrelid IN (SELECT r.oid FROM relation r) OR c.confrelid IN (SELECT r.oid FROM relation r)
                   OR c.contypid IN (SELECT t.oid FROM datatype t))
            UNION
            SELECT 'pg_attrdef'::regclass, d.oid
            FROM relation r JOIN pg_attrdef d ON d.adrelid = r.oid
                 JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
            WHERE NOT EXISTS (SELECT FROM default_made k
                              WHERE k.name = a.attname AND k.value = pg_get_expr(d.adbin, d.adrelid) AND a.attgenerated = '')
            UNION
            SELECT 'pg_class'::regclass, i.indexrelid
            FROM relation r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class c ON c.oid = i.indexrelid
            WHERE NOT EXISTS (SELECT FROM index_made k WHERE k.name = c.relname AND k.definition = pg_get_indexdef(c.oid))
            UNION
            SELECT 'pg_class'::regclass, i.inhrelid FROM relation r JOIN pg_inherits i ON i.inhparent = r.oid
            UNION
            SELECT 'pg_class'::regclass, i.inhparent FROM relation r JOIN pg_inherits i ON i.inhrelid = r.oid
            UNION
            SELECT 'pg_statistic_ext'::regclass, s.oid FROM relation r JOIN pg_statistic_ext s ON s.stxrelid = r.oid
            UNION
            SELECT 'pg_cast'::regclass, c.oid FROM datatype t JOIN pg_cast c ON t.oid IN (c.castsource, c.casttarget)
            -- Each role may create casts of its types.  The extension passes no value of such a type, and none to such a type.
            WHERE NOT EXISTS (SELECT FROM pg_type x JOIN pg_extension e ON e.extname = 'pg_stat_backtrace'
                              WHERE x.oid IN (c.castsource, c.casttarget) AND x.typowner <> e.extowner
                                AND x.typnamespace <> 'pg_catalog'::regnamespace
                                AND NOT EXISTS (SELECT FROM datatype y WHERE y.oid = x.oid))
        )
        SELECT pg_describe_object(f.classid, f.objid, 0) FROM foreign_object f
        UNION
        SELECT 'default value of ' || pg_describe_object('pg_type'::regclass, t.oid, 0)
        FROM datatype d JOIN pg_type t ON t.oid = d.oid WHERE t.typdefault IS NOT NULL
        ORDER BY 1
    );
BEGIN
    IF found <> '{}' THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'schema "backtrace" has objects that pg_stat_backtrace did not make',
            DETAIL = array_to_string(found[1:100], E'\n'),
            HINT = 'Drop these objects, or move them to another schema, and try again.';
    END IF;
END
$$;

-- What can be asked, and by whom ---------------------------------------------------------------------------------------

-- Empty until the functions and the view that it names exist, at the end of this script.
CREATE OR REPLACE VIEW backtrace.verb AS
SELECT NULL::text AS name, NULL::oid AS function, NULL::oid AS relation WHERE false;

-- The check that every function of the extension's owner makes first: the row of whoami was made in this statement of
-- this backend, and the role in it may do what it asks, or has been allowed to in this statement.  Only such functions
-- call this one; they have pinned what could print a plan.
CREATE FUNCTION backtrace.check_caller(me backtrace.whoami, verb text, allowed boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- In a query over the table, so that no key is ever a constant in a plan.
    RETURN (SELECT me.backend = pg_backend_pid() AND me.stamp = statement_timestamp()
               AND me.mac = sha256(s.okey || sha256(s.ikey
                   || oidsend(me.caller) || int4send(me.backend) || timestamptz_send(me.stamp) || oidsend(d.oid)))
               AND (allowed OR (SELECT CASE WHEN v.relation IS NULL
                           THEN has_function_privilege(me.caller, v.function, 'EXECUTE')
                           ELSE has_table_privilege(me.caller, v.relation, 'SELECT') END
                    FROM backtrace.verb v WHERE v.name = verb))
        FROM backtrace.secret s, pg_database d WHERE d.datname = current_database());
END
$$;
COMMENT ON FUNCTION backtrace.check_caller(backtrace.whoami, text, boolean)
    IS 'whether this is who calls, in this statement, and may ask for this';
REVOKE ALL ON FUNCTION backtrace.check_caller(backtrace.whoami, text, boolean) FROM PUBLIC;

-- pg_upgrade carries the key over with the table.  The worker has it made anew in a cluster that it was not made for.
ALTER TABLE backtrace.secret ADD COLUMN cluster bigint, ALTER COLUMN cluster SET STATISTICS 0;
COMMENT ON COLUMN backtrace.secret.cluster IS 'system identifier of the cluster that the key was made for';
UPDATE backtrace.secret SET cluster = (SELECT system_identifier FROM pg_control_system());

CREATE FUNCTION backtrace.renew_secret() RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH k AS MATERIALIZED (SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) AS key),
         blocks AS (
            SELECT string_agg(set_byte('.'::bytea, 0, b # 54), ''::bytea ORDER BY i) AS ikey,
                   string_agg(set_byte('.'::bytea, 0, b # 92), ''::bytea ORDER BY i) AS okey
            FROM k, generate_series(0, 63) i, LATERAL (SELECT CASE WHEN i < 32 THEN get_byte(k.key, i) ELSE 0 END) x (b)),
         changed AS (
            UPDATE backtrace.secret s SET ikey = blocks.ikey, okey = blocks.okey, cluster = c.system_identifier
            FROM blocks, pg_control_system() c WHERE s.cluster IS DISTINCT FROM c.system_identifier RETURNING true)
    SELECT EXISTS (SELECT FROM changed)
$$;
COMMENT ON FUNCTION backtrace.renew_secret() IS 'makes a new key if the present one was made for another cluster';
REVOKE ALL ON FUNCTION backtrace.renew_secret() FROM PUBLIC;

-- Waiting calls --------------------------------------------------------------------------------------------------------

DROP FUNCTION backtrace.call(backtrace.whoami, text, int);

-- Returns {level, SQLSTATE, message, detail, hint, text}; level is '' (text is the result), WARNING or ERROR, which the
-- public function raises; or {wait, seconds, ...}: the public function sleeps so long and calls again with that.  Both
-- are left to it so that the context of an error, and of a cancel, is one line.  No targets mean all processes of the
-- cluster.  Anybody may call this, but only with a proof; what a call waits for is of no use without the same proof.
-- No string with a backslash outside E'': standard_conforming_strings may be off.
CREATE FUNCTION backtrace.call(me backtrace.whoami, verb text, targets int[], waiting text[] DEFAULT '{}')
RETURNS text[]
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
    -- waiting is {'wait', nap, waited, look, salt, mark}; times are in seconds, and slept: the clock may be set meanwhile.
    nap      double precision := coalesce(waiting[2]::double precision, 0);
    waited   double precision := greatest(coalesce(waiting[3]::double precision, 0) + nap, 0);
    look     double precision := coalesce(waiting[4]::double precision, 0);     -- when to look after the worker
    salt     uuid := coalesce(waiting[5]::uuid, gen_random_uuid());
    mark     text;                      -- of the answer's path, which is not the caller's to know
    id       uuid;
    begun    timestamptz;
    super    boolean;
    worker   text[];                    -- lines of the worker's pid file, see worker/serve/spool/pidfile.go
    beacon   text[];                    -- TID of one of its threads, and the time of that thread's directory in /proc
    since    text;                      -- that time as it is
    stat     text[];                    -- its /proc/PID/stat from the third field on
    runs     boolean;
    request  text;
    refused  boolean := false;          -- the request could not be written
    asked    boolean;                   -- the request has been written
    answer   text;                      -- path of the answer; NULL without a worker
BEGIN
    worker := string_to_array(encode(pg_read_binary_file('pg_stat_backtrace.pid', 0, 16384, true), 'escape'), E'\n');
    -- The name of the request's files. Nobody can guess it, and only who asked, in the same statement, has it looked for.
    id := left(encode(sha256(convert_to(worker[8], 'SQL_ASCII') || me.mac || uuid_send(salt)), 'hex'), 32)::uuid;
    answer := worker[6] || '/' || id || '.rep';
    -- A worker that was started, or has replaced its spool, since then knows nothing of the request.
    mark := encode(sha256(convert_to(answer, 'SQL_ASCII')), 'hex');
    asked := coalesce(mark = waiting[6], false);
    IF backtrace.check_caller(me, verb, asked) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = (SELECT coalesce(
                max('permission denied for function ' || (SELECT p.proname FROM pg_proc p WHERE p.oid = v.function)),
                'permission denied for view pg_stat_backtrace')
            FROM backtrace.verb v WHERE v.name = verb);
    END IF;
    -- rolsuper comes from the statement's snapshot, which may be old: pg_has_role (10: the bootstrap superuser) knows
    -- whether it is still true.
    SELECT r.rolsuper AND pg_has_role(me.caller, 10::oid, 'USAGE') INTO super FROM pg_authid r WHERE r.oid = me.caller;
    super := coalesce(super, false);

    IF verb IN ('get', 'log', 'frames') AND targets[1] <= 0 THEN
        RETURN ARRAY['WARNING', '01000', format('PID %s is not a PostgreSQL server process', targets[1]), '', '', ''];
    ELSIF verb IN ('get', 'log', 'frames') AND targets[1] = me.backend THEN
        RETURN ARRAY['ERROR', '55000', 'cannot capture the backtrace of the current backend', '',
            'Ask from another session.', ''];
    ELSIF cardinality(targets) > 5000 THEN
        RETURN ARRAY['ERROR', '54000', 'cannot ask for more than 5000 processes at once', '', '', ''];
    ELSIF setting !~ '^[1-9][0-9]{0,4}$' THEN
        RETURN ARRAY['ERROR', '22023', format('invalid value for parameter "pg_stat_backtrace.timeout": "%s"', setting),
            '', 'It is a number of milliseconds, from 1 to 99999.', ''];
    END IF;
    setting := coalesce(setting, '3000');
    LOOP
        -- Looking for the answer is cheap, looking after the worker is not, and both become ever more seldom: a
        -- thousand callers that wait must leave the worker a processor.
        EXIT WHEN asked AND (pg_stat_file(answer, true)).size IS NOT NULL;
        IF asked AND waited < look THEN
            nap := least(0.001 + waited / 4, 2, greatest(setting::int / 1000.0 + 1.001 - waited, 0.001));
            RETURN ARRAY['wait', nap::text, waited::text, look::text, salt::text, mark];
        END IF;
        -- Is there a worker?  A file that came with a copy of another data directory names that other directory, and
        -- one that a killed worker left behind a PID that is nobody's, or has a process with another start time.  One of
        -- the worker's threads, known by the time of its directory, tells that at one look that cannot fail.  Where that
        -- time is another one (the server has a /proc of its own) the start time is read.
        runs := false;
        IF worker[4] = home AND worker[2] ~ '^[0-9]+$' THEN
            beacon := string_to_array(worker[12], ' ');
            since := extract(epoch FROM (pg_stat_file(
                '/proc/' || worker[2] || '/task/' || beacon[1], true)).modification)::bigint::text;
            IF beacon[2] = since THEN
                runs := true;
            ELSIF beacon[2] IS NULL OR since IS NOT NULL THEN
                stat := string_to_array(split_part(encode(
                    pg_read_binary_file('/proc/' || worker[2] || '/stat', 0, 1024, true), 'escape'), ') ', -1), ' ');
                runs := stat[20] = worker[3] AND stat[1] NOT IN ('Z', 'X');
            END IF;
        END IF;
        IF runs IS NOT TRUE THEN
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
        ELSIF verb NOT IN ('get', 'log') AND verb <> ALL (string_to_array(coalesce(worker[9], ''), ' ')) THEN
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker is older than the extension',
                format('The worker (version %s) cannot do what is asked; pg_get_backtrace works.', worker[5]),
                'Install worker and extension of the same release, and restart the worker.', ''];
        ELSIF split_part(worker[10], ' ', 1) = 'outside'
              AND (pg_stat_file(regexp_replace(answer, 'rep$', 'req'), true)).modification
                  - (pg_stat_file(worker[6] || '/ready', true)).modification > interval '10s' THEN
            -- A worker in another PID namespace cannot be seen from here; it touches this file every two seconds.
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker is not running', '', CASE WHEN super
                THEN 'It ran outside of the server''s PID namespace, and has given no sign of life for 10 seconds; '
                    'its log may say more.'
                ELSE 'An administrator can start it on the server''s host: pg_stat_backtrace worker.' END, ''];
        ELSIF refused
              OR (pg_stat_file(worker[6] || CASE WHEN asked THEN '' ELSE '/ready' END, true)).size IS NULL THEN
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker takes no requests at the moment', '',
                'Its spool directory is full or being replaced, or the server cannot see it; its log may say more.', ''];
        END IF;

        IF waited > setting::int / 1000.0 + 1 THEN
            EXIT WHEN asked AND (pg_stat_file(answer, true)).size IS NOT NULL;
            RETURN ARRAY['ERROR', '55000', format('the pg_stat_backtrace worker did not answer within %s ms', setting),
                '', 'It is stopped or overloaded; its log may say more.', ''];
        ELSIF NOT asked THEN
            -- Ask.  Signed with the key in the pid file, which only the server's operating system user can read.
            request := concat_ws(' ', protocol, id, verb, coalesce(nullif(array_to_string(targets, ','), ''), '*'),
                setting, me.caller, super, me.backend, getdatabaseencoding(),
                encode(convert_to(pg_get_userbyid(me.caller), 'SQL_ASCII'), 'hex'),
                encode(convert_to(current_database(), 'SQL_ASCII'), 'hex'),
                (SELECT string_agg(s.name || '=' || encode(convert_to(s.value, 'SQL_ASCII'), 'hex'), ' ')
                 FROM (SELECT n, nullif(current_setting('pg_stat_backtrace.' || n, true), '')
                       FROM unnest('{timeout,max_frames,nonstop,threads,context}'::text[]) n) s (name, value)
                 WHERE s.value IS NOT NULL));
            request := format('COPY (SELECT %L) TO %L', request || ' ' || encode(sha256(decode(worker[8], 'hex')
                || sha256(decode(worker[7], 'hex') || convert_to(request, 'SQL_ASCII'))), 'hex'),
                format('%s/%s.req', CASE WHEN (pg_stat_file(worker[11] || '/ready', true)).size IS NULL
                    THEN worker[6] ELSE worker[11] END, id));
            IF current_setting('server_version_num')::int < 170000 THEN
                EXECUTE request;    -- no subtransactions in parallel mode yet; its error names no place of the host
            ELSE
                BEGIN
                    EXECUTE request;
                EXCEPTION WHEN system_error OR insufficient_resources OR insufficient_privilege OR internal_error THEN
                    refused := true;
                    CONTINUE;
                END;
            END IF;
            asked := true;
            begun := clock_timestamp();
            FOR i IN 1..2000 LOOP   -- most answers are there within 0.1 ms: look for some 2 ms before sleeping
                EXIT WHEN (pg_stat_file(answer, true)).size IS NOT NULL
                       OR clock_timestamp() NOT BETWEEN begun AND begun + interval '2 ms';
            END LOOP;
        END IF;
        look := waited + least(0.05 + waited / 4, 2);
    END LOOP;
    RETURN string_to_array(pg_read_file(answer), E'\x1f');
END
$$;
COMMENT ON FUNCTION backtrace.call(backtrace.whoami, text, int[], text[])
    IS 'passes a request to the worker and looks for its answer';
REVOKE ALL ON FUNCTION backtrace.call(backtrace.whoami, text, int[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION backtrace.call(backtrace.whoami, text, int[], text[]) TO PUBLIC;

-- The public functions of 1.0 --------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION @extschema@.pg_get_backtrace(pid int) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me backtrace.whoami;
    a  text[];
BEGIN
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    a := backtrace.call(me, 'get', ARRAY[pid]);
    WHILE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL LOOP
        a := backtrace.call(me, 'get', ARRAY[pid], a);
    END LOOP;
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

-- The entry must not reach the client. RAISE sends LOG to a client whose client_min_messages is log or less, so for such
-- a client another function, which runs with another setting, writes the entry. That costs it a second line of context,
-- which is why it is not so for everybody; and the setting is not one of pg_log_backtrace itself, because a client that
-- wants errors only would get its warnings.
CREATE FUNCTION backtrace.write_log(message text, detail text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET client_min_messages = warning
AS $$
BEGIN
    IF detail IS NULL THEN
        RAISE LOG USING MESSAGE = message;
    ELSE
        RAISE LOG USING MESSAGE = message, DETAIL = detail;
    END IF;
END
$$;
COMMENT ON FUNCTION backtrace.write_log(text, text) IS 'writes to the server log and not to the client';
REVOKE ALL ON FUNCTION backtrace.write_log(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION backtrace.write_log(text, text) TO PUBLIC;  -- as anybody may RAISE LOG

-- log_error_verbosity = terse would drop the DETAIL, so the frames then go into the message.
CREATE OR REPLACE FUNCTION @extschema@.pg_log_backtrace(pid int) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me      backtrace.whoami;
    a       text[];
    message text := format('backtrace of PID %s', pid);
BEGIN
    IF current_setting('log_min_messages') IN ('fatal', 'panic') THEN
        RAISE WARNING USING MESSAGE = format('backtrace of PID %s cannot be logged', pid),
            HINT = 'The server log takes no LOG messages: see log_min_messages.';
        RETURN false;
    END IF;
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    a := backtrace.call(me, 'log', ARRAY[pid]);
    WHILE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL LOOP
        a := backtrace.call(me, 'log', ARRAY[pid], a);
    END LOOP;
    IF a[1] = '' THEN
        IF current_setting('log_error_verbosity') = 'terse' THEN
            message := format(E'%s\n%s', message, a[6]);
            a[6] := NULL;
        END IF;
        IF current_setting('client_min_messages') NOT IN ('notice', 'warning', 'error') THEN
            PERFORM backtrace.write_log(message, a[6]);
        ELSIF a[6] IS NULL THEN
            RAISE LOG USING MESSAGE = message;
        ELSE
            RAISE LOG USING MESSAGE = message, DETAIL = a[6];
        END IF;
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

-- Many processes, and frame by frame -------------------------------------------------------------------------------------

-- What the worker answers about many processes: a record for each, separated by RS, of cells separated by GS.
CREATE TYPE backtrace.answer AS (
    pid int, backend_type text, engine text, pause_us double precision, depth int, backtrace text,
    level text, sqlstate text, error text);
COMMENT ON TYPE backtrace.answer IS 'what came of the capture of one of many processes';

CREATE FUNCTION backtrace.answers(record_list text) RETURNS SETOF backtrace.answer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c[1]::int, c[2], c[3], c[4]::double precision, c[5]::int, c[6], c[7], c[8], c[9]
    FROM unnest(string_to_array(record_list, E'\x1e')) WITH ORDINALITY u (record, n),
         LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
    ORDER BY u.n
$$;
COMMENT ON FUNCTION backtrace.answers(text) IS 'reads the worker''s answer about many processes';

CREATE FUNCTION @extschema@.pg_get_backtrace_frames(pid int, OUT level int, OUT address text, OUT function text,
    OUT "offset" text, OUT module text, OUT build_id text, OUT module_offset text, OUT source_file text,
    OUT source_line int, OUT inlined boolean, OUT tid int, OUT note text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 30
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me backtrace.whoami;
    a  text[];
BEGIN
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    a := backtrace.call(me, 'frames', ARRAY[pid]);
    WHILE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL LOOP
        a := backtrace.call(me, 'frames', ARRAY[pid], a);
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT c[1]::int, c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9]::int, c[10]::boolean, c[11]::int, c[12]
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
            ORDER BY u.n;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_backtrace_frames(int)
    IS 'call stack of the PostgreSQL process with this PID, a row for each frame, innermost first';
REVOKE ALL ON FUNCTION @extschema@.pg_get_backtrace_frames(int) FROM PUBLIC;

-- For the view pg_stat_backtrace, whose SELECT privilege it takes.  The activity is looked at after the capture, and
-- anew: within a transaction it would otherwise be that of the first look.
CREATE FUNCTION backtrace.stat(OUT pid int, OUT leader_pid int, OUT backend_type text, OUT wait_event_type text,
    OUT wait_event text, OUT state text, OUT query_id bigint, OUT engine text, OUT pause_us double precision,
    OUT depth int, OUT backtrace text, OUT error text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 100
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me backtrace.whoami;
    a  text[];
BEGIN
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    a := backtrace.call(me, 'stat', '{}');
    WHILE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL LOOP
        a := backtrace.call(me, 'stat', '{}', a);
    END LOOP;
    IF a[1] = '' THEN
        PERFORM pg_stat_clear_snapshot();
        RETURN QUERY
            SELECT b.pid, s.leader_pid, coalesce(s.backend_type, b.backend_type), s.wait_event_type, s.wait_event,
                   s.state, s.query_id, b.engine, b.pause_us, b.depth, b.backtrace, b.error
            FROM backtrace.answers(a[6]) b LEFT JOIN pg_stat_activity s ON s.pid = b.pid;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION backtrace.stat() IS 'the rows of pg_stat_backtrace';

CREATE VIEW @extschema@.pg_stat_backtrace AS
SELECT pid, leader_pid, backend_type, wait_event_type, wait_event, state, query_id, engine, pause_us, depth, backtrace,
       error
FROM backtrace.stat();
COMMENT ON VIEW @extschema@.pg_stat_backtrace IS 'one row for each process of the cluster, with its call stack';
COMMENT ON COLUMN @extschema@.pg_stat_backtrace.engine IS 'how the process was captured';
COMMENT ON COLUMN @extschema@.pg_stat_backtrace.pause_us IS 'how long the process stood still, in microseconds';
COMMENT ON COLUMN @extschema@.pg_stat_backtrace.depth IS 'number of frames, of all captured threads';
COMMENT ON COLUMN @extschema@.pg_stat_backtrace.error IS 'why there is no backtrace';
REVOKE ALL ON @extschema@.pg_stat_backtrace FROM PUBLIC;

-- Unlike the function for one process this one goes on when a process cannot be captured, and says why in a WARNING.
CREATE FUNCTION @extschema@.pg_log_backtrace(VARIADIC pids int[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me      backtrace.whoami;
    a       text[];
    b       backtrace.answer;
    message text;
    logged  boolean := true;
BEGIN
    IF current_setting('log_min_messages') IN ('fatal', 'panic') THEN
        RAISE WARNING USING MESSAGE = 'backtraces cannot be logged',
            HINT = 'The server log takes no LOG messages: see log_min_messages.';
        RETURN false;
    END IF;
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    a := backtrace.call(me, 'logs', pids);
    WHILE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL LOOP
        a := backtrace.call(me, 'logs', pids, a);
    END LOOP;
    IF a[1] = '' THEN
        FOR b IN SELECT * FROM backtrace.answers(a[6]) LOOP
            IF b.error IS NOT NULL THEN
                RAISE WARNING USING ERRCODE = b.sqlstate, MESSAGE = b.error;
                logged := false;
                CONTINUE;
            END IF;
            message := format('backtrace of PID %s', b.pid);
            IF current_setting('log_error_verbosity') = 'terse' THEN
                message := format(E'%s\n%s', message, b.backtrace);
                b.backtrace := NULL;
            END IF;
            IF current_setting('client_min_messages') NOT IN ('notice', 'warning', 'error') THEN
                PERFORM backtrace.write_log(message, b.backtrace);
            ELSIF b.backtrace IS NULL THEN
                RAISE LOG USING MESSAGE = message;
            ELSE
                RAISE LOG USING MESSAGE = message, DETAIL = b.backtrace;
            END IF;
        END LOOP;
        RETURN logged;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_log_backtrace(int[])
    IS 'writes the call stacks of these processes to the server log; true if there was one of each';
REVOKE ALL ON FUNCTION @extschema@.pg_log_backtrace(int[]) FROM PUBLIC;

-- distance 0 is the process itself, 1 who blocks it, 2 who blocks those, and so on; each with its parallel group.
-- pg_blocking_pids has 0 for a prepared transaction, which has no process.
CREATE FUNCTION @extschema@.pg_get_blocking_backtraces(pid int, OUT distance int, OUT blocking_pid int, OUT leader_pid int,
    OUT backend_type text, OUT wait_event_type text, OUT wait_event text, OUT state text, OUT query text,
    OUT backtrace text, OUT error text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 10
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me        backtrace.whoami;
    a         text[];
    members   int[] := '{}';    -- all found so far
    distances int[] := '{}';    -- and how far each is
    present   int[] := ARRAY[pid];
    step      int := 0;
BEGIN
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    PERFORM pg_stat_clear_snapshot();
    WHILE cardinality(present) > 0 AND step <= 100 LOOP
        -- The whole parallel group of each: its leader, and that leader's workers.
        present := ARRAY(
            SELECT g.pid FROM (SELECT unnest(present) AS pid
                UNION
                SELECT s.pid FROM pg_stat_activity s, pg_stat_activity p
                WHERE p.pid = ANY (present)
                  AND (s.leader_pid = coalesce(p.leader_pid, p.pid) OR s.pid = p.leader_pid)) g
            WHERE g.pid <> ALL (members) ORDER BY g.pid <> ALL (present), g.pid);
        members := members || present;
        distances := distances || array_fill(step, ARRAY[cardinality(present)]);
        present := ARRAY(SELECT DISTINCT b FROM unnest(present) p, unnest(pg_blocking_pids(p)) b WHERE b <> ALL (members));
        step := step + 1;
    END LOOP;
    a := backtrace.call(me, 'blocking', array_remove(members, 0));
    WHILE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL LOOP
        a := backtrace.call(me, 'blocking', array_remove(members, 0), a);
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT m.distance, m.pid, s.leader_pid, coalesce(s.backend_type, b.backend_type), s.wait_event_type,
                   s.wait_event, s.state, s.query, b.backtrace,
                   CASE WHEN m.pid = 0 THEN 'a prepared transaction' ELSE b.error END
            FROM unnest(distances, members) WITH ORDINALITY m (distance, pid, n)
                 LEFT JOIN backtrace.answers(a[6]) b ON b.pid = m.pid
                 LEFT JOIN pg_stat_activity s ON s.pid = m.pid
            ORDER BY m.n;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_blocking_backtraces(int)
    IS 'call stacks of this process, of those that block it, and of their parallel groups';
REVOKE ALL ON FUNCTION @extschema@.pg_get_blocking_backtraces(int) FROM PUBLIC;

-- The pauses between samples are between half and one and a half of the interval, so that no periodic activity of the
-- server is always met in the same place.
CREATE FUNCTION @extschema@.pg_backtrace_summary(samples int DEFAULT 10, "interval" interval DEFAULT '100 ms',
    pids int[] DEFAULT NULL,
    OUT count bigint, OUT share numeric, OUT processes int, OUT some_pids int[], OUT backtrace text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 20
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me      backtrace.whoami;
    a       text[];
    seconds double precision := extract(epoch FROM "interval");
    stacks  text[] := '{}';     -- one element for each process and sample
    owners  int[] := '{}';
    failed  text[] := '{}';
    told    timestamptz := clock_timestamp();
BEGIN
    IF samples IS NULL OR samples NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'number of samples must be between 1 and 100000';
    ELSIF seconds IS NULL OR NOT seconds BETWEEN 0 AND 3600 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'interval between samples must be between 0 and 1 hour';
    END IF;
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    FOR i IN 1..samples LOOP
        a := backtrace.call(me, 'summary', coalesce(pids, '{}'));
        WHILE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL LOOP
            a := backtrace.call(me, 'summary', coalesce(pids, '{}'), a);
        END LOOP;
        EXIT WHEN a[1] <> '';
        stacks := stacks || ARRAY(SELECT b.backtrace FROM backtrace.answers(a[6]) b WHERE b.error IS NULL);
        owners := owners || ARRAY(SELECT b.pid FROM backtrace.answers(a[6]) b WHERE b.error IS NULL);
        failed := failed || ARRAY(SELECT b.error FROM backtrace.answers(a[6]) b WHERE b.error IS NOT NULL
            AND (pids IS NOT NULL OR b.pid <> me.backend));
        IF clock_timestamp() NOT BETWEEN told AND told + interval '1 second' THEN
            told := clock_timestamp();
            RAISE NOTICE USING MESSAGE = format('sample %s of %s', i, samples);
        END IF;
        EXIT WHEN i < samples AND pg_sleep(seconds * (0.5 + random())) IS NULL;    -- never; unlike PERFORM, canceled
                                                                                   -- with a single line of context
    END LOOP;
    IF a[1] = '' THEN
        IF failed <> '{}' THEN
            RAISE NOTICE USING MESSAGE = format('%s of %s stacks could not be taken', cardinality(failed),
                    cardinality(failed) + cardinality(stacks)),
                DETAIL = (SELECT string_agg(format('%s times: %s.', f.n, f.reason), E'\n')
                    FROM (SELECT u.reason, count(*) AS n FROM unnest(failed) u (reason)
                          GROUP BY u.reason ORDER BY count(*) DESC, u.reason LIMIT 10) f);
        END IF;
        RETURN QUERY
            SELECT count(*), round(100.0 * count(*) / cardinality(stacks), 1),
                   count(DISTINCT u.owner)::int, (array_agg(DISTINCT u.owner ORDER BY u.owner))[1:5], u.stack
            FROM unnest(owners, stacks) u (owner, stack)
            GROUP BY u.stack ORDER BY count(*) DESC, u.stack;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_backtrace_summary(int, interval, int[])
    IS 'samples processes repeatedly and counts equal stacks, most frequent first';
REVOKE ALL ON FUNCTION @extschema@.pg_backtrace_summary(int, interval, int[]) FROM PUBLIC;

-- Queue and journal ----------------------------------------------------------------------------------------------------

-- Requests that nobody waits for, and the journal of all requests.  pg_request_backtrace inserts a row and notifies; the
-- worker, which listens in every database that has the extension, claims the row, captures, and writes the result in the
-- transaction that holds the claim: a worker that dies, or a transaction that breaks, leaves the row as it was.  Rows of
-- waiting calls the worker writes afterwards.  Not a table of configuration, so pg_dump leaves the rows out: they tell
-- of processes that are gone.
CREATE TABLE backtrace.request (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind         text NOT NULL DEFAULT 'queued' CHECK (kind IN ('queued', 'waiting')),
    verb         text NOT NULL,
    state        text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'done', 'failed')),
    caller       oid NOT NULL,
    caller_name  name NOT NULL,
    backend      int,
    pid          int,
    started      bigint,
    settings     jsonb,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at  timestamptz,
    engine       text,
    pause_us     double precision,
    depth        int,
    backtrace    text,
    sqlstate     text,
    message      text,
    detail       text,
    hint         text,
    CHECK ((state = 'queued') = (finished_at IS NULL)),
    CHECK ((state = 'failed') = (sqlstate IS NOT NULL))
) WITH (
    -- Every request becomes a dead row when its result is written, and another one at its end.  The table is small (see
    -- the worker's --keep-rows), so a vacuum is quick: often, and without pauses.
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 500,
    toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 500,
    toast.autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE backtrace.request IS 'requests for backtraces: a queue and a journal; a role sees its own';
COMMENT ON COLUMN backtrace.request.id IS 'what pg_request_backtrace returned';
COMMENT ON COLUMN backtrace.request.kind IS 'queued: by pg_request_backtrace; waiting: by a call that returned the answer';
COMMENT ON COLUMN backtrace.request.verb IS 'what was asked: get, log (for the server log), and others of waiting calls';
COMMENT ON COLUMN backtrace.request.state IS 'queued, done, or failed';
COMMENT ON COLUMN backtrace.request.caller IS 'oid of the role that asked; it may have been dropped since';
COMMENT ON COLUMN backtrace.request.caller_name IS 'name that this role had';
COMMENT ON COLUMN backtrace.request.backend IS 'PID of the process that asked';
COMMENT ON COLUMN backtrace.request.pid IS 'PID of the process asked about; NULL: many';
COMMENT ON COLUMN backtrace.request.started IS 'when that process was started, clock ticks since boot; NULL: there was none';
COMMENT ON COLUMN backtrace.request.settings IS 'the settings pg_stat_backtrace.* that the request was made with';
COMMENT ON COLUMN backtrace.request.requested_at IS 'when it was asked';
COMMENT ON COLUMN backtrace.request.finished_at IS 'when the result was there; NULL while queued';
COMMENT ON COLUMN backtrace.request.engine IS 'how the stack was captured';
COMMENT ON COLUMN backtrace.request.pause_us IS 'how long the process stood still, microseconds';
COMMENT ON COLUMN backtrace.request.depth IS 'number of frames';
COMMENT ON COLUMN backtrace.request.backtrace IS 'the stack; NULL for waiting calls, which returned it, and for the log';
COMMENT ON COLUMN backtrace.request.sqlstate IS 'error code of a failure; 01000: what a waiting call answers with a warning';
COMMENT ON COLUMN backtrace.request.message IS 'what went wrong';
COMMENT ON COLUMN backtrace.request.detail IS 'more about what went wrong';
COMMENT ON COLUMN backtrace.request.hint IS 'what to do about it';
COMMENT ON SEQUENCE backtrace.request_id_seq IS 'ids of requests';

-- The texts are large and never searched: no statistics.
ALTER TABLE backtrace.request
    ALTER COLUMN backtrace SET STATISTICS 0, ALTER COLUMN message SET STATISTICS 0, ALTER COLUMN detail SET STATISTICS 0,
    ALTER COLUMN hint SET STATISTICS 0, ALTER COLUMN settings SET STATISTICS 0;

CREATE INDEX request_queued ON backtrace.request (id) WHERE state = 'queued';
COMMENT ON INDEX backtrace.request_queued IS 'what is to be done';
COMMENT ON INDEX backtrace.request_pkey IS 'results by their ids, and the oldest rows';

-- A role sees what it asked itself; members of pg_read_all_stats see all, others who may read every table do not.
-- Without a policy for writing nobody writes but the owner's functions below, whoever may write to all tables.
ALTER TABLE backtrace.request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON backtrace.request FOR SELECT
    USING (caller = (SELECT to_regrole(quote_ident(current_user::text))::oid)
           OR (SELECT pg_has_role('pg_read_all_stats', 'USAGE')));
COMMENT ON POLICY own ON backtrace.request IS 'one''s own requests; all for pg_read_all_stats';
REVOKE ALL ON backtrace.request FROM PUBLIC;
GRANT SELECT ON backtrace.request TO PUBLIC;

-- When the process was started: with the PID it names a process, the PID alone may be another's when the request is
-- carried out.  The file may vanish between its opening and its reading, hence the handler.
CREATE FUNCTION backtrace.start_of(pid int) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (string_to_array(split_part(encode(pg_read_binary_file('/proc/' || pid || '/stat', 0, 1024, true), 'escape'),
        ') ', -1), ' '))[20]::bigint;
EXCEPTION WHEN system_error OR internal_error OR undefined_file THEN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION backtrace.start_of(int) IS 'start time of the process with this PID; NULL when there is none';
REVOKE ALL ON FUNCTION backtrace.start_of(int) FROM PUBLIC;

-- Whether a worker runs.  Anybody may know: a waiting call says it too, and finds out in the same way.
CREATE FUNCTION backtrace.served() RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    worker text[] := string_to_array(encode(pg_read_binary_file('pg_stat_backtrace.pid', 0, 16384, true), 'escape'), E'\n');
BEGIN
    RETURN coalesce(worker[4] = encode(convert_to(current_setting('data_directory'), 'SQL_ASCII'), 'escape')
        AND worker[2] ~ '^[0-9]{1,9}$' AND backtrace.start_of(worker[2]::int)::text = worker[3]
        AND (coalesce(split_part(worker[10], ' ', 1), '') <> 'outside'
             OR clock_timestamp() - (pg_stat_file(worker[6] || '/ready', true)).modification < interval '10s'), false);
END
$$;
COMMENT ON FUNCTION backtrace.served() IS 'whether a worker serves this cluster';
REVOKE ALL ON FUNCTION backtrace.served() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION backtrace.served() TO PUBLIC;

-- The ids of the new requests, in the order of pids; NULL for a number that is no PID.  Or the error that the public
-- function raises, so that its context is one line: {SQLSTATE, message, detail, hint}.  Anybody may call this, but only
-- with a proof.
CREATE FUNCTION backtrace.enqueue(me backtrace.whoami, asked text, pids int[], log boolean,
    OUT ids bigint[], OUT error text[]) RETURNS record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET client_min_messages = warning
SET debug_print_parse = off
SET debug_print_rewritten = off
SET debug_print_plan = off
SET enable_seqscan = off                -- of the queue; catalogs without an index then look dear,
SET jit = off                           -- which would be answered by compiling
AS $$
DECLARE
    most  CONSTANT int := 10000;    -- at once
    queue CONSTANT int := 1000;     -- waiting, of a role that is not a superuser
    asker name := pg_get_userbyid(me.caller);
    chosen jsonb;
    id    bigint;
    pid   int;
BEGIN
    IF asked NOT IN ('request', 'requests') OR backtrace.check_caller(me, asked) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = 'permission denied for function ' || 'pg_request_backtrace';
    ELSIF current_setting('transaction_read_only')::boolean THEN
        error := ARRAY['25006', 'cannot queue a request for a backtrace in a read-only transaction', '',
            'pg_get_backtrace and pg_log_backtrace work here, and on a standby.'];
    ELSIF cardinality(pids) > most THEN
        error := ARRAY['54000', format('cannot request more than %s backtraces at once', most), '',
            'Ask for the others in another call.'];
    ELSIF NOT EXISTS (SELECT FROM pg_authid r WHERE r.oid = me.caller AND r.rolsuper)
          AND cardinality(pids) + (SELECT count(*) FROM (SELECT FROM backtrace.request q
              WHERE q.state = 'queued' AND q.caller = me.caller LIMIT queue) x) > queue THEN
        error := ARRAY['53400', 'too many backtrace requests are waiting',
            format('A role that is not a superuser may have %s requests waiting.', queue),
            CASE WHEN backtrace.served() THEN 'Try again later.' ELSE 'No pg_stat_backtrace worker is running.' END];
    END IF;
    chosen := (SELECT jsonb_object_agg(s.name, s.value)
        FROM unnest(ARRAY['max_frames', 'timeout', 'nonstop', 'threads', 'context']) n,
             LATERAL (SELECT n AS name, nullif(current_setting('pg_stat_backtrace.' || n, true), '') AS value) s
        WHERE s.value IS NOT NULL);
    IF length(chosen::text) > 1000 THEN
        error := ARRAY['22023', 'the settings pg_stat_backtrace.* are too long', '',
            'They may have 1000 characters together.'];
    END IF;
    IF error IS NOT NULL THEN
        RETURN;
    END IF;
    ids := '{}';
    FOREACH pid IN ARRAY pids LOOP
        id := NULL;
        IF pid > 0 THEN
            INSERT INTO backtrace.request AS q (verb, caller, caller_name, backend, pid, started, settings)
            VALUES (CASE WHEN log THEN 'log' ELSE 'get' END, me.caller, asker, me.backend, pid, backtrace.start_of(pid),
                chosen)
            RETURNING q.id INTO id;
        END IF;
        ids := ids || id;
    END LOOP;
    PERFORM pg_notify('pg_stat_backtrace', '');
END
$$;
COMMENT ON FUNCTION backtrace.enqueue(backtrace.whoami, text, int[], boolean)
    IS 'inserts requests and tells the worker, at commit';
REVOKE ALL ON FUNCTION backtrace.enqueue(backtrace.whoami, text, int[], boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION backtrace.enqueue(backtrace.whoami, text, int[], boolean) TO PUBLIC;

CREATE FUNCTION @extschema@.pg_request_backtrace(pid int, log boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me    backtrace.whoami;
    ids   bigint[];
    error text[];
BEGIN
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    SELECT e.ids, e.error INTO ids, error FROM backtrace.enqueue(me, 'request', ARRAY[pid], log) e;
    IF error[3] = '' THEN
        RAISE EXCEPTION USING ERRCODE = error[1], MESSAGE = error[2], HINT = error[4];
    ELSIF error IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = error[1], MESSAGE = error[2], DETAIL = error[3], HINT = error[4];
    END IF;
    IF ids[1] IS NULL THEN
        RAISE WARNING USING MESSAGE = format('PID %s is not a PostgreSQL server process', pid);
    ELSIF NOT backtrace.served() THEN
        RAISE NOTICE USING MESSAGE = 'the pg_stat_backtrace worker is not running; the request waits for it';
    END IF;
    RETURN ids[1];
END
$$;
COMMENT ON FUNCTION @extschema@.pg_request_backtrace(int, boolean)
    IS 'asks for the call stack of the PostgreSQL process with this PID without waiting; returns the request''s id';
REVOKE ALL ON FUNCTION @extschema@.pg_request_backtrace(int, boolean) FROM PUBLIC;

CREATE FUNCTION @extschema@.pg_request_backtrace(pids int[], log boolean DEFAULT false) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    me    backtrace.whoami;
    ids   bigint[];
    error text[];
    pid   int;
BEGIN
    SELECT w.caller, w.backend, w.stamp, w.mac INTO me FROM backtrace.whoami w;
    SELECT e.ids, e.error INTO ids, error FROM backtrace.enqueue(me, 'requests', pids, log) e;
    IF error[3] = '' THEN
        RAISE EXCEPTION USING ERRCODE = error[1], MESSAGE = error[2], HINT = error[4];
    ELSIF error IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = error[1], MESSAGE = error[2], DETAIL = error[3], HINT = error[4];
    END IF;
    FOREACH pid IN ARRAY pids LOOP
        IF pid <= 0 THEN
            RAISE WARNING USING MESSAGE = format('PID %s is not a PostgreSQL server process', pid);
        END IF;
    END LOOP;
    IF cardinality(array_remove(ids, NULL)) > 0 AND NOT backtrace.served() THEN
        RAISE NOTICE USING MESSAGE = 'the pg_stat_backtrace worker is not running; the requests wait for it';
    END IF;
    RETURN ids;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_request_backtrace(int[], boolean)
    IS 'asks for the call stacks of these PostgreSQL processes without waiting; returns the requests'' ids, in this order';
REVOKE ALL ON FUNCTION @extschema@.pg_request_backtrace(int[], boolean) FROM PUBLIC;

-- Anybody may call it: row security says whose results there are.
CREATE FUNCTION @extschema@.pg_backtrace_result(id bigint, OUT state text, OUT pid int, OUT requested_at timestamptz,
    OUT finished_at timestamptz, OUT engine text, OUT pause_us double precision, OUT depth int, OUT backtrace text,
    OUT sqlstate text, OUT message text, OUT detail text, OUT hint text) RETURNS SETOF record
LANGUAGE sql STABLE STRICT PARALLEL SAFE SECURITY INVOKER ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT q.state, q.pid, q.requested_at, q.finished_at, q.engine, q.pause_us, q.depth, q.backtrace,
           q.sqlstate, q.message, q.detail, q.hint
    FROM backtrace.request q WHERE q.id = $1
$$;
COMMENT ON FUNCTION @extschema@.pg_backtrace_result(bigint)
    IS 'what came of the request with this id: one row, or none when there is no such request of the current user';

-- What the worker does to the table.  Its role is the owner, a superuser, or one that was granted EXECUTE on these.

-- Claims at most so many requests until the end of the transaction.  Claims of others are passed over, and so are the
-- requests and the roles named.  Everything that decides is looked up now, nothing is remembered from the asking.
CREATE FUNCTION backtrace.claim(most int, but bigint[], but_callers oid[])
RETURNS TABLE (id bigint, verb text, caller oid, caller_name name, superuser boolean, granted boolean, backend int, pid int,
    started bigint, settings jsonb, waited double precision)
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    WITH mine AS MATERIALIZED (
        SELECT q.* FROM backtrace.request q
        WHERE q.state = 'queued' AND q.id <> ALL (but) AND q.caller <> ALL (but_callers)
        ORDER BY q.id LIMIT most FOR UPDATE SKIP LOCKED)
    SELECT m.id, m.verb, m.caller, m.caller_name, coalesce(r.rolsuper, false),
           r.oid IS NULL   -- refused for that reason
               OR EXISTS (SELECT FROM backtrace.verb v WHERE v.name IN ('request', 'requests')
                   AND has_function_privilege(m.caller, v.function, 'EXECUTE')),
           m.backend, m.pid, m.started, m.settings,
           extract(epoch FROM clock_timestamp() - m.requested_at)::double precision
    FROM mine m LEFT JOIN pg_authid r ON r.oid = m.caller
    ORDER BY m.id
$$;
COMMENT ON FUNCTION backtrace.claim(int, bigint[], oid[]) IS 'for the worker: locks the next requests and returns them';
REVOKE ALL ON FUNCTION backtrace.claim(int, bigint[], oid[]) FROM PUBLIC;

-- One entry of the server log, as pg_log_backtrace writes it.
CREATE FUNCTION backtrace.log_entry(pid int, frames text) RETURNS void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET client_min_messages = warning       -- not to the worker
SET log_min_error_statement = panic     -- the statement is the worker's
AS $$
BEGIN
    IF current_setting('log_error_verbosity') = 'terse' THEN
        RAISE LOG USING MESSAGE = format(E'backtrace of PID %s\n%s', pid, frames);
    ELSE
        RAISE LOG USING MESSAGE = format('backtrace of PID %s', pid), DETAIL = frames;
    END IF;
END
$$;
COMMENT ON FUNCTION backtrace.log_entry(int, text) IS 'for the worker: writes a call stack to the server log';
REVOKE ALL ON FUNCTION backtrace.log_entry(int, text) FROM PUBLIC;

-- Writes results of claimed requests.  The log entry is the last thing before the commit: what can still go wrong then
-- makes a second entry, never a second result.
CREATE FUNCTION backtrace.finish(ids bigint[], engines text[], pauses double precision[], depths int[], stacks text[],
    sqlstates text[], messages text[], details text[], hints text[]) RETURNS int
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_mergejoin = off
SET enable_hashjoin = off
AS $$
DECLARE
    logs CONSTANT boolean := current_setting('log_min_messages') NOT IN ('fatal', 'panic');
    done int := 0;
    r    record;
BEGIN
    FOR r IN
        UPDATE backtrace.request q
        SET state = CASE WHEN u.sqlstate IS NULL THEN 'done' ELSE 'failed' END, finished_at = clock_timestamp(),
            engine = u.engine, pause_us = u.pause_us, depth = u.depth,
            backtrace = CASE WHEN q.verb <> 'log' AND u.sqlstate IS NULL THEN u.stack END,
            sqlstate = u.sqlstate, message = u.message, detail = u.detail, hint = u.hint
        FROM (SELECT x.id, x.engine, x.pause_us, x.depth, x.stack,
                     CASE WHEN x.mute THEN '01000' ELSE x.sqlstate END AS sqlstate,
                     CASE WHEN x.mute THEN 'the backtrace cannot be logged' ELSE x.message END AS message,
                     x.detail,
                     CASE WHEN x.mute THEN 'The server log takes no LOG messages: see log_min_messages.'
                          ELSE x.hint END AS hint
              FROM (SELECT a.*, NOT logs AND a.sqlstate IS NULL AND t.verb = 'log' AS mute
                    FROM unnest(ids, engines, pauses, depths, stacks, sqlstates, messages, details, hints)
                         AS a (id, engine, pause_us, depth, stack, sqlstate, message, detail, hint)
                         JOIN backtrace.request t ON t.id = a.id) x) u
        WHERE q.id = u.id AND q.state = 'queued'
        RETURNING q.id, q.pid, CASE WHEN q.verb = 'log' AND q.state = 'done' THEN u.stack END AS frames
    LOOP
        done := done + 1;
        PERFORM backtrace.log_entry(r.pid, r.frames), pg_notify('backtrace_done', r.id::text);
    END LOOP;
    RETURN done;
END
$$;
COMMENT ON FUNCTION backtrace.finish(bigint[], text[], double precision[], int[], text[], text[], text[], text[], text[])
    IS 'for the worker: writes results and tells that they are there, at commit';
REVOKE ALL ON FUNCTION
    backtrace.finish(bigint[], text[], double precision[], int[], text[], text[], text[], text[], text[]) FROM PUBLIC;

-- Rows of waiting calls, which are over.
CREATE FUNCTION backtrace.journal(verbs text[], callers oid[], names text[], backends int[], pids int[],
    requested timestamptz[], finished timestamptz[], engines text[], pauses double precision[], depths int[],
    sqlstates text[], messages text[], details text[], hints text[]) RETURNS void
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO backtrace.request (kind, verb, state, caller, caller_name, backend, pid, requested_at, finished_at,
        engine, pause_us, depth, sqlstate, message, detail, hint)
    SELECT 'waiting', a.verb, CASE WHEN a.sqlstate IS NULL THEN 'done' ELSE 'failed' END, a.caller, a.caller_name::name,
           a.backend, a.pid, a.requested, a.finished, a.engine, a.pause_us, a.depth, a.sqlstate, a.message, a.detail, a.hint
    FROM unnest(verbs, callers, names, backends, pids, requested, finished, engines, pauses, depths, sqlstates, messages,
                details, hints)
         AS a (verb, caller, caller_name, backend, pid, requested, finished, engine, pause_us, depth, sqlstate, message,
               detail, hint)
$$;
COMMENT ON FUNCTION backtrace.journal(text[], oid[], text[], int[], int[], timestamptz[], timestamptz[], text[],
    double precision[], int[], text[], text[], text[], text[]) IS 'for the worker: writes rows of waiting calls';
REVOKE ALL ON FUNCTION backtrace.journal(text[], oid[], text[], int[], int[], timestamptz[], timestamptz[], text[],
    double precision[], int[], text[], text[], text[], text[]) FROM PUBLIC;

-- Removes the oldest rows that are over: those beyond a number, and those of a certain age.  At most so many at a time,
-- and only so many are looked at: ids go with time.
CREATE FUNCTION backtrace.prune(keep interval, keep_rows bigint, most int) RETURNS int
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    WITH edge AS (
        SELECT q.id FROM backtrace.request q WHERE q.state <> 'queued' ORDER BY q.id DESC OFFSET keep_rows LIMIT 1
    ), old AS (
        SELECT q.id FROM backtrace.request q
        WHERE q.state <> 'queued' ORDER BY q.id LIMIT most
    ), gone AS (
        DELETE FROM backtrace.request q
        WHERE q.id = ANY (ARRAY(SELECT o.id FROM old o))
          AND (q.id <= (SELECT e.id FROM edge e) OR q.requested_at < clock_timestamp() - keep)
        RETURNING 1
    )
    SELECT count(*)::int FROM gone
$$;
COMMENT ON FUNCTION backtrace.prune(interval, bigint, int) IS 'for the worker: removes old rows, and says how many';
REVOKE ALL ON FUNCTION backtrace.prune(interval, bigint, int) FROM PUBLIC;

-- What can be asked: the names, now that they exist ----------------------------------------------------------------------

-- By oid, so that nothing is found by a name that may change.
CREATE OR REPLACE VIEW backtrace.verb AS
SELECT 'get' AS name, '@extschema@.pg_get_backtrace(int)'::regprocedure::oid AS function, NULL::oid AS relation
UNION ALL SELECT 'log', '@extschema@.pg_log_backtrace(int)'::regprocedure, NULL
UNION ALL SELECT 'logs', '@extschema@.pg_log_backtrace(int[])'::regprocedure, NULL
UNION ALL SELECT 'frames', '@extschema@.pg_get_backtrace_frames(int)'::regprocedure, NULL
UNION ALL SELECT 'blocking', '@extschema@.pg_get_blocking_backtraces(int)'::regprocedure, NULL
UNION ALL SELECT 'summary', '@extschema@.pg_backtrace_summary(int, interval, int[])'::regprocedure, NULL
UNION ALL SELECT 'request', '@extschema@.pg_request_backtrace(int, boolean)'::regprocedure, NULL
UNION ALL SELECT 'requests', '@extschema@.pg_request_backtrace(int[], boolean)'::regprocedure, NULL
UNION ALL SELECT 'stat', NULL, '@extschema@.pg_stat_backtrace'::regclass;
COMMENT ON VIEW backtrace.verb
    IS 'what can be asked of the worker, and the function or view whose privilege it takes';

-- Default privileges may have given any role any privilege on the new objects.  With TRIGGER on a table, or CREATE on schema
-- backtrace, a role's code would run as the extension's owner.  An update keeps what administrators have granted on the
-- functions of version 1.0, except to roles that have a privilege which no administrator grants.
DO $$
DECLARE
    keep      CONSTANT boolean := true;
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
