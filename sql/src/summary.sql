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
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_backtrace_summary_text(int, interval, int[], int)
    IS 'samples processes repeatedly, and returns totals by function and by PL/pgSQL line and a tree of calls';
