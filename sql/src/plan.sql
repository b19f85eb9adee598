-- Plans that run ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_running_plan(pid int, format text = 'text') RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
    verb text;
BEGIN
    IF lower(format) NOT IN ('text', 'json') THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'format must be text or json';
    END IF;
    verb := CASE lower(format) WHEN 'json' THEN 'plan_json' ELSE 'plan' END;
    LOOP
        a := backtrace.ask(seal, verb, ARRAY[pid]::int[], a);
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
COMMENT ON FUNCTION @extschema@.pg_get_running_plan(int, text)
    IS 'plan that the process with this PID executes now, with the node that runs: format text or json';
