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

