-- A stack in a format of the caller's choice -----------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_backtrace(pid int, format text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET pg_stat_backtrace.format = 'text'
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
    mode text := lower(format);
BEGIN
    IF mode NOT IN ('text', 'brief', 'short') THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'format must be text, brief or short';
    END IF;
    mode := set_config('pg_stat_backtrace.format', mode, true); -- until the function ends
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
COMMENT ON FUNCTION @extschema@.pg_get_backtrace(int, text)
    IS 'call stack of the PostgreSQL process with this PID: format text or brief';
