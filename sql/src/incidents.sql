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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_backtrace_to_file(int, text)
    IS 'writes the call stack of the PostgreSQL process with this PID to a new file below the worker''s directory of incidents';
