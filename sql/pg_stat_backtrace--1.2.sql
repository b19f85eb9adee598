/* sql/pg_stat_backtrace--1.2.sql */

\echo Use "CREATE EXTENSION pg_stat_backtrace" to load this file. \quit

-- Generated from the files in sql/src: change those, and run "make sql".
-- Nothing below is resolved through a schema that others can write to.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL quote_all_identifiers = off;   -- the script compares definitions of objects

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'backtrace') THEN
        RAISE EXCEPTION USING ERRCODE = 'duplicate_schema', MESSAGE = 'schema "backtrace" already exists',
            DETAIL = format('It belongs to role %s.', (SELECT n.nspowner::regrole FROM pg_namespace n WHERE n.nspname = 'backtrace')),
            HINT = 'Drop or rename it: pg_stat_backtrace makes this schema for its internal objects.';
    END IF;
END
$$;

-- Schema -----------------------------------------------------------------------------------------------------------------

-- Users call the functions and read the view in the schema chosen for the extension.  Everything else is in schema
-- backtrace, which belongs to the extension's owner: no other role can create or rename anything there.
CREATE SCHEMA backtrace;
COMMENT ON SCHEMA backtrace IS 'internals of pg_stat_backtrace';

-- Calls of functions in schema backtrace.  A role that once had CREATE on that schema may have left an overload there, and
-- an overload that fits a call better would run in place of the extension's function, as the extension's owner or as any
-- caller.  Therefore each call names the schema, passes all arguments, and each argument has exactly the declared type:
-- a variable of that type, or an expression with a cast to it.  Then the extension's function is the exact match, which
-- PostgreSQL always prefers, and no role can make another function with the same name and the same argument types.  An
-- overload with more arguments, which have defaults, makes the call fail: "function ... is not unique".
-- tools/sqlscript tests these rules.

-- Identity of the caller -------------------------------------------------------------------------------------------------

-- A SECURITY DEFINER function sees its owner as current_user, so it cannot know its caller.  Three steps solve that:
--
--   public function    runs as its caller
--   backtrace.ask      runs as its caller, reads current_user and passes it on in one fixed statement
--   backtrace.call     runs as the extension's owner; first asks the server for the chain of its callers (PG_CONTEXT)
--
-- The chain comes from the server, so a caller cannot forge it: backtrace.call accepts the role only if that one
-- statement of backtrace.ask has called it.  No key is needed, so no table, backup or WAL stream holds a secret.
--
-- The chain names functions by schema, name and argument types.  PL/pgSQL keeps the name from when a session first
-- called a function.  A role could have made a schema "backtrace" and a function "ask" before the extension came, and
-- have renamed the schema since.  Therefore a type with a random name is among the arguments: see names.sql.
--
-- quote_all_identifiers changes the names in the chain.  PL/pgSQL uses its value at the first call, regprocedure its
-- present value.  Therefore backtrace.ask, backtrace.queue and backtrace.called_by set it.
CREATE DOMAIN backtrace.seal AS int;
COMMENT ON DOMAIN backtrace.seal IS 'random name: no function made before the extension has this argument type';

-- By backtrace.token.seal%TYPE, a function declares a variable of that type without its random name.
CREATE TYPE backtrace.token AS (seal backtrace.seal);
COMMENT ON TYPE backtrace.token IS 'names the type of the first argument of backtrace.ask and backtrace.queue';

-- True if the chain of callers in stack continues, after its first line, with this statement of this function.  An SPI
-- line holds the text of the statement up to a quotation mark, and no longer statement that begins with one of the
-- texts used here and continues with that mark is valid SQL.
CREATE FUNCTION backtrace.called_by(stack text, caller regprocedure, statement text) RETURNS boolean
LANGUAGE sql STABLE STRICT PARALLEL SAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
    SELECT starts_with(substr(stack, strpos(stack, E'\n')),
        format(E'\nSQL statement "%s"\nPL/pgSQL function %s line ', statement, caller))
$$;
COMMENT ON FUNCTION backtrace.called_by(text, regprocedure, text)
    IS 'whether this statement of this function is what called the function with this PG_CONTEXT';

-- Waiting calls ----------------------------------------------------------------------------------------------------------

-- The bytes of a text that need not be valid in the database's encoding.  Names of roles and databases have the
-- encoding of the database in which they were made.  convert_to would refuse them.
CREATE FUNCTION backtrace.bytes(value text) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT decode(replace(value, E'\\', E'\\\\'), 'escape');
END;
COMMENT ON FUNCTION backtrace.bytes(text) IS 'the bytes of a text, without a check of its encoding';

-- Returns {level, SQLSTATE, message, detail, hint, text}.  Level is '' (text is the result), WARNING or ERROR, and the
-- public function raises the last two.  Or returns {wait, seconds, ...}: the public function sleeps so long and calls
-- again with that array.  The public function does both so that the context of an error, and of a cancel, is one line.
-- No targets mean all processes of the cluster.
-- No string with a backslash outside E'': standard_conforming_strings may be off.
CREATE FUNCTION backtrace.call(caller oid, verb text, targets int[], waiting text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lc_messages = 'C'                   -- PG_CONTEXT is translated
SET client_min_messages = warning
SET extra_float_digits = 1              -- times are passed as texts
SET debug_print_parse = off             -- the pid file holds a key
SET debug_print_rewritten = off
SET debug_print_plan = off
SET pg_stat_statements.track = 'none'   -- the text of each COPY below differs
AS $$
DECLARE
    protocol CONSTANT text := '1';
    setting  text := nullif(current_setting('pg_stat_backtrace.timeout', true), '');
    home     text := encode(backtrace.bytes(current_setting('data_directory')::text), 'escape');
    -- waiting is {'wait', nap, waited, look, salt, mark}.  Times are in seconds, and slept: the clock may be set meanwhile.
    nap      double precision := coalesce(waiting[2]::double precision, 0);
    waited   double precision := greatest(coalesce(waiting[3]::double precision, 0) + nap, 0);
    look     double precision := coalesce(waiting[4]::double precision, 0);     -- when to check the worker again
    salt     uuid := coalesce(waiting[5]::uuid, gen_random_uuid());
    mark     text;                      -- hash of the answer's path: the caller must not know the path
    stack    text;
    id       uuid;
    begun    timestamptz;
    super    boolean;
    worker   text[];                    -- lines of the worker's pid file, see worker/serve/spool/pidfile.go
    beacon   text[];                    -- TID of one of its threads, and the time of that thread's directory in /proc
    since    text;                      -- that time now
    stat     text[];                    -- its /proc/PID/stat from the third field on
    runs     boolean;
    request  text;
    refused  boolean := false;          -- the request could not be written
    asked    boolean;                   -- the request has been written
    answer   text;                      -- path of the answer; NULL without a worker
BEGIN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    worker := string_to_array(encode(pg_read_binary_file('pg_stat_backtrace.pid', 0, 16384, true), 'escape'), E'\n');
    -- The name of the request's files.  No role can guess it, and only the same caller finds it, in the same statement.
    id := left(encode(sha256(convert_to(worker[8], 'SQL_ASCII') || oidsend(caller) || int4send(pg_backend_pid())
        || timestamptz_send(statement_timestamp()) || uuid_send(salt)), 'hex'), 32)::uuid;
    answer := worker[6] || '/' || id || '.rep';
    -- A worker that was started, or has replaced its spool, since then knows nothing of the request.
    mark := encode(sha256(convert_to(answer, 'SQL_ASCII')), 'hex');
    asked := coalesce(mark = waiting[6], false);
    IF backtrace.called_by(stack, backtrace.caller_of('call'::text)::regprocedure,
           'SELECT backtrace.call(caller, verb, targets, waiting) AS answer'::text) IS NOT TRUE
       OR NOT asked AND backtrace.may_ask(caller, verb) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = coalesce('permission denied for function '
                || (SELECT p.proname FROM pg_proc p WHERE p.oid = backtrace.verb_function(verb)),
            'permission denied for view pg_stat_backtrace');
    END IF;
    -- rolsuper comes from the statement's snapshot, which may be old: pg_has_role (10: the bootstrap superuser) knows
    -- whether it is still true.
    SELECT r.rolsuper AND pg_has_role(caller, 10::oid, 'USAGE') INTO super FROM pg_authid r WHERE r.oid = caller;
    super := coalesce(super, false);

    IF verb IN ('get', 'log', 'frames', 'oncall', 'to_file') AND targets[1] <= 0 THEN
        RETURN ARRAY['WARNING', '01000', format('PID %s is not a PostgreSQL server process', targets[1]), '', '', ''];
    ELSIF verb IN ('get', 'log', 'frames', 'oncall', 'to_file') AND targets[1] = pg_backend_pid() THEN
        RETURN ARRAY['ERROR', '55000', 'cannot capture the backtrace of the current backend', '',
            'Ask from another session, or query the view pg_stat_backtrace for many processes.', ''];
    ELSIF cardinality(targets) > 5000 THEN
        RETURN ARRAY['ERROR', '54000', 'cannot ask for more than 5000 processes at once', '', '', ''];
    ELSIF setting !~ '^[1-9][0-9]{0,4}$' THEN
        RETURN ARRAY['ERROR', '22023', format('invalid value for parameter "pg_stat_backtrace.timeout": "%s"', setting),
            '', 'It is a number of milliseconds, from 1 to 99999.', ''];
    END IF;
    setting := coalesce(setting, '3000');
    LOOP
        -- To look for the answer is cheap, to check the worker is not.  Both become less frequent with time: a thousand
        -- waiting callers must leave the worker a processor.
        EXIT WHEN asked AND (pg_stat_file(answer, true)).size IS NOT NULL;
        IF asked AND waited < look THEN
            nap := least(0.001 + waited / 4, 2, greatest(setting::int / 1000.0 + 1.001 - waited, 0.001));
            RETURN ARRAY['wait', nap::text, waited::text, look::text, salt::text, mark];
        END IF;
        -- Does a worker run?  A pid file that came with a copy of another data directory names that other directory.  A
        -- file of a killed worker names a PID without a process, or a process with another start time.  The time of
        -- the directory of one of the worker's threads shows both in one look that cannot fail.  If that time differs
        -- (the server has another mount of /proc), the start time is read.
        runs := false;
        -- A worker that the server may not see, in another PID namespace or behind hidepid, touches a file instead: see
        -- below.  /proc is then not asked, it may be missing.
        IF worker[4] = home AND split_part(worker[10], ' ', 1) = 'outside' THEN
            runs := asked OR coalesce(clock_timestamp() - (pg_stat_file(worker[6] || '/ready', true)).modification
                < interval '10s', true);
        ELSIF worker[4] = home AND worker[2] ~ '^[0-9]+$' THEN
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
                    'pg_stat_backtrace worker -D %s', CASE WHEN current_setting('data_directory') ~ '[^[:alnum:]_./+:@%=-]'
                        -- as a shell reads it
                        THEN '''' || replace(current_setting('data_directory'), '''', E'''\\''''') || ''''
                        ELSE current_setting('data_directory') END)
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
            -- The worker touches this file every two seconds.
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker is not running', '', CASE WHEN super
                THEN 'The server cannot see its process, and it has given no sign of life for 10 seconds; '
                    'its log may say more.'
                ELSE 'An administrator can start it on the server''s host: pg_stat_backtrace worker.' END, ''];
        ELSIF refused
              OR (pg_stat_file(worker[6] || CASE WHEN asked THEN '' ELSE '/ready' END, true)).size IS NULL THEN
            RETURN ARRAY['ERROR', '55000', 'the pg_stat_backtrace worker takes no requests at the moment', '',
                'It is ending, its spool directory is full or being replaced, or the server cannot see it; its log may '
                    'say more.', ''];
        END IF;

        IF waited > setting::int / 1000.0 + 1 THEN
            EXIT WHEN asked AND (pg_stat_file(answer, true)).size IS NOT NULL;
            RETURN ARRAY['ERROR', '55000', format('the pg_stat_backtrace worker did not answer within %s ms', setting),
                '', 'It is stopped or overloaded; its log may say more.', ''];
        ELSIF NOT asked THEN
            -- Ask.  The request is signed with the key in the pid file, which only the server's operating system user
            -- can read.
            request := concat_ws(' ', protocol, id, verb, coalesce(nullif(array_to_string(targets, ','), ''), '*'),
                setting, caller, super, pg_backend_pid(), getdatabaseencoding(),
                encode(backtrace.bytes(pg_get_userbyid(caller)::text), 'hex'),
                encode(backtrace.bytes(current_database()::text), 'hex'),
                (SELECT string_agg(s.name || '=' || encode(backtrace.bytes(s.value::text), 'hex'), ' ')
                 FROM (SELECT n, nullif(current_setting('pg_stat_backtrace.' || n, true), '')
                       FROM unnest('{timeout,max_frames,nonstop,threads,context,trace,history,format}'::text[]) n) s (name, value)
                 WHERE s.value IS NOT NULL));
            IF length(request) > 65000 THEN     -- the spool has little room, and the worker reads 64 kB
                RETURN ARRAY['ERROR', '22023', 'the settings pg_stat_backtrace.* are too long', '',
                    'They may have 1000 characters together.', ''];
            END IF;
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
    -- The worker removes answers to make room for others, maybe this one since the loop has seen it.
    RETURN coalesce(string_to_array(pg_read_file(answer, 0, (pg_stat_file(answer, true)).size, true), E'\x1f'),
        ARRAY['ERROR', '53400', 'too many requests are waiting for the pg_stat_backtrace worker', '', 'Try again later.', '']);
