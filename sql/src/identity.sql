-- Identity of the caller -------------------------------------------------------------------------------------------------

-- A SECURITY DEFINER function sees its owner as current_user, so it cannot know its caller.  Three steps solve that:
--
--   public function    runs as its caller
--   backtrace.ask      runs as its caller, reads current_user and passes it on in one fixed statement
--   backtrace.call     runs as the extension's owner; first asks the server for the chain of its callers (PG_CONTEXT)
--
-- The chain comes from the server, so a caller cannot forge it: backtrace.call accepts the role only if that one
-- statement of backtrace.ask has called it.  No key is needed, so no table, backup or WAL stream holds a secret.
--
-- The chain names functions by schema, name and argument types.  PL/pgSQL keeps the name from when a session first
-- called a function.  A role could have made a schema "backtrace" and a function "ask" before the extension came, and
-- have renamed the schema since.  Therefore a type with a random name is among the arguments: see names.sql.
--
-- quote_all_identifiers changes the names in the chain.  PL/pgSQL uses its value at the first call, regprocedure its
-- present value.  Therefore backtrace.ask, backtrace.queue and backtrace.called_by set it.
CREATE DOMAIN backtrace.seal AS int;
COMMENT ON DOMAIN backtrace.seal IS 'random name: no function made before the extension has this argument type';

-- By backtrace.token.seal%TYPE, a function declares a variable of that type without its random name.
CREATE TYPE backtrace.token AS (seal backtrace.seal);
COMMENT ON TYPE backtrace.token IS 'names the type of the first argument of backtrace.ask and backtrace.queue';

-- True if the chain of callers in stack continues, after its first line, with this statement of this function.  An SPI
-- line holds the text of the statement up to a quotation mark, and no longer statement that begins with one of the
-- texts used here and continues with that mark is valid SQL.
CREATE FUNCTION backtrace.called_by(stack text, caller regprocedure, statement text) RETURNS boolean
LANGUAGE sql STABLE STRICT PARALLEL SAFE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
    SELECT starts_with(substr(stack, strpos(stack, E'\n')),
        format(E'\nSQL statement "%s"\nPL/pgSQL function %s line ', statement, caller))
$$;
COMMENT ON FUNCTION backtrace.called_by(text, regprocedure, text)
    IS 'whether this statement of this function is what called the function with this PG_CONTEXT';
