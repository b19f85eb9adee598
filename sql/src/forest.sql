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
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_blocking_backtraces()
    IS 'processes that block others, each followed by the processes that wait for it, with their call stacks';