END
$$;
COMMENT ON FUNCTION backtrace.call(oid, text, int[], text[])
    IS 'passes a request to the worker and looks for its answer; accepts calls from backtrace.ask only';

-- backtrace.call accepts no other statement than the one below.  Everyone may call this function: it speaks for
-- current_user.
CREATE FUNCTION backtrace.ask(seal backtrace.seal, verb text, targets int[], waiting text[] DEFAULT '{}')
RETURNS text[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off         -- see backtrace.called_by
AS $$
DECLARE
    -- By its present name, not from an old snapshot.  If the role was dropped while its call waited, current_user fails.
    caller oid := to_regrole(quote_ident(current_user));
    result text[];
BEGIN
    SELECT backtrace.call(caller, verb, targets, waiting) AS answer INTO result;
    RETURN result;
END
$$;
COMMENT ON FUNCTION backtrace.ask(backtrace.seal, text, int[], text[]) IS 'makes a request for the current user';


-- The result of capturing one of many processes.
CREATE TYPE backtrace.answer AS (
    pid int, backend_type text, engine text, pause_us double precision, depth int, backtrace text,
    level text, sqlstate text, error text);
COMMENT ON TYPE backtrace.answer IS 'what came of the capture of one of many processes';

-- What users call ------------------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_backtrace(pid int) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'get'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
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
COMMENT ON FUNCTION @extschema@.pg_get_backtrace(int) IS 'call stack of the PostgreSQL process with this PID';

-- The entry must not reach the client.  RAISE sends LOG to a client whose client_min_messages is log or less.  For such
-- a client this function writes the entry, with another setting.  That adds a line of context, so other clients do
-- without it.  pg_log_backtrace cannot have the setting itself: it would send warnings to a client that wants errors only.
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

-- log_error_verbosity = terse would drop the DETAIL, so the frames then go into the message.
CREATE FUNCTION @extschema@.pg_log_backtrace(pid int) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a       text[];
    message text := format('backtrace of PID %s', pid);
BEGIN
    IF current_setting('log_min_messages') IN ('fatal', 'panic') THEN
        RAISE WARNING USING MESSAGE = format('backtrace of PID %s cannot be logged', pid),
            HINT = 'The server log takes no LOG messages: see log_min_messages.';
        RETURN false;
    END IF;
    a := '{}';
    LOOP
        a := backtrace.ask(seal, 'log'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        IF current_setting('log_error_verbosity') = 'terse' THEN
            message := format(E'%s\n%s', message, a[6]);
            a[6] := NULL;
        END IF;
        IF current_setting('client_min_messages') NOT IN ('notice', 'warning', 'error') THEN
            PERFORM backtrace.write_log(message, a[6]::text);
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
COMMENT ON FUNCTION @extschema@.pg_log_backtrace(int)
    IS 'writes the call stack of the PostgreSQL process with this PID to the server log';

-- Many processes, and frame by frame -------------------------------------------------------------------------------------

-- Reads the worker's answer about many processes: one record for each, separated by RS, of cells separated by GS.
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
    OUT source_line int, OUT inlined boolean, OUT tid int, OUT note text, OUT derived boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 30
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'frames'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT c[1]::int, c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9]::int, c[10]::boolean, c[11]::int, c[12],
                   c[13]::boolean
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
    IS 'call stack of the PostgreSQL process with this PID, a row for each frame, innermost first; derived: no symbol has the name, it follows from the code';

-- The rows of the view pg_stat_backtrace; needs the SELECT privilege on that view.  The activity is read after the
-- capture, and anew: within a transaction it would otherwise be as old as the first look.
CREATE FUNCTION backtrace.stat(OUT pid int, OUT leader_pid int, OUT backend_type text, OUT wait_event_type text,
    OUT wait_event text, OUT state text, OUT query_id bigint, OUT engine text, OUT pause_us double precision,
    OUT depth int, OUT backtrace text, OUT error text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 100
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'stat'::text, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        PERFORM pg_stat_clear_snapshot();
        RETURN QUERY
            SELECT b.pid, s.leader_pid, coalesce(s.backend_type, b.backend_type), s.wait_event_type, s.wait_event,
                   s.state, s.query_id, b.engine, b.pause_us, b.depth, b.backtrace, b.error
            FROM backtrace.answers(a[6]::text) b LEFT JOIN pg_stat_activity s ON s.pid = b.pid;
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
COMMENT ON COLUMN @extschema@.pg_stat_backtrace.pause_us IS 'how long the process was stopped, in microseconds';
COMMENT ON COLUMN @extschema@.pg_stat_backtrace.depth IS 'number of frames, of all captured threads';
COMMENT ON COLUMN @extschema@.pg_stat_backtrace.error IS 'why there is no backtrace';

-- If a process cannot be captured, this function says why in a WARNING and continues with the next one.
CREATE FUNCTION @extschema@.pg_log_backtrace(VARIADIC pids int[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
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
    a := '{}';
    LOOP
        a := backtrace.ask(seal, 'logs'::text, pids, a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        FOR b IN SELECT * FROM backtrace.answers(a[6]::text) LOOP
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
                PERFORM backtrace.write_log(message, b.backtrace::text);
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

-- distance is 0 for the process itself, 1 for the processes that block it, 2 for the blockers of these, and so on; each
-- with its parallel group.  pg_blocking_pids returns 0 for a prepared transaction, which has no process.  It returns nothing
-- for a process that waits until all processes have absorbed a ProcSignalBarrier, as DROP DATABASE does: the worker reads
-- from shared memory which processes have not.
CREATE FUNCTION @extschema@.pg_get_blocking_backtraces(pid int, OUT distance int, OUT blocking_pid int, OUT leader_pid int,
    OUT backend_type text, OUT wait_event_type text, OUT wait_event text, OUT state text, OUT query text,
    OUT backtrace text, OUT error text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 10
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a         text[];
    members   int[] := '{}';    -- all found so far
    distances int[] := '{}';    -- and how far each is
    present   int[] := ARRAY[pid];
    waiting   int[];            -- processes of present that wait for a barrier
    late      int[];            -- processes that have not absorbed it
    step      int := 0;
BEGIN
    IF pid <= 0 THEN    -- 0 would be a prepared transaction
        RAISE WARNING USING MESSAGE = format('PID %s is not a PostgreSQL server process', pid);
        RETURN;
    END IF;
    PERFORM pg_stat_clear_snapshot();
    <<distance>>
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
        late := '{}';
        waiting := ARRAY(SELECT s.pid FROM pg_stat_activity s
            WHERE s.pid = ANY (present) AND s.wait_event = 'ProcSignalBarrier' AND s.pid <> pg_backend_pid());
        IF cardinality(waiting) > 0 THEN
            a := '{}';
            LOOP
                a := backtrace.ask(seal, 'barrier'::text, waiting, a);
                EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
            END LOOP;
            IF a[1] = '' THEN
                late := array_remove(string_to_array(a[6], E'\x1e', '')::int[], NULL);
            ELSIF a[1] = 'WARNING' THEN
                RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
            ELSE
                EXIT distance;  -- with this error
            END IF;
        END IF;
        present := ARRAY(SELECT b FROM unnest(present) p, unnest(pg_blocking_pids(p)) b WHERE b <> ALL (members)
            UNION SELECT b FROM unnest(late) b WHERE b <> ALL (members));
        a := NULL;
        step := step + 1;
    END LOOP;
    IF a IS NULL THEN
        a := '{}';
        LOOP
            a := backtrace.ask(seal, 'blocking'::text, array_remove(members, 0)::int[], a);
            EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
        END LOOP;
    END IF;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT m.distance, m.pid, s.leader_pid, coalesce(s.backend_type, b.backend_type), s.wait_event_type,
                   s.wait_event, s.state, s.query, b.backtrace,
                   CASE WHEN m.pid = 0 THEN 'a prepared transaction' ELSE b.error END
            FROM unnest(distances, members) WITH ORDINALITY m (distance, pid, n)
                 LEFT JOIN backtrace.answers(a[6]::text) b ON b.pid = m.pid
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
    IS 'call stacks of this process, of the processes that block it, and of their parallel groups';

-- The pauses between samples last between half and one and a half of the interval, so that samples do not coincide with
-- periodic activity of the server.  The four arrays have an element for each distinct stack, and for each distinct
-- reason of a missing stack.
CREATE FUNCTION @extschema@.pg_backtrace_summary(samples int DEFAULT 10, "interval" interval DEFAULT '100 ms',
    pids int[] DEFAULT NULL,
    OUT count bigint, OUT share numeric, OUT processes int, OUT some_pids int[], OUT backtrace text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 20
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a       text[];
    seconds double precision := extract(epoch FROM "interval");
    stacks  text[] := '{}';     -- the stack or the reason
    failed  boolean[] := '{}';  -- it is a reason
    counts  bigint[] := '{}';   -- how often
    owners  text[] := '{}';     -- PIDs, with commas
    total   bigint;             -- sum of the counts of stacks
    lost    bigint;             -- and of reasons
    taken   int := 0;           -- samples
    told    timestamptz := clock_timestamp();
BEGIN
    IF samples IS NULL OR samples NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'number of samples must be between 1 and 100000';
    ELSIF seconds IS NULL OR NOT seconds BETWEEN 0 AND 3600 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'interval between samples must be between 0 and 1 hour';
    ELSIF pids IS NOT NULL AND (SELECT count(p) FROM unnest(pids) p) = 0 THEN
        RETURN; -- a request that names no process would be about all
    END IF;
    FOR i IN 1..samples LOOP
        a := '{}';
        LOOP
            a := backtrace.ask(seal, 'summary'::text, coalesce(pids, '{}')::int[], a);
            EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
        END LOOP;
        EXIT WHEN a[1] <> '';
        taken := i;
        SELECT coalesce(array_agg(g.stack), '{}'), coalesce(array_agg(g.failed), '{}'), coalesce(array_agg(g.n), '{}'),
               coalesce(array_agg((SELECT string_agg(DISTINCT p, ',')
                                   FROM unnest(string_to_array(g.pids, ',')) p)), '{}')
        INTO stacks, failed, counts, owners
        FROM (SELECT e.stack, e.failed, sum(e.n)::bigint AS n, string_agg(e.pids, ',') AS pids
              FROM (SELECT * FROM unnest(stacks, failed, counts, owners)
                    UNION ALL
                    SELECT coalesce(b.error, b.backtrace), b.error IS NOT NULL, 1, b.pid::text
                    FROM backtrace.answers(a[6]::text) b
                    WHERE b.error IS NULL OR $3 IS NOT NULL OR b.pid <> pg_backend_pid()) e (stack, failed, n, pids)
              GROUP BY e.stack, e.failed) g;
        IF clock_timestamp() NOT BETWEEN told AND told + interval '1 second' THEN
            told := clock_timestamp();
            RAISE NOTICE USING MESSAGE = format('sample %s of %s', i, samples);
        END IF;
        EXIT WHEN i < samples AND pg_sleep(seconds * (0.5 + random())) IS NULL;    -- never; unlike PERFORM, canceled
                                                                                   -- with a single line of context
    END LOOP;
    IF a[1] <> '' AND taken > 0 THEN
        IF a[4] || a[5] = '' THEN
            RAISE NOTICE USING MESSAGE = format('sampling ended after %s of %s samples: %s', taken, samples, a[3]);
        ELSE
            RAISE NOTICE USING MESSAGE = format('sampling ended after %s of %s samples: %s', taken, samples, a[3]),
                DETAIL = concat_ws(' ', nullif(a[4], ''), nullif(a[5], ''));
        END IF;
        a[1] := '';
    END IF;
    IF a[1] = '' THEN
        SELECT sum(u.n) FILTER (WHERE NOT u.failed), sum(u.n) FILTER (WHERE u.failed) INTO total, lost
        FROM unnest(counts, failed) u (n, failed);
        IF lost > 0 THEN
            RAISE NOTICE USING MESSAGE = format('%s of %s stacks could not be taken', lost, lost + coalesce(total, 0)),
                DETAIL = (SELECT string_agg(format('%s times: %s.', f.n, f.reason), E'\n')
                    FROM (SELECT u.reason, u.n FROM unnest(stacks, failed, counts) u (reason, failed, n)
                          WHERE u.failed ORDER BY u.n DESC, u.reason LIMIT 10) f);
        END IF;
        RETURN QUERY
            SELECT u.n, round(100.0 * u.n / total, 1), o.n, o.pids[1:5], u.stack
            FROM unnest(stacks, failed, counts, owners) u (stack, failed, n, pids),
                 LATERAL (SELECT count(*)::int, array_agg(p.pid ORDER BY p.pid)
                          FROM unnest(string_to_array(u.pids, ',')::int[]) p (pid)) o (n, pids)
            WHERE NOT u.failed ORDER BY u.n DESC, u.stack;
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


-- Queue and journal: the table -----------------------------------------------------------------------------------------

-- Requests that the caller does not wait for, and the journal of all requests.  pg_request_backtrace inserts a row and notifies.  The
-- worker listens in every database that has the extension, claims the row, captures, and writes the result in the
-- transaction that holds the claim.  If a worker dies, or a transaction fails, the row is as before.  The worker writes
-- rows of waiting calls afterwards.
--
-- Unlogged, because no other place may get these rows: no standby, no backup, and no subscriber of a publication of all
-- tables.  A crash of the server empties the table, but it has also ended every process that the rows are about.  Not a
-- table of configuration, so pg_dump leaves the rows out.
CREATE UNLOGGED TABLE backtrace.request (
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
    -- A result makes a dead row of its request, and the end of the request another one.  The table is small (see the
    -- worker's --keep-rows), so a vacuum is quick: often, and without pauses.
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 500,
    toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 500,
    toast.autovacuum_vacuum_cost_delay = 0
);
-- The texts are large and never searched: no statistics.
ALTER TABLE backtrace.request
    ALTER COLUMN backtrace SET STATISTICS 0, ALTER COLUMN message SET STATISTICS 0, ALTER COLUMN detail SET STATISTICS 0,
    ALTER COLUMN hint SET STATISTICS 0, ALTER COLUMN settings SET STATISTICS 0;

-- What each role has queued, oldest first: the worker takes turns.
CREATE INDEX request_queued ON backtrace.request (caller, id) WHERE state = 'queued';

-- A role sees its own requests, members of pg_read_all_stats see all.  Roles with pg_read_all_data do not.  There is no
-- policy for writing, so only the owner's functions write, whatever else a role may write to.
ALTER TABLE backtrace.request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON backtrace.request FOR SELECT
    USING (caller = (SELECT to_regrole(quote_ident(current_user::text))::oid)
           OR (SELECT pg_has_role('pg_read_all_stats', 'USAGE')));

COMMENT ON TABLE backtrace.request IS 'requests for backtraces: a queue and a journal; a role sees its own';
COMMENT ON COLUMN backtrace.request.id IS 'what pg_request_backtrace returned';
COMMENT ON COLUMN backtrace.request.kind IS 'queued: by pg_request_backtrace; waiting: by a call that returned the answer';
COMMENT ON COLUMN backtrace.request.verb IS 'get, log (for the server log), or another verb of a waiting call';
COMMENT ON COLUMN backtrace.request.state IS 'queued, done, or failed';
COMMENT ON COLUMN backtrace.request.caller IS 'oid of the role that made the request; it may have been dropped since';
COMMENT ON COLUMN backtrace.request.caller_name IS 'name that this role had';
COMMENT ON COLUMN backtrace.request.backend IS 'PID of the backend that made the request';
COMMENT ON COLUMN backtrace.request.pid IS 'PID of the target; NULL: many targets';
COMMENT ON COLUMN backtrace.request.started IS 'when the target was started, clock ticks since boot; NULL: there was no such process';
COMMENT ON COLUMN backtrace.request.settings IS 'the settings pg_stat_backtrace.* that the request was made with';
COMMENT ON COLUMN backtrace.request.requested_at IS 'when the request was made';
COMMENT ON COLUMN backtrace.request.finished_at IS 'when the result was written; NULL while queued';
COMMENT ON COLUMN backtrace.request.engine IS 'how the stack was captured';
COMMENT ON COLUMN backtrace.request.pause_us IS 'how long the target was stopped, microseconds';
COMMENT ON COLUMN backtrace.request.depth IS 'number of frames';
COMMENT ON COLUMN backtrace.request.backtrace IS 'the stack; NULL for waiting calls, which returned it, and for the log';
COMMENT ON COLUMN backtrace.request.sqlstate IS 'error code of a failure; 01000: what a waiting call answers with a warning';
COMMENT ON COLUMN backtrace.request.message IS 'error message';
COMMENT ON COLUMN backtrace.request.detail IS 'its detail';
COMMENT ON COLUMN backtrace.request.hint IS 'its hint';
COMMENT ON SEQUENCE backtrace.request_id_seq IS 'ids of requests';
COMMENT ON INDEX backtrace.request_pkey IS 'results by their ids, and the oldest rows';
COMMENT ON INDEX backtrace.request_queued IS 'queued requests by role, oldest first';
COMMENT ON POLICY own ON backtrace.request IS 'a role''s own requests; all for pg_read_all_stats';

-- Queue and journal: requests -------------------------------------------------------------------------------------------

-- The start time of a process.  PID and start time together name a process: the PID alone may belong to another process
-- when the request is carried out.  The file may vanish between opening and reading, hence the handler.
CREATE FUNCTION backtrace.start_of(pid int) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (string_to_array(split_part(encode(pg_read_binary_file('/proc/' || pid || '/stat', 0, 1024, true), 'escape'),
        ') ', -1), ' '))[20]::bigint;
EXCEPTION WHEN system_error OR internal_error OR undefined_file OR insufficient_privilege THEN  -- the last: hidepid
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION backtrace.start_of(int) IS 'start time of the process with this PID; NULL when there is none';

-- As start_of, but only for the postmaster and its children.  Roles see the result, and must not learn about other processes
-- of the host.
CREATE FUNCTION backtrace.member_start(pid int) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own   text;     -- the postmaster
    other text[];
BEGIN
    own := (string_to_array(split_part(encode(pg_read_binary_file('/proc/self/stat', 0, 1024, true), 'escape'),
        ') ', -1), ' '))[2];
    other := string_to_array(split_part(encode(pg_read_binary_file('/proc/' || pid || '/stat', 0, 1024, true), 'escape'),
        ') ', -1), ' ');
    RETURN CASE WHEN own IN (other[2], pid::text) THEN other[20]::bigint END;
EXCEPTION WHEN system_error OR internal_error OR undefined_file OR insufficient_privilege THEN  -- the last: hidepid
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION backtrace.member_start(int) IS 'start time of this process of the server; NULL when there is none';

-- Whether a worker runs.  A waiting call reports that too, so everyone may know.
CREATE FUNCTION backtrace.served() RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    worker text[] := string_to_array(encode(pg_read_binary_file('pg_stat_backtrace.pid', 0, 16384, true), 'escape'), E'\n');
BEGIN
    RETURN coalesce(worker[4] = encode(backtrace.bytes(current_setting('data_directory')::text), 'escape')
        AND worker[2] ~ '^[0-9]{1,9}$'
        AND CASE WHEN split_part(coalesce(worker[10], ''), ' ', 1) = 'outside'
            THEN clock_timestamp() - (pg_stat_file(worker[6] || '/ready', true)).modification < interval '10s'
            ELSE backtrace.start_of(worker[2]::int)::text = worker[3] END, false);
END
$$;
COMMENT ON FUNCTION backtrace.served() IS 'whether a worker serves this cluster';

-- What every function that writes to the table does first.  A trigger, rule or child table that is not the extension's
-- would make the owner run code of someone else.  While the lock is held, none can be added.
CREATE FUNCTION backtrace.guard() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE backtrace.request IN ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'backtrace.request'::regclass)
       OR EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = 'backtrace.request'::regclass)
       OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = 'backtrace.request'::regclass) THEN
        RAISE EXCEPTION USING ERRCODE = '55000',
            MESSAGE = 'table backtrace.request has a trigger, rule or child table that is not the extension''s',
            DETAIL = 'The extension''s owner would run its code.', HINT = 'Drop it.';
    END IF;
END
$$;
COMMENT ON FUNCTION backtrace.guard() IS 'fails if writing to backtrace.request would run code of others';

-- Roles with pg_write_all_data may call setval on the sequence of ids.  Then no id is left, or the next ids exist already.
-- At the first attempt to insert rows, this function puts the sequence right and returns NULL: the sequence gives the ids.
-- At a further attempt it returns an id, with many free ids above: a role is moving the sequence all the time.
-- 2^53 - 1 is the largest integer that every client can hold.
CREATE FUNCTION backtrace.first_id(attempt int) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last bigint := (SELECT s.last_value FROM backtrace.request_id_seq s);
    top  bigint := coalesce((SELECT max(q.id) FROM backtrace.request q WHERE q.id < 9007199254740991), 0);
BEGIN
    IF attempt > 1 THEN
        RETURN top + 1 + floor(random() * 1000000)::bigint;
    ELSIF last < top OR last >= 9007199254740991 THEN
        PERFORM setval('backtrace.request_id_seq', greatest(top, 1), top > 0);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION backtrace.first_id(int) IS 'the first id of new rows; NULL if the sequence gives the ids';

-- Returns {'', '', '', '', '', ids}: the ids of the new requests, in the order of pids, NULL for a number that cannot be a
-- PID.  Or {ERROR, SQLSTATE, message, detail, hint, ''}, which the public function raises, so that its context is one line.
CREATE FUNCTION backtrace.enqueue(caller oid, verb text, pids int[], log boolean) RETURNS text[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lc_messages = 'C'                   -- PG_CONTEXT is translated
SET client_min_messages = warning
SET enable_seqscan = off                -- of the queue; catalogs without an index then seem expensive,
SET jit = off                           -- and would be compiled
AS $$
DECLARE
    most    CONSTANT int := 10000;  -- at once
    queue   CONSTANT int := 1000;   -- waiting, of a role that is not a superuser; see also backtrace.claim
    stack   text;
    chosen  jsonb;
    ids     bigint[];
    new_id  bigint;
    target  int;
    first   bigint;
    message text;
    detail  text;
    hint    text;
BEGIN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    IF verb NOT IN ('request', 'requests') OR backtrace.may_ask(caller, verb) IS NOT TRUE
       OR backtrace.called_by(stack, backtrace.caller_of('enqueue'::text)::regprocedure,
              'SELECT backtrace.enqueue(caller, verb, pids, log) AS answer'::text) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('permission denied for function %s', 'pg_request_backtrace');
    ELSIF current_setting('transaction_read_only')::boolean THEN
        RETURN ARRAY['ERROR', '25006', 'cannot queue a request for a backtrace in a read-only transaction', '',
            'pg_get_backtrace and pg_log_backtrace work here, and on a standby.', ''];
    ELSIF cardinality(pids) > most THEN
        RETURN ARRAY['ERROR', '54000', format('cannot request more than %s backtraces at once', most), '',
            'Ask for the others in another call.', ''];
    ELSIF NOT EXISTS (SELECT FROM pg_authid r WHERE r.oid = caller AND r.rolsuper)
          AND cardinality(pids) + (SELECT count(*) FROM (SELECT FROM backtrace.request q
              WHERE q.state = 'queued' AND q.caller = enqueue.caller LIMIT queue) x) > queue THEN
        RETURN ARRAY['ERROR', '53400', 'too many backtrace requests are waiting',
            format('A role that is not a superuser may have %s requests waiting.', queue),
            CASE WHEN backtrace.served() THEN 'Try again later.' ELSE 'No pg_stat_backtrace worker is running.' END, ''];
    END IF;
    chosen := (SELECT jsonb_object_agg(s.name, s.value)
        FROM unnest(ARRAY['max_frames', 'timeout', 'nonstop', 'threads', 'context']) n,
             LATERAL (SELECT n AS name, nullif(current_setting('pg_stat_backtrace.' || n, true), '') AS value) s
        WHERE s.value IS NOT NULL);
    IF length(chosen::text) > 1000 THEN
        RETURN ARRAY['ERROR', '22023', 'the settings pg_stat_backtrace.* are too long', '',
            'They may have 1000 characters together.', ''];
    END IF;
    FOR attempt IN 1..5 LOOP
        BEGIN
            PERFORM backtrace.guard();
            first := backtrace.first_id(attempt);
            ids := '{}';
            FOREACH target IN ARRAY pids LOOP
                new_id := NULL;
                IF target > 0 THEN
                    INSERT INTO backtrace.request AS q (id, verb, caller, caller_name, backend, pid, started, settings)
                    OVERRIDING SYSTEM VALUE
                    VALUES (coalesce(first + cardinality(ids), nextval('backtrace.request_id_seq')),
                        CASE WHEN log THEN 'log' ELSE 'get' END, enqueue.caller, pg_get_userbyid(enqueue.caller),
                        pg_backend_pid(), target, backtrace.member_start(target), chosen)
                    RETURNING q.id INTO new_id;
                END IF;
                ids := ids || new_id;
            END LOOP;
            EXIT;
        EXCEPTION WHEN object_not_in_prerequisite_state THEN    -- says guard
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            RETURN ARRAY['ERROR', SQLSTATE, message, detail, hint, ''];
        WHEN unique_violation OR sequence_generator_limit_exceeded THEN
            IF attempt = 5 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    PERFORM pg_notify('pg_stat_backtrace', '');
    RETURN ARRAY['', '', '', '', '', ids::text];
END
$$;
COMMENT ON FUNCTION backtrace.enqueue(oid, text, int[], boolean)
    IS 'inserts requests and notifies the worker, at commit; accepts calls from backtrace.queue only';

-- backtrace.enqueue accepts no other statement than the one below.
CREATE FUNCTION backtrace.queue(seal backtrace.seal, verb text, pids int[], log boolean) RETURNS text[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off         -- see backtrace.called_by
AS $$
DECLARE
    caller oid := to_regrole(quote_ident(current_user));
    result text[];
BEGIN
    SELECT backtrace.enqueue(caller, verb, pids, log) AS answer INTO result;
    RETURN result;
END
$$;
COMMENT ON FUNCTION backtrace.queue(backtrace.seal, text, int[], boolean) IS 'queues requests for the current user';

CREATE FUNCTION @extschema@.pg_request_backtrace(pid int, log boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET array_nulls = on                    -- the ids are passed as a text
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a   text[];
    ids bigint[];
BEGIN
    a := backtrace.queue(seal, 'request'::text, ARRAY[pid]::int[], log);
    IF a[1] = '' THEN
        ids := a[6];
        IF ids[1] IS NULL THEN
            RAISE WARNING USING MESSAGE = format('PID %s is not a PostgreSQL server process', pid);
        ELSIF NOT backtrace.served() THEN
            RAISE NOTICE USING MESSAGE = 'the pg_stat_backtrace worker is not running; the request waits for it';
        END IF;
        RETURN ids[1];
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_request_backtrace(int, boolean)
    IS 'requests the call stack of the PostgreSQL process with this PID without waiting; returns the request''s id';

CREATE FUNCTION @extschema@.pg_request_backtrace(pids int[], log boolean DEFAULT false) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET array_nulls = on                    -- the ids are passed as a text
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a   text[];
    ids bigint[];
    pid int;
BEGIN
    a := backtrace.queue(seal, 'requests'::text, pids, log);
    IF a[1] = '' THEN
        ids := a[6];
        FOREACH pid IN ARRAY pids LOOP
            IF pid <= 0 THEN
                RAISE WARNING USING MESSAGE = format('PID %s is not a PostgreSQL server process', pid);
            END IF;
        END LOOP;
        IF cardinality(array_remove(ids, NULL)) > 0 AND NOT backtrace.served() THEN
            RAISE NOTICE USING MESSAGE = 'the pg_stat_backtrace worker is not running; the requests wait for it';
        END IF;
        RETURN ids;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_request_backtrace(int[], boolean)
    IS 'requests the call stacks of these PostgreSQL processes without waiting; returns the requests'' ids, in this order';

-- Everyone may call it: row security decides which results a role sees.
CREATE FUNCTION @extschema@.pg_backtrace_result(id bigint, OUT state text, OUT pid int, OUT requested_at timestamptz,
    OUT finished_at timestamptz, OUT engine text, OUT pause_us double precision, OUT depth int, OUT backtrace text,
    OUT sqlstate text, OUT message text, OUT detail text, OUT hint text) RETURNS SETOF record
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SECURITY INVOKER ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'there are no queued requests on a standby',
            HINT = 'pg_get_backtrace and pg_log_backtrace work here.';
    END IF;
    RETURN QUERY
        SELECT q.state, q.pid, q.requested_at, q.finished_at, q.engine, q.pause_us, q.depth, q.backtrace,
               q.sqlstate, q.message, q.detail, q.hint
        FROM backtrace.request q WHERE q.id = $1;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_backtrace_result(bigint)
    IS 'result of the request with this id: one row, or none if the current user has no such request';

-- Queue and journal: for the worker ---------------------------------------------------------------------------------------

-- The worker's role is the owner, a superuser, or a role with EXECUTE on claim, finish, journal and prune.

-- Claims at most so many requests until the end of the transaction: superusers' first, then those of all other roles in
-- equal parts, the role that has waited longest first.  It skips requests that others have claimed, and the requests and
-- roles named.  Privileges are read now, not when the request was made.
--
-- Concurrent transactions cannot see each other's requests, so backtrace.enqueue alone cannot keep a role below its limit.
-- The requests beyond the limit, the newest, are refused here.
CREATE FUNCTION backtrace.claim(most int, but bigint[], but_callers oid[])
RETURNS TABLE (id bigint, verb text, caller oid, caller_name name, superuser boolean, granted boolean, backend int, pid int,
    started bigint, settings jsonb, waited double precision)
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    queue   CONSTANT int := 1000;   -- as in backtrace.enqueue
    room    int := most;            -- still to claim
    share   int;                    -- of one role in this round
    found   int;
    rest    oid[];                  -- roles with more requests after this round
    after   jsonb := '{}';          -- role -> the last id claimed
    r       record;
BEGIN
    PERFORM backtrace.guard();
    -- One row for each kind of role, superusers first.  The index leads from role to role.
    FOR r IN
        WITH RECURSIVE asker AS (
            (SELECT q.caller FROM backtrace.request q WHERE q.state = 'queued' ORDER BY q.caller LIMIT 1)
            UNION ALL
            SELECT (SELECT q.caller FROM backtrace.request q
                    WHERE q.state = 'queued' AND q.caller > a.caller ORDER BY q.caller LIMIT 1)
            FROM asker a WHERE a.caller IS NOT NULL)
        SELECT coalesce(p.rolsuper, false) AS super,
               array_agg(a.caller ORDER BY (SELECT min(q.id) FROM backtrace.request q
                                            WHERE q.state = 'queued' AND q.caller = a.caller)) AS callers
        FROM asker a LEFT JOIN pg_authid p ON p.oid = a.caller
        WHERE a.caller <> ALL (but_callers) GROUP BY 1 ORDER BY 1 DESC
    LOOP
        WHILE room > 0 AND r.callers <> '{}' LOOP
            share := greatest(room / cardinality(r.callers), 1);
            rest := '{}';
            FOREACH caller IN ARRAY r.callers LOOP
                EXIT WHEN room = 0;
                granted := NOT EXISTS (SELECT FROM pg_authid p WHERE p.oid = claim.caller)     -- refused for that reason
                    OR has_function_privilege(caller, backtrace.verb_function('request'::text), 'EXECUTE')
                    OR has_function_privilege(caller, backtrace.verb_function('requests'::text), 'EXECUTE');
                superuser := r.super;
                IF NOT r.super AND NOT after ? caller::text THEN
                    PERFORM backtrace.refuse(caller, queue, but);
                END IF;
                found := 0;
                FOR id, verb, caller_name, backend, pid, started, settings, waited IN
                    SELECT q.id, q.verb, q.caller_name, q.backend, q.pid, q.started, q.settings,
                           extract(epoch FROM clock_timestamp() - q.requested_at)::double precision
                    FROM backtrace.request q
                    WHERE q.state = 'queued' AND q.caller = claim.caller AND q.id <> ALL (but)
                      AND q.id > coalesce((after ->> claim.caller::text)::bigint, 0)
                    ORDER BY q.id LIMIT least(share, room) FOR UPDATE SKIP LOCKED
                LOOP
                    found := found + 1;
                    after := jsonb_set(after, ARRAY[caller::text], to_jsonb(id));
                    RETURN NEXT;
                END LOOP;
                room := room - found;
                IF found = share THEN
                    rest := rest || caller;
                END IF;
            END LOOP;
            r.callers := rest;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION backtrace.claim(int, bigint[], oid[]) IS 'for the worker: locks the next requests and returns them';

-- Refuses the newest requests of a role beyond so many.  Requests under way stay.
CREATE FUNCTION backtrace.refuse(asker oid, most int, but bigint[]) RETURNS void
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
    WITH refused AS (
        UPDATE backtrace.request q
        SET state = 'failed', finished_at = clock_timestamp(), sqlstate = '53400',
            message = 'too many backtrace requests are waiting',
            detail = format('A role that is not a superuser may have %s requests waiting.', most), hint = 'Try again later.'
        WHERE q.id = ANY (ARRAY(
                SELECT x.id FROM backtrace.request x
                WHERE x.state = 'queued' AND x.caller = asker
                  AND x.id > (SELECT e.id FROM backtrace.request e WHERE e.state = 'queued' AND e.caller = asker
                              ORDER BY e.id OFFSET most - 1 LIMIT 1)
                ORDER BY x.id LIMIT 10000 FOR UPDATE SKIP LOCKED))
          AND q.state = 'queued' AND q.id <> ALL (but)
        RETURNING q.id)
    SELECT pg_notify('backtrace_done', r.id::text) FROM refused r
$$;
COMMENT ON FUNCTION backtrace.refuse(oid, int, bigint[]) IS 'fails the requests of a role beyond its limit';

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

-- Writes results of claimed requests.  The log entry comes last before the commit: a failure of the commit then leads to
-- a second entry, never to a second result.
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
    PERFORM backtrace.guard();
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
        PERFORM backtrace.log_entry(r.pid::int, r.frames::text), pg_notify('backtrace_done', r.id::text);
    END LOOP;
    RETURN done;
END
$$;
COMMENT ON FUNCTION backtrace.finish(bigint[], text[], double precision[], int[], text[], text[], text[], text[], text[])
    IS 'for the worker: writes results and notifies at commit';


-- Inserts rows of waiting calls, which have ended.
CREATE FUNCTION backtrace.journal(verbs text[], callers oid[], names text[], backends int[], pids int[],
    requested timestamptz[], finished timestamptz[], engines text[], pauses double precision[], depths int[],
    sqlstates text[], messages text[], details text[], hints text[]) RETURNS void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    first bigint;
BEGIN
    PERFORM backtrace.guard();
    FOR attempt IN 1..5 LOOP
        BEGIN
            first := backtrace.first_id(attempt);
            INSERT INTO backtrace.request (id, kind, verb, state, caller, caller_name, backend, pid, requested_at,
                finished_at, engine, pause_us, depth, sqlstate, message, detail, hint)
            OVERRIDING SYSTEM VALUE
            SELECT coalesce(first + a.n, nextval('backtrace.request_id_seq')), 'waiting', a.verb, CASE WHEN a.sqlstate IS NULL THEN 'done' ELSE 'failed' END, a.caller,
                   a.caller_name::name, a.backend, a.pid, a.requested, a.finished, a.engine, a.pause_us, a.depth,
                   a.sqlstate, a.message, a.detail, a.hint
            FROM unnest(verbs, callers, names, backends, pids, requested, finished, engines, pauses, depths, sqlstates,
                        messages, details, hints) WITH ORDINALITY
                 AS a (verb, caller, caller_name, backend, pid, requested, finished, engine, pause_us, depth, sqlstate,
                       message, detail, hint, n);
            EXIT;
        EXCEPTION WHEN unique_violation OR sequence_generator_limit_exceeded THEN
            IF attempt = 5 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION backtrace.journal(text[], oid[], text[], int[], int[], timestamptz[], timestamptz[], text[],
    double precision[], int[], text[], text[], text[], text[]) IS 'for the worker: writes rows of waiting calls';

-- Removes rows of ended requests, the oldest first: rows older than keep, and rows beyond keep_rows.  "most" bounds how
-- many it removes at a time.  A row counts once, and once more for each 8 kB of its stack.  Each role keeps its newest
-- rows, up to an equal share.  depth is the count of a row together with the role's newer rows, and the rows with the
-- least depth stay.  So a role that makes many requests loses its own rows, never the few of another role.
CREATE FUNCTION backtrace.prune(keep interval, keep_rows bigint, most int) RETURNS int
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    removed int;
BEGIN
    PERFORM backtrace.guard();
    WITH finished AS (
        SELECT q.id, q.caller, q.requested_at, 1 + coalesce(pg_column_size(q.backtrace), 0) / 8192 AS weight
        FROM backtrace.request q WHERE q.state <> 'queued'
    ), own AS (
        SELECT f.*, sum(f.weight) OVER (PARTITION BY f.caller ORDER BY f.id DESC) AS depth FROM finished f
    ), every AS (
        SELECT o.*, sum(o.weight) OVER (ORDER BY o.depth, o.id DESC) AS total FROM own o
    )
    DELETE FROM backtrace.request q
    WHERE q.id = ANY (ARRAY(
        SELECT e.id FROM every e WHERE e.total > keep_rows OR e.requested_at < clock_timestamp() - keep
        ORDER BY e.id LIMIT most));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
COMMENT ON FUNCTION backtrace.prune(interval, bigint, int) IS 'for the worker: removes old rows and returns their number';

-- Samples as text ------------------------------------------------------------------------------------------------------------

-- The worker adds up the samples of this call.  The setting passes the name of the call, the number of the sample (0: the
-- text), the longest time until the next request, and the number of lines to the worker.  The clause SET restores it.
CREATE FUNCTION @extschema@.pg_backtrace_summary_text(samples int DEFAULT 10, "interval" interval DEFAULT '100 ms',
    pids int[] DEFAULT NULL, top int DEFAULT 20)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.trace = ''
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a       text[];
    b       text[];             -- the answer to the last request
    seconds double precision := extract(epoch FROM "interval");
    run     uuid := gen_random_uuid();
    step    text;
    taken   int := 0;           -- samples
    told    timestamptz := clock_timestamp();
BEGIN
    IF samples IS NULL OR samples NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'number of samples must be between 1 and 100000';
    ELSIF seconds IS NULL OR NOT seconds BETWEEN 0 AND 3600 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'interval between samples must be between 0 and 1 hour';
    ELSIF top IS NULL OR top NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'number of lines must be between 1 and 1000';
    ELSIF pids IS NOT NULL AND (SELECT count(p) FROM unnest(pids) p) = 0 THEN
        RETURN NULL; -- a request that names no process would be about all
    END IF;
    FOR i IN 1..samples LOOP
        step := set_config('pg_stat_backtrace.trace', concat_ws(' ', run, i, ceil(seconds * 1.5), top), true);
        a := '{}';
        LOOP
            a := backtrace.ask(seal, 'summary_text'::text, coalesce(pids, '{}')::int[], a);
            EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
        END LOOP;
        EXIT WHEN a[1] <> '';
        taken := i;
        IF clock_timestamp() NOT BETWEEN told AND told + interval '1 second' THEN
            told := clock_timestamp();
            RAISE NOTICE USING MESSAGE = format('sample %s of %s', i, samples);
        END IF;
        EXIT WHEN i < samples AND pg_sleep(seconds * (0.5 + random())) IS NULL;    -- never, see pg_backtrace_summary
    END LOOP;
    IF taken > 0 THEN
        step := set_config('pg_stat_backtrace.trace', concat_ws(' ', run, 0, 0, top), true);
        b := '{}';
        LOOP
            b := backtrace.ask(seal, 'summary_text'::text, '{}'::int[], b);
            EXIT WHEN b[1] <> 'wait' OR pg_sleep(b[2]::double precision) IS NULL;
        END LOOP;
        IF a[1] <> '' AND b[1] = '' THEN
            IF a[4] || a[5] = '' THEN
                RAISE NOTICE USING MESSAGE = format('sampling ended after %s of %s samples: %s', taken, samples, a[3]);
            ELSE
                RAISE NOTICE USING MESSAGE = format('sampling ended after %s of %s samples: %s', taken, samples, a[3]),
                    DETAIL = concat_ws(' ', nullif(a[4], ''), nullif(a[5], ''));
            END IF;
        END IF;
        a := b;
    END IF;
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
COMMENT ON FUNCTION @extschema@.pg_backtrace_summary_text(int, interval, int[], int)
    IS 'samples processes repeatedly, and returns totals by function and by PL/pgSQL line and a tree of calls';

-- Wait events ---------------------------------------------------------------------------------------------------------

-- Names and columns equal those of the proposed patch for PostgreSQL; method is an addition.  A role without the
-- privileges of pg_read_all_stats gets the rows of its backends only.

CREATE FUNCTION @extschema@.pg_stat_get_wait_event_timing(OUT pid int, OUT backend_type text, OUT backend_id int,
    OUT wait_event_type text, OUT wait_event text, OUT calls bigint, OUT total_time_ms double precision,
    OUT avg_time_us double precision, OUT max_time_us double precision, OUT histogram bigint[], OUT method text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 500
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a  text[];
    verb text := CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN 'waits' ELSE 'waits_own' END;
BEGIN
    a := '{}';
    LOOP
        a := backtrace.ask(seal, verb, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = 'NOTICE' THEN -- about the rows
        RAISE NOTICE USING MESSAGE = a[3], HINT = a[5];
        a[1] := '';
    END IF;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT c[1]::int, CASE WHEN c[1] IS NULL THEN 'ended processes' ELSE p.backend_type END, c[2]::int, c[3],
                   c[4], c[5]::bigint, c[6]::double precision, c[7]::double precision, c[8]::double precision,
                   c[9]::bigint[], c[10]
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
                 LEFT JOIN pg_stat_activity p ON p.pid = c[1]::int
            ORDER BY u.n;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        CASE a[5] WHEN '' THEN RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
             ELSE RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
        END CASE;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_stat_get_wait_event_timing()
    IS 'the rows of pg_stat_wait_event_timing';

CREATE VIEW @extschema@.pg_stat_wait_event_timing AS
SELECT pid, backend_type, backend_id, wait_event_type, wait_event, calls, total_time_ms, avg_time_us, max_time_us,
       histogram, method
FROM @extschema@.pg_stat_get_wait_event_timing();
COMMENT ON VIEW @extschema@.pg_stat_wait_event_timing
    IS 'how often and how long each process waited for each event; pid is NULL for all ended processes together';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing.backend_id IS 'index of the process in shared memory';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing.calls
    IS 'number of waits; NULL if the method counts none; one wait that sleeps or calls the kernel again counts again';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing.total_time_ms
    IS 'time of all waits and of the one in progress; an estimate if the method is sampled';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing.histogram
    IS 'number of waits by duration, see pg_wait_event_timing_histogram_buckets';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing.method
    IS 'exact: system calls are timed; blocked: sleeps are timed; sampled: the total is an estimate';

CREATE VIEW @extschema@.pg_wait_event_timing_histogram_buckets AS
SELECT i AS bucket_idx, CASE i WHEN 0 THEN 0 ELSE 1::bigint << (9 + i) END AS lower_ns,
       CASE i WHEN 31 THEN NULL ELSE 1::bigint << (10 + i) END AS upper_ns,
       CASE i WHEN 0 THEN '< 1 us' WHEN 31 THEN '>= 18 min'
           ELSE '>= ' || CASE WHEN i <= 10 THEN (1 << (i - 1)) || ' us' WHEN i <= 20 THEN (1 << (i - 11)) || ' ms'
               ELSE (1 << (i - 21)) || ' s' END END AS label
FROM generate_series(0, 31) i;
COMMENT ON VIEW @extschema@.pg_wait_event_timing_histogram_buckets
    IS 'the 32 ranges of a histogram: element bucket_idx + 1 of the array counts waits from lower_ns to below upper_ns';
COMMENT ON COLUMN @extschema@.pg_wait_event_timing_histogram_buckets.label
    IS 'the lower limit, with 1 us for 1024 ns, 1 ms for 2^20 ns and 1 s for 2^30 ns';

CREATE FUNCTION @extschema@.pg_stat_get_wait_event_timing_overflow(OUT pid int, OUT lost bigint,
    OUT overflow_count bigint, OUT reset_count bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 100
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a  text[];
    verb text := CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN 'waits_lost' ELSE 'waits_lost_own' END;
BEGIN
    a := '{}';
    LOOP
        a := backtrace.ask(seal, verb, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = 'NOTICE' THEN -- about the rows
        RAISE NOTICE USING MESSAGE = a[3], HINT = a[5];
        a[1] := '';
    END IF;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT c[1]::int, c[2]::bigint, c[3]::bigint, c[4]::bigint
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
            ORDER BY u.n;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        CASE a[5] WHEN '' THEN RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
             ELSE RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
        END CASE;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_stat_get_wait_event_timing_overflow()
    IS 'the rows of pg_stat_wait_event_timing_overflow';

CREATE VIEW @extschema@.pg_stat_wait_event_timing_overflow AS
SELECT pid, lost, overflow_count, reset_count
FROM @extschema@.pg_stat_get_wait_event_timing_overflow();
COMMENT ON VIEW @extschema@.pg_stat_wait_event_timing_overflow
    IS 'what pg_stat_wait_event_timing lacks, for each process; pid is NULL for all processes together';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing_overflow.lost
    IS 'number of ended processes whose figures were lost';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing_overflow.overflow_count
    IS 'number of waits that were not counted because the process waited for more than 64 events';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing_overflow.reset_count
    IS 'how often the figures of the process were reset';

CREATE FUNCTION @extschema@.pg_stat_get_wait_event_timing_by_query(OUT query_id bigint,
    OUT wait_event_type text, OUT wait_event text, OUT calls bigint, OUT total_time_ms double precision,
    OUT share double precision, OUT method text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 100
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'waits_queries'::text, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = 'NOTICE' THEN -- about the rows
        RAISE NOTICE USING MESSAGE = a[3], HINT = a[5];
        a[1] := '';
    END IF;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT c[1]::bigint, c[2], c[3], c[4]::bigint, c[5]::double precision, c[6]::double precision, c[7]
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
            ORDER BY c[5]::double precision DESC, u.n;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        CASE a[5] WHEN '' THEN RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
             ELSE RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
        END CASE;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_stat_get_wait_event_timing_by_query()
    IS 'the rows of pg_stat_wait_event_timing_by_query';

CREATE VIEW @extschema@.pg_stat_wait_event_timing_by_query AS
SELECT query_id, wait_event_type, wait_event, calls, total_time_ms, share, method
FROM @extschema@.pg_stat_get_wait_event_timing_by_query();
COMMENT ON VIEW @extschema@.pg_stat_wait_event_timing_by_query
    IS 'how often and how long the executions of each query waited for each event; needs compute_query_id';
COMMENT ON COLUMN @extschema@.pg_stat_wait_event_timing_by_query.share
    IS 'estimated part of the time of the query''s executions; NULL until one has been seen to end';

CREATE FUNCTION @extschema@.pg_get_backend_wait_event_trace(pid int, OUT seq bigint, OUT "timestamp" timestamptz,
    OUT kind text, OUT wait_event_type text, OUT wait_event text, OUT duration_us double precision, OUT query_id bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 1000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'waits_records'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = 'NOTICE' THEN -- about the rows
        RAISE NOTICE USING MESSAGE = a[3], HINT = a[5];
        a[1] := '';
    END IF;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT c[1]::bigint, c[2]::timestamptz, c[3], c[4], c[5], c[6]::double precision, c[7]::bigint
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
            ORDER BY u.n;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        CASE a[5] WHEN '' THEN RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
             ELSE RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
        END CASE;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_backend_wait_event_trace(int)
    IS 'newest waits of a traced process, starts and ends of its queries and, if it is traced alone, of its executor';

CREATE FUNCTION @extschema@.pg_stat_reset_wait_event_timing(pid int) RETURNS void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'waits_reset'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        CASE a[5] WHEN '' THEN RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
             ELSE RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
        END CASE;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_stat_reset_wait_event_timing(int)
    IS 'sets the figures of a process in pg_stat_wait_event_timing to zero';

CREATE FUNCTION @extschema@.pg_stat_reset_wait_event_timing_all() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'waits_reset_all'::text, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        CASE a[5] WHEN '' THEN RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
             ELSE RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
        END CASE;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_stat_reset_wait_event_timing_all()
    IS 'sets all figures in pg_stat_wait_event_timing and its companions to zero';

CREATE FUNCTION @extschema@.pg_wait_event_capture(level text, pid int DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a  text[];
    verb    text;
    targets int[] := CASE WHEN pid IS NULL THEN '{}' ELSE ARRAY[pid] END;
BEGIN
    verb := CASE WHEN pid IS NULL AND level IN ('off', 'stats') THEN 'waits_' || level
                 WHEN level = 'trace' THEN 'waits_trace'
                 WHEN pid IS NOT NULL AND level IN ('off', 'stats') THEN 'waits_untrace' END;
    IF verb IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('invalid level %L', level),
            HINT = 'Use off, stats or trace.';
    ELSIF pid <= 0 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('invalid PID %s', pid),
            HINT = 'Leave it out to set the level of all processes.';
    END IF;
    a := '{}';
    LOOP
        a := backtrace.ask(seal, verb, targets, a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        CASE a[5] WHEN '' THEN RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
             ELSE RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
        END CASE;
        RETURN;
    END IF;
    CASE WHEN a[4] = '' AND a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3];
         WHEN a[4] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], HINT = a[5];
         WHEN a[5] = '' THEN RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4];
         ELSE RAISE EXCEPTION USING ERRCODE = a[2], MESSAGE = a[3], DETAIL = a[4], HINT = a[5];
    END CASE;
END
$$;
COMMENT ON FUNCTION @extschema@.pg_wait_event_capture(text, int)
    IS 'off, stats or trace for all processes; with a PID, trace starts a trace of one and the others end it';

-- Memory contexts --------------------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_memory_contexts(pid int, OUT name text, OUT ident text, OUT type text, OUT parent text,
    OUT level int, OUT path int[], OUT total_bytes bigint, OUT total_nblocks bigint, OUT free_bytes bigint,
    OUT free_chunks bigint, OUT used_bytes bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 200
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'memory'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        -- The first record is a warning, which is empty if there is none.
        IF split_part(a[6], E'\x1e', 1) <> '' THEN
            RAISE WARNING USING MESSAGE = split_part(a[6], E'\x1e', 1);
        END IF;
        RETURN QUERY
            SELECT c[1], c[2], c[3], c[4], c[5]::int, c[6]::int[], c[7]::bigint, c[8]::bigint, c[9]::bigint, c[10]::bigint,
                   c[11]::bigint
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
            WHERE u.n > 1 ORDER BY u.n;
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
COMMENT ON FUNCTION @extschema@.pg_get_memory_contexts(int)
    IS 'memory contexts of the PostgreSQL process with this PID, with the columns of pg_backend_memory_contexts';

-- Plans that run ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_running_plan(pid int, format text = 'text') RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
    verb text;
BEGIN
    IF lower(format) NOT IN ('text', 'json') THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'format must be text or json';
    END IF;
    verb := CASE lower(format) WHEN 'json' THEN 'plan_json' ELSE 'plan' END;
    LOOP
        a := backtrace.ask(seal, verb, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
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
COMMENT ON FUNCTION @extschema@.pg_get_running_plan(int, text)
    IS 'plan that the process with this PID executes now, with the node that runs: format text or json';

-- History ------------------------------------------------------------------------------------------------------------------

-- The setting passes the span to the worker, and the clause SET restores it.
CREATE FUNCTION @extschema@.pg_backtrace_history(since timestamptz, until timestamptz DEFAULT now(), pids int[] DEFAULT NULL,
    OUT "time" timestamptz, OUT pid int, OUT leader_pid int, OUT backend_type text, OUT database_name text,
    OUT user_name text, OUT application_name text, OUT state text, OUT wait_event_type text, OUT wait_event text,
    OUT blocked_by int[], OUT lock text, OUT phrase text, OUT plpgsql text, OUT transaction_age interval,
    OUT query_age interval, OUT query_id bigint, OUT query text, OUT stack_id bigint, OUT ended boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 1000
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.history = ''
AS $$
DECLARE
    seal  backtrace.token.seal%TYPE := 0;
    a     text[] := '{}';
    first text;
BEGIN
    IF since IS NULL OR until IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'begin and end of a history must not be null';
    ELSIF since >= until THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the end of a history must be after its begin';
    ELSIF pids IS NOT NULL AND (SELECT count(p) FROM unnest(pids) p) = 0 THEN
        RETURN; -- a request that names no process would be about all
    END IF;
    -- Nothing is recorded before 1970 or after 9999, and the request has microseconds since 1970.
    since := least(greatest(since, '1970-01-01 00:00:00+00'), '9999-12-30 00:00:00+00');
    until := least(greatest(until, '1970-01-02 00:00:00+00'), '9999-12-31 00:00:00+00');
    first := set_config('pg_stat_backtrace.history',
        floor(extract(epoch FROM since) * 1000000)::bigint || ' ' || ceil(extract(epoch FROM until) * 1000000)::bigint, true);
    LOOP
        a := backtrace.ask(seal, 'history'::text, coalesce(pids, '{}')::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        -- The first record is a notice, which is empty if there is none.
        first := split_part(a[6], E'\x1e', 1);
        IF first <> '' THEN
            RAISE NOTICE USING MESSAGE = first;
        END IF;
        RETURN QUERY
            SELECT 'epoch'::timestamptz + c[1]::bigint * interval '1 microsecond', c[2]::int, c[3]::int, c[4], c[5], c[6], c[7],
                   c[8], c[9], c[10], c[11]::int[], c[12], c[13], c[14], c[15]::double precision * interval '1 second',
                   c[16]::double precision * interval '1 second', c[17]::bigint, c[18], c[19]::bigint, c[20]::boolean
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
            WHERE u.n > 1 ORDER BY u.n;
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
COMMENT ON FUNCTION @extschema@.pg_backtrace_history(timestamptz, timestamptz, int[])
    IS 'what the sessions did at a former time, as the worker has recorded it, at most 20000 rows: of all processes, or of those with these PIDs';

-- Sums of the history, recorded stacks, and incidents -------------------------------------------------------------------------

-- Reads the worker's answer: a record for each row, below a record with a notice, which is empty if there is none.
CREATE FUNCTION backtrace.recorded(record_list text) RETURNS SETOF text[]
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    notice text := split_part(record_list, E'\x1e', 1);
BEGIN
    IF notice <> '' THEN
        RAISE NOTICE USING MESSAGE = notice;
    END IF;
    RETURN QUERY
        SELECT string_to_array(u.record, E'\x1d', '')
        FROM unnest(string_to_array(record_list, E'\x1e')) WITH ORDINALITY u (record, n)
        WHERE u.n > 1 ORDER BY u.n;
END
$$;
COMMENT ON FUNCTION backtrace.recorded(text) IS 'reads the worker''s answer about recorded data';

CREATE FUNCTION @extschema@.pg_backtrace_history_summary(since timestamptz, until timestamptz DEFAULT now(),
    bucket interval DEFAULT '1 minute', OUT "time" timestamptz, OUT backend_type text, OUT wait_event_type text,
    OUT wait_event text, OUT database_name text, OUT user_name text, OUT query_id bigint, OUT query text,
    OUT samples bigint, OUT active_seconds double precision, OUT stack_id bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 1000
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.history = ''
AS $$
DECLARE
    seal  backtrace.token.seal%TYPE := 0;
    a     text[] := '{}';
    first text;
BEGIN
    IF since IS NULL OR until IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'begin and end of a history must not be null';
    ELSIF since >= until THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the end of a history must be after its begin';
    ELSIF bucket IS NULL OR bucket < interval '1 second' OR bucket > interval '366 days' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'a bucket must be between 1 second and 366 days long';
    END IF;
    -- Nothing is recorded before 1970 or after 9999, and the request has microseconds since 1970.
    since := least(greatest(since, '1970-01-01 00:00:00+00'), '9999-12-30 00:00:00+00');
    until := least(greatest(until, '1970-01-02 00:00:00+00'), '9999-12-31 00:00:00+00');
    first := set_config('pg_stat_backtrace.history',
        floor(extract(epoch FROM since) * 1000000)::bigint || ' ' || ceil(extract(epoch FROM until) * 1000000)::bigint
        || ' ' || least(extract(epoch FROM bucket) * 1000000, 31622400000000)::bigint, true);
    LOOP
        a := backtrace.ask(seal, 'history_summary'::text, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT 'epoch'::timestamptz + c[1]::bigint * interval '1 microsecond', c[2], c[3], c[4], c[5], c[6], c[7]::bigint,
                   c[8], c[9]::bigint, c[10]::double precision, c[11]::bigint
            FROM backtrace.recorded(a[6]::text) r (c);
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
COMMENT ON FUNCTION @extschema@.pg_backtrace_history_summary(timestamptz, timestamptz, interval)
    IS 'what sessions did at a former time, added up by bucket, wait event, query, database, user and type, at most 20000 rows';

CREATE FUNCTION @extschema@.pg_backtrace_stack(id bigint) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.history = ''
AS $$
DECLARE
    seal  backtrace.token.seal%TYPE := 0;
    a     text[] := '{}';
    first text := set_config('pg_stat_backtrace.history', id::text, true);
BEGIN
    LOOP
        a := backtrace.ask(seal, 'stack'::text, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN (SELECT r.c[1] FROM backtrace.recorded(a[6]::text) r (c));
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
COMMENT ON FUNCTION @extschema@.pg_backtrace_stack(bigint)
    IS 'the functions of a recorded stack, innermost first; NULL if the history does not have it';

CREATE FUNCTION @extschema@.pg_backtrace_incidents(OUT id text, OUT "time" timestamptz, OUT rule text, OUT cause text,
    OUT summary text, OUT file text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 100
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'incidents'::text, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT c[1], 'epoch'::timestamptz + c[2]::bigint * interval '1 microsecond', c[3], c[4], c[5], c[6]
            FROM backtrace.recorded(a[6]::text) r (c);
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
COMMENT ON FUNCTION @extschema@.pg_backtrace_incidents() IS 'the incidents that the worker has recorded, the newest first';

CREATE VIEW @extschema@.pg_backtrace_incidents AS
SELECT id, "time", rule, cause, summary, file FROM @extschema@.pg_backtrace_incidents();
COMMENT ON VIEW @extschema@.pg_backtrace_incidents IS 'the incidents that the worker has recorded, the newest first';
COMMENT ON COLUMN @extschema@.pg_backtrace_incidents.cause
    IS 'the cause in words; pg_backtrace_incident(id) has its key';
COMMENT ON COLUMN @extschema@.pg_backtrace_incidents.summary IS 'the stall in one sentence, as pg_stat_backtrace incident list prints it';
COMMENT ON COLUMN @extschema@.pg_backtrace_incidents.file IS 'the HTML page, on the host of the worker';

CREATE FUNCTION @extschema@.pg_backtrace_incident(id text) RETURNS json
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.history = ''
AS $$
DECLARE
    seal  backtrace.token.seal%TYPE := 0;
    a     text[] := '{}';
    first text;
BEGIN
    IF length(id) > 80 OR id = '' THEN
        RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = 'there is no such incident',
            HINT = 'The view pg_backtrace_incidents lists the incidents.';
    END IF;
    first := set_config('pg_stat_backtrace.history', id, true);
    LOOP
        a := backtrace.ask(seal, 'incident'::text, '{}'::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN (SELECT r.c[1]::json FROM backtrace.recorded(a[6]::text) r (c));
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
COMMENT ON FUNCTION @extschema@.pg_backtrace_incident(text) IS 'the JSON form of an incident, with names and texts';

CREATE FUNCTION @extschema@.pg_get_backtrace_to_file(pid int, path text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.history = ''
AS $$
DECLARE
    seal  backtrace.token.seal%TYPE := 0;
    a     text[] := '{}';
    first text := set_config('pg_stat_backtrace.history', left(path, 500), true);   -- a longer path is refused as well
BEGIN
    LOOP
        a := backtrace.ask(seal, 'to_file'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
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
COMMENT ON FUNCTION @extschema@.pg_get_backtrace_to_file(int, text)
    IS 'writes the call stack of the PostgreSQL process with this PID to a new file below the worker''s directory of incidents';

-- On-call staff ---------------------------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_backtrace_on_call(pid int, OUT phrase text, OUT backtrace text, OUT names_hidden boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'oncall'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY SELECT c[1], c[2], c[3]::boolean FROM (SELECT string_to_array(a[6], E'\x1d', '')) s (c);
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
COMMENT ON FUNCTION @extschema@.pg_get_backtrace_on_call(int)
    IS 'for on-call staff: call stack of any process of the server, without texts and names if it does not run for an ordinary role';

-- Processes that block each other -------------------------------------------------------------------------------------------

-- Processes that block others and do not wait themselves come first, each followed by the processes behind it.  A path has
-- the PIDs from such a root to a process, in ten digits each, so that paths sort in this order.  Processes that block each
-- other in a circle, until deadlock_timeout ends one, have no root: the lowest PID of the circle takes its place.  The leader
-- of a parallel group waits if one of its workers does, since pg_blocking_pids returns leaders.
CREATE FUNCTION @extschema@.pg_get_blocking_backtraces(OUT level int, OUT pid int, OUT blocked_by int[],
    OUT lock_type text, OUT lock_mode text, OUT object text, OUT wait_age interval, OUT query_age interval,
    OUT transaction_age interval, OUT user_name name, OUT application_name text, OUT backend_type text, OUT state text,
    OUT wait_event_type text, OUT wait_event text, OUT query text, OUT backtrace text, OUT error text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY INVOKER ROWS 20
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    seal     backtrace.token.seal%TYPE := 0;
    a        text[] := '{}';
    blocked  int[];     -- an element for each pair: the process that waits
    blockers int[];     -- and the process that blocks it
    members  int[] := '{}';
    paths    text[] := '{}';
    present  int[];     -- found in this step
    places   text[];
BEGIN
    PERFORM pg_stat_clear_snapshot();
    SELECT coalesce(array_agg(e.waiter), '{}'), coalesce(array_agg(e.blocker), '{}') INTO blocked, blockers
    FROM (WITH pairs AS MATERIALIZED (
              SELECT w.pid AS waiter, b AS blocker
              FROM (SELECT DISTINCT l.pid FROM pg_locks l WHERE NOT l.granted AND l.pid IS NOT NULL) w,
                   unnest(pg_blocking_pids(w.pid)) b)
          SELECT p.waiter, p.blocker FROM pairs p
          UNION
          SELECT s.leader_pid, p.blocker FROM pairs p JOIN pg_stat_activity s ON s.pid = p.waiter
          WHERE s.leader_pid <> p.blocker) e;
    SELECT array_agg(r.pid), array_agg(lpad(r.pid::text, 10, '0')) INTO present, places
    FROM (SELECT b AS pid FROM unnest(blockers) b EXCEPT SELECT w FROM unnest(blocked) w) r;
    LOOP
        IF present IS NULL THEN
            SELECT ARRAY[min(w)], ARRAY[lpad(min(w)::text, 10, '0')] INTO present, places
            FROM unnest(blocked) w LEFT JOIN unnest(members) m ON m = w WHERE m IS NULL HAVING count(*) > 0;
            EXIT WHEN present IS NULL;
        END IF;
        members := members || present;
        paths := paths || places;
        SELECT array_agg(n.waiter), array_agg(n.place) INTO present, places
        FROM (SELECT DISTINCT ON (e.waiter) e.waiter, p.place || lpad(e.waiter::text, 10, '0') AS place
              FROM unnest(blocked, blockers) e (waiter, blocker)
                   JOIN unnest(present, places) p (pid, place) ON p.pid = e.blocker
                   LEFT JOIN unnest(members) m ON m = e.waiter
              WHERE m IS NULL
              ORDER BY e.waiter, p.place) n;
    END LOOP;
    IF cardinality(members) = 0 THEN
        RETURN;
    END IF;
    LOOP
        a := backtrace.ask(seal, 'blocking'::text, array_remove(members, 0)::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY
            SELECT (length(m.path) / 10 - 1)::int, m.pid,
                   (SELECT array_agg(DISTINCT e.blocker ORDER BY e.blocker) FROM unnest(blocked, blockers) e (waiter, blocker)
                    WHERE e.waiter = m.pid),
                   l.locktype, l.mode,
                   CASE WHEN l.relation IS NOT NULL AND l.database IN (0, d.oid) THEN
                            concat('row (' || l.page || ',' || l.tuple || ') of ', CASE WHEN l.tuple IS NULL
                                THEN 'page ' || l.page || ' of ' END, l.relation::regclass)
                        WHEN l.relation IS NOT NULL THEN
                            concat('relation ', l.relation, ' of database ', (SELECT o.datname FROM pg_database o WHERE o.oid = l.database))
                        WHEN l.transactionid IS NOT NULL THEN concat('transaction ', l.transactionid)
                        WHEN l.virtualxid IS NOT NULL THEN concat('virtual transaction ', l.virtualxid)
                        WHEN l.locktype = 'advisory' THEN concat(l.classid, ',', l.objid)
                        WHEN l.classid IS NOT NULL THEN concat(l.classid::regclass, ' ', l.objid)
                   END,
                   statement_timestamp() - l.waitstart, statement_timestamp() - s.query_start,
                   statement_timestamp() - s.xact_start, s.usename, s.application_name, coalesce(s.backend_type, b.backend_type),
                   s.state, s.wait_event_type, s.wait_event, s.query, b.backtrace,
                   CASE WHEN m.pid = 0 THEN 'a prepared transaction' ELSE b.error END
            FROM unnest(members, paths) m (pid, path)
                 LEFT JOIN backtrace.answers(a[6]::text) b ON b.pid = m.pid
                 LEFT JOIN pg_stat_activity s ON s.pid = m.pid
                 LEFT JOIN LATERAL (SELECT k.* FROM pg_locks k WHERE NOT k.granted AND k.pid = m.pid LIMIT 1) l ON true
                 LEFT JOIN pg_database d ON d.datname = current_database()
            ORDER BY m.path;
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
COMMENT ON FUNCTION @extschema@.pg_get_blocking_backtraces()
    IS 'processes that block others, each followed by the processes that wait for it, with their call stacks';

-- Calls of functions -------------------------------------------------------------------------------------------------------

-- The setting passes the function's name to the worker, and the clause SET restores it.  A trace ends by itself when
-- it is no longer queried, for example after a cancel.
CREATE FUNCTION @extschema@.pg_trace_function(name text, pid int, duration interval DEFAULT '10 s',
    OUT count bigint, OUT stack text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 20
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.trace = ''
AS $$
DECLARE
    seal    backtrace.token.seal%TYPE := 0;
    a       text[];
    seconds double precision := extract(epoch FROM duration);
    verb    text := 'functrace';
    first   text;
BEGIN
    IF NOT seconds BETWEEN 0.001 AND 3600 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'duration of a trace must be between 1 ms and 1 hour';
    ELSIF length(name) > 1000 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'the name of a function to trace may have at most 1000 characters';
    END IF;
    first := set_config('pg_stat_backtrace.trace', round(seconds * 1000)::bigint || ' ' || name, true);
    LOOP
        a := '{}';
        LOOP
            a := backtrace.ask(seal, verb, ARRAY[pid]::int[], a);
            EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
        END LOOP;
        EXIT WHEN a[1] <> '';
        first := split_part(a[6], E'\x1e', 1);
        EXIT WHEN split_part(first, E'\x1d', 1) <> 'running' OR pg_sleep(0.2) IS NULL;
        verb := 'functrace_poll';
    END LOOP;
    IF a[1] = '' THEN
        IF split_part(first, E'\x1d', 2) <> '' THEN
            RAISE WARNING USING MESSAGE = split_part(first, E'\x1d', 2);
        END IF;
        RETURN QUERY
            SELECT c[1]::bigint, nullif(c[2], '')
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d')) s (c)
            WHERE u.n > 1 ORDER BY u.n;
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
COMMENT ON FUNCTION @extschema@.pg_trace_function(text, int, interval)
    IS 'counts the calls of a function of the server process with this PID, or of all if it is 0, for a time: number of calls with each stack; for superusers';

-- What can be requested ----------------------------------------------------------------------------------------------------

-- These bodies are parsed now and hold the functions by oid: a later function of the same name is not found.  They are no
-- views, because roles with pg_write_all_data can lock any view, and all calls would wait.
CREATE FUNCTION backtrace.verb_function(verb text) RETURNS oid
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE verb
        WHEN 'get' THEN '@extschema@.pg_get_backtrace(int)'::regprocedure
        WHEN 'log' THEN '@extschema@.pg_log_backtrace(int)'::regprocedure
        WHEN 'logs' THEN '@extschema@.pg_log_backtrace(int[])'::regprocedure
        WHEN 'frames' THEN '@extschema@.pg_get_backtrace_frames(int)'::regprocedure
        WHEN 'blocking' THEN '@extschema@.pg_get_blocking_backtraces(int)'::regprocedure
        WHEN 'barrier' THEN '@extschema@.pg_get_blocking_backtraces(int)'::regprocedure
        WHEN 'summary' THEN '@extschema@.pg_backtrace_summary(int, interval, int[])'::regprocedure
        WHEN 'summary_text' THEN '@extschema@.pg_backtrace_summary_text(int, interval, int[], int)'::regprocedure
        WHEN 'memory' THEN '@extschema@.pg_get_memory_contexts(int)'::regprocedure
        WHEN 'plan' THEN '@extschema@.pg_get_running_plan(int, text)'::regprocedure
        WHEN 'plan_json' THEN '@extschema@.pg_get_running_plan(int, text)'::regprocedure
        WHEN 'history' THEN '@extschema@.pg_backtrace_history(timestamptz, timestamptz, int[])'::regprocedure
        WHEN 'history_summary' THEN '@extschema@.pg_backtrace_history_summary(timestamptz, timestamptz, interval)'::regprocedure
        WHEN 'stack' THEN '@extschema@.pg_backtrace_stack(bigint)'::regprocedure
        WHEN 'incidents' THEN '@extschema@.pg_backtrace_incidents()'::regprocedure
        WHEN 'incident' THEN '@extschema@.pg_backtrace_incident(text)'::regprocedure
        WHEN 'oncall' THEN '@extschema@.pg_get_backtrace_on_call(int)'::regprocedure
        WHEN 'to_file' THEN '@extschema@.pg_get_backtrace_to_file(int, text)'::regprocedure
        WHEN 'functrace' THEN '@extschema@.pg_trace_function(text, int, interval)'::regprocedure
        WHEN 'functrace_poll' THEN '@extschema@.pg_trace_function(text, int, interval)'::regprocedure
        WHEN 'request' THEN '@extschema@.pg_request_backtrace(int, boolean)'::regprocedure
        WHEN 'requests' THEN '@extschema@.pg_request_backtrace(int[], boolean)'::regprocedure
        WHEN 'waits' THEN '@extschema@.pg_stat_get_wait_event_timing()'::regprocedure
        WHEN 'waits_own' THEN '@extschema@.pg_stat_get_wait_event_timing()'::regprocedure
        WHEN 'waits_lost' THEN '@extschema@.pg_stat_get_wait_event_timing_overflow()'::regprocedure
        WHEN 'waits_lost_own' THEN '@extschema@.pg_stat_get_wait_event_timing_overflow()'::regprocedure
        WHEN 'waits_queries' THEN '@extschema@.pg_stat_get_wait_event_timing_by_query()'::regprocedure
        WHEN 'waits_records' THEN '@extschema@.pg_get_backend_wait_event_trace(int)'::regprocedure
        WHEN 'waits_reset' THEN '@extschema@.pg_stat_reset_wait_event_timing(int)'::regprocedure
        WHEN 'waits_reset_all' THEN '@extschema@.pg_stat_reset_wait_event_timing_all()'::regprocedure
        WHEN 'waits_off' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
        WHEN 'waits_stats' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
        WHEN 'waits_trace' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
        WHEN 'waits_untrace' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
    END::oid;
END;
COMMENT ON FUNCTION backtrace.verb_function(text)
    IS 'the function whose EXECUTE privilege a request with this verb needs; NULL if there is none';

CREATE FUNCTION backtrace.may_ask(caller oid, verb text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE
        WHEN verb = 'stat' THEN has_table_privilege(caller, '@extschema@.pg_stat_backtrace'::regclass, 'SELECT')
        ELSE has_function_privilege(caller, backtrace.verb_function(verb), 'EXECUTE')
            -- These show figures, names and texts of other roles' processes.
            AND (verb NOT IN ('waits', 'waits_lost', 'waits_queries', 'history', 'history_summary', 'stack', 'incidents', 'incident')
                OR pg_has_role(caller, 'pg_read_all_stats'::name, 'USAGE'))
    END;
END;
COMMENT ON FUNCTION backtrace.may_ask(oid, text) IS 'whether this role may make requests with this verb';

CREATE FUNCTION backtrace.caller_of(inner_function text) RETURNS regprocedure
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE inner_function
        WHEN 'call' THEN 'backtrace.ask(backtrace.seal, text, int[], text[])'::regprocedure
        WHEN 'enqueue' THEN 'backtrace.queue(backtrace.seal, text, int[], boolean)'::regprocedure
    END;
END;
COMMENT ON FUNCTION backtrace.caller_of(text) IS 'the only function that may call this one';

-- Privileges -------------------------------------------------------------------------------------------------------------

-- Default privileges may have given any role any privilege on the new objects.  With TRIGGER on backtrace.request, a
-- role's trigger would run as the extension's owner.  So the script first removes every entry of every access control
-- list except the owner's.  An update keeps the owner's grants on the functions and the view for users, and on the
-- functions for the worker.  The objects about wait events and memory contexts are new in 1.2, so they have no grants
-- to keep; the same holds for pg_get_blocking_backtraces without a PID.  pg_get_backtrace_frames is new, too, and the update restores its grants.
DO $$
DECLARE
    keep      CONSTANT boolean := false;
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

-- The random name, see the identity of the caller.  Last: the scripts name the type.
DO $$
BEGIN
    EXECUTE format('ALTER DOMAIN backtrace.seal RENAME TO %I', 'seal_' || replace(gen_random_uuid()::text, '-', ''));
END
$$;

REVOKE ALL ON @extschema@.pg_stat_backtrace FROM PUBLIC;
