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
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_trace_function(text, int, interval)
    IS 'counts the calls of a function of the server process with this PID, or of all if it is 0, for a time: number of calls with each stack; for superusers';
