-- On-call staff ---------------------------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_backtrace_on_call(pid int, OUT phrase text, OUT backtrace text, OUT names_hidden boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'oncall'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        RETURN QUERY SELECT c[1], c[2], c[3]::boolean FROM (SELECT string_to_array(a[6], E'\x1d', '')) s (c);
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
        RETURN;
    END IF;
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_backtrace_on_call(int)
    IS 'for on-call staff: call stack of any process of the server, without texts and names if it does not run for an ordinary role';
