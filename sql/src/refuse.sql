-- Objects of others in schema backtrace, or on the extension's objects, would run with the rights of the extension's owner
-- or of any caller.
DO $$
DECLARE
    found text[] := ARRAY(
        -- @include foreign.sql
    );
BEGIN
    IF found <> '{}' THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'schema "backtrace" has objects that pg_stat_backtrace did not make',
            DETAIL = array_to_string(found[1:100], E'\n'),
            HINT = 'Drop these objects, or move them to another schema, and try again.';
    END IF;
END
$$;
