-- Queue and journal: the table -----------------------------------------------------------------------------------------

-- Requests that the caller does not wait for, and the journal of all requests.  pg_request_backtrace inserts a row and notifies.  The
-- worker listens in every database that has the extension, claims the row, captures, and writes the result in the
-- transaction that holds the claim.  If a worker dies, or a transaction fails, the row is as before.  The worker writes
-- rows of waiting calls afterwards.
--
-- Unlogged, because no other place may get these rows: no standby, no backup, and no subscriber of a publication of all
-- tables.  A crash of the server empties the table, but it has also ended every process that the rows are about.  Not a
-- table of configuration, so pg_dump leaves the rows out.
CREATE UNLOGGED TABLE backtrace.request (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind         text NOT NULL DEFAULT 'queued' CHECK (kind IN ('queued', 'waiting')),
    verb         text NOT NULL,
    state        text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'done', 'failed')),
    caller       oid NOT NULL,
    caller_name  name NOT NULL,
    backend      int,
    pid          int,
    started      bigint,
    settings     jsonb,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at  timestamptz,
    engine       text,
    pause_us     double precision,
    depth        int,
    backtrace    text,
    sqlstate     text,
    message      text,
    detail       text,
    hint         text,
    CHECK ((state = 'queued') = (finished_at IS NULL)),
    CHECK ((state = 'failed') = (sqlstate IS NOT NULL))
) WITH (
    -- A result makes a dead row of its request, and the end of the request another one.  The table is small (see the
    -- worker's --keep-rows), so a vacuum is quick: often, and without pauses.
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 500,
    toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 500,
    toast.autovacuum_vacuum_cost_delay = 0
);
-- The texts are large and never searched: no statistics.
ALTER TABLE backtrace.request
    ALTER COLUMN backtrace SET STATISTICS 0, ALTER COLUMN message SET STATISTICS 0, ALTER COLUMN detail SET STATISTICS 0,
    ALTER COLUMN hint SET STATISTICS 0, ALTER COLUMN settings SET STATISTICS 0;

-- What each role has queued, oldest first: the worker takes turns.
CREATE INDEX request_queued ON backtrace.request (caller, id) WHERE state = 'queued';

-- A role sees its own requests, members of pg_read_all_stats see all.  Roles with pg_read_all_data do not.  There is no
-- policy for writing, so only the owner's functions write, whatever else a role may write to.
ALTER TABLE backtrace.request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON backtrace.request FOR SELECT
    USING (caller = (SELECT to_regrole(quote_ident(current_user::text))::oid)
           OR (SELECT pg_has_role('pg_read_all_stats', 'USAGE')));
