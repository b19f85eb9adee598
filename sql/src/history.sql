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
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_backtrace_history(timestamptz, timestamptz, int[])
    IS 'what the sessions did at a former time, as the worker has recorded it, at most 20000 rows: of all processes, or of those with these PIDs';
