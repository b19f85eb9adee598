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
        WHEN 'barrier' THEN '@extschema@.pg_get_blocking_backtraces(int)'::regprocedure
        WHEN 'summary' THEN '@extschema@.pg_backtrace_summary(int, interval, int[])'::regprocedure
        WHEN 'summary_text' THEN '@extschema@.pg_backtrace_summary_text(int, interval, int[], int)'::regprocedure
        WHEN 'memory' THEN '@extschema@.pg_get_memory_contexts(int)'::regprocedure
        WHEN 'plan' THEN '@extschema@.pg_get_running_plan(int, text)'::regprocedure
        WHEN 'plan_json' THEN '@extschema@.pg_get_running_plan(int, text)'::regprocedure
        WHEN 'history' THEN '@extschema@.pg_backtrace_history(timestamptz, timestamptz, int[])'::regprocedure
        WHEN 'history_summary' THEN '@extschema@.pg_backtrace_history_summary(timestamptz, timestamptz, interval)'::regprocedure
        WHEN 'stack' THEN '@extschema@.pg_backtrace_stack(bigint)'::regprocedure
        WHEN 'incidents' THEN '@extschema@.pg_backtrace_incidents()'::regprocedure
        WHEN 'incident' THEN '@extschema@.pg_backtrace_incident(text)'::regprocedure
        WHEN 'oncall' THEN '@extschema@.pg_get_backtrace_on_call(int)'::regprocedure
        WHEN 'to_file' THEN '@extschema@.pg_get_backtrace_to_file(int, text)'::regprocedure
        WHEN 'functrace' THEN '@extschema@.pg_trace_function(text, int, interval)'::regprocedure
        WHEN 'functrace_poll' THEN '@extschema@.pg_trace_function(text, int, interval)'::regprocedure
        WHEN 'request' THEN '@extschema@.pg_request_backtrace(int, boolean)'::regprocedure
        WHEN 'requests' THEN '@extschema@.pg_request_backtrace(int[], boolean)'::regprocedure
        WHEN 'waits' THEN '@extschema@.pg_stat_get_wait_event_timing()'::regprocedure
        WHEN 'waits_own' THEN '@extschema@.pg_stat_get_wait_event_timing()'::regprocedure
        WHEN 'waits_lost' THEN '@extschema@.pg_stat_get_wait_event_timing_overflow()'::regprocedure
        WHEN 'waits_lost_own' THEN '@extschema@.pg_stat_get_wait_event_timing_overflow()'::regprocedure
        WHEN 'waits_queries' THEN '@extschema@.pg_stat_get_wait_event_timing_by_query()'::regprocedure
        WHEN 'waits_records' THEN '@extschema@.pg_get_backend_wait_event_trace(int)'::regprocedure
        WHEN 'waits_reset' THEN '@extschema@.pg_stat_reset_wait_event_timing(int)'::regprocedure
        WHEN 'waits_reset_all' THEN '@extschema@.pg_stat_reset_wait_event_timing_all()'::regprocedure
        WHEN 'waits_off' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
        WHEN 'waits_stats' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
        WHEN 'waits_trace' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
        WHEN 'waits_untrace' THEN '@extschema@.pg_wait_event_capture(text, int)'::regprocedure
    END::oid;
END;
COMMENT ON FUNCTION backtrace.verb_function(text)
    IS 'the function whose EXECUTE privilege a request with this verb needs; NULL if there is none';

CREATE FUNCTION backtrace.may_ask(caller oid, verb text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE
        WHEN verb = 'stat' THEN has_table_privilege(caller, '@extschema@.pg_stat_backtrace'::regclass, 'SELECT')
        ELSE has_function_privilege(caller, backtrace.verb_function(verb), 'EXECUTE')
            -- These show figures, names and texts of other roles' processes.
            AND (verb NOT IN ('waits', 'waits_lost', 'waits_queries', 'history', 'history_summary', 'stack', 'incidents', 'incident')
                OR pg_has_role(caller, 'pg_read_all_stats'::name, 'USAGE'))
    END;
END;
COMMENT ON FUNCTION backtrace.may_ask(oid, text) IS 'whether this role may make requests with this verb';

CREATE FUNCTION backtrace.caller_of(inner_function text) RETURNS regprocedure
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
BEGIN ATOMIC
    SELECT CASE inner_function
        WHEN 'call' THEN 'backtrace.ask(backtrace.seal, text, int[], text[])'::regprocedure
        WHEN 'enqueue' THEN 'backtrace.queue(backtrace.seal, text, int[], boolean)'::regprocedure
    END;
END;
COMMENT ON FUNCTION backtrace.caller_of(text) IS 'the only function that may call this one';
