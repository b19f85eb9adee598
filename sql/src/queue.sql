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
    -- @include raise.sql
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
    -- @include raise.sql
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
