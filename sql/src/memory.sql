-- Memory contexts --------------------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.pg_get_memory_contexts(pid int, OUT name text, OUT ident text, OUT type text, OUT parent text,
    OUT level int, OUT path int[], OUT total_bytes bigint, OUT total_nblocks bigint, OUT free_bytes bigint,
    OUT free_chunks bigint, OUT used_bytes bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT PARALLEL RESTRICTED SECURITY INVOKER ROWS 200
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seal backtrace.token.seal%TYPE := 0;
    a    text[] := '{}';
BEGIN
    LOOP
        a := backtrace.ask(seal, 'memory'::text, ARRAY[pid]::int[], a);
        EXIT WHEN a[1] <> 'wait' OR pg_sleep(a[2]::double precision) IS NULL;
    END LOOP;
    IF a[1] = '' THEN
        -- The first record is a warning, which is empty if there is none.
        IF split_part(a[6], E'\x1e', 1) <> '' THEN
            RAISE WARNING USING MESSAGE = split_part(a[6], E'\x1e', 1);
        END IF;
        RETURN QUERY
            SELECT c[1], c[2], c[3], c[4], c[5]::int, c[6]::int[], c[7]::bigint, c[8]::bigint, c[9]::bigint, c[10]::bigint,
                   c[11]::bigint
            FROM unnest(string_to_array(a[6], E'\x1e')) WITH ORDINALITY u (record, n),
                 LATERAL (SELECT string_to_array(u.record, E'\x1d', '')) s (c)
            WHERE u.n > 1 ORDER BY u.n;
        RETURN;
    ELSIF a[1] = 'WARNING' THEN
        RAISE WARNING USING ERRCODE = a[2], MESSAGE = a[3];
        RETURN;
    END IF;
    -- @include raise.sql
END
$$;
COMMENT ON FUNCTION @extschema@.pg_get_memory_contexts(int)
    IS 'memory contexts of the PostgreSQL process with this PID, with the columns of pg_backend_memory_contexts';
