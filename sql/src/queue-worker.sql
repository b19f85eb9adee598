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
