-- What can be requested ----------------------------------------------------------------------------------------------------

-- These bodies are parsed now and hold the functions by oid: a later function of the same name is not found.  They are no
-- views, because roles with pg_write_all_data can lock any view, and all calls would wait.
CREATE FUNCTION backtrace.verb_function(verb text) RETURNS oid
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE verb
        WHEN 'get' THEN '@extschema@.pg_get_backtrace(int)'::regprocedure
        WHEN 'log' THEN '@extschema@.pg_log_backtrace(int)'::regprocedure
        WHEN 'logs' THEN '@extschema@.pg_log_backtrace(int[])'::regprocedure
        WHEN 'frames' THEN '@extschema@.pg_get_backtrace_frames(int)'::regprocedure
        WHEN 'blocking' THEN '@extschema@.pg_get_blocking_backtraces(int)'::regprocedure
        WHEN 'summary' THEN '@extschema@.pg_backtrace_summary(int, interval, int[])'::regprocedure
        WHEN 'request' THEN '@extschema@.pg_request_backtrace(int, boolean)'::regprocedure
        WHEN 'requests' THEN '@extschema@.pg_request_backtrace(int[], boolean)'::regprocedure
    END::oid;
END;
COMMENT ON FUNCTION backtrace.verb_function(text)
    IS 'the function whose EXECUTE privilege a request with this verb needs; NULL if there is none';

CREATE FUNCTION backtrace.may_ask(caller oid, verb text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE verb
        WHEN 'stat' THEN has_table_privilege(caller, '@extschema@.pg_stat_backtrace'::regclass, 'SELECT')
        ELSE has_function_privilege(caller, backtrace.verb_function(verb), 'EXECUTE')
    END;
END;
COMMENT ON FUNCTION backtrace.may_ask(oid, text) IS 'whether this role may make requests with this verb';
