/* sql/pg_stat_backtrace--1.0--1.1.sql */

\echo Use "ALTER EXTENSION pg_stat_backtrace UPDATE TO '1.1'" to load this file. \quit

SET LOCAL search_path = pg_catalog, pg_temp;

-- Proof ----------------------------------------------------------------------------------------------------------------

-- The check that every function of the extension's owner makes first: the row of whoami was made in this statement of
-- this backend, and the role in it may do what it asks.
CREATE FUNCTION backtrace.check_caller(me backtrace.whoami, verb text) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET client_min_messages = warning
SET debug_print_parse = off
SET debug_print_rewritten = off
SET debug_print_plan = off
AS $$
BEGIN
    -- In a query over the table, so that no key is ever a constant in a plan.
    RETURN (SELECT me.backend = pg_backend_pid() AND me.stamp = statement_timestamp()
               AND me.mac = sha256(s.okey || sha256(s.ikey
                   || oidsend(me.caller) || int4send(me.backend) || timestamptz_send(me.stamp) || oidsend(d.oid)))
               AND has_function_privilege(me.caller, (SELECT v.function FROM backtrace.verb v WHERE v.name = verb), 'EXECUTE')
        FROM backtrace.secret s, pg_database d WHERE d.datname = current_database());
END
$$;
COMMENT ON FUNCTION backtrace.check_caller(backtrace.whoami, text)
    IS 'whether this is who calls, in this statement, and may ask for this';
REVOKE ALL ON FUNCTION backtrace.check_caller(backtrace.whoami, text) FROM PUBLIC;

-- Queue and journal ----------------------------------------------------------------------------------------------------

-- What can be asked, and by whom -----------------------------------------------------------------------------------------

