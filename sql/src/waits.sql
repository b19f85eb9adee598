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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_wait_event_capture(text, int)
    IS 'off, stats or trace for all processes; with a PID, trace starts a trace of one and the others end it';
