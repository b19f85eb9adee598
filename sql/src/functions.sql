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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
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
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_backtrace_summary(int, interval, int[])
    IS 'samples processes repeatedly and counts equal stacks, most frequent first';

