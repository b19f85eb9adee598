-- Schema -----------------------------------------------------------------------------------------------------------------

-- Users call the functions and read the view in the schema chosen for the extension.  Everything else is in schema
-- backtrace, which belongs to the extension's owner: no other role can create or rename anything there.
CREATE SCHEMA backtrace;
COMMENT ON SCHEMA backtrace IS 'internals of pg_stat_backtrace';

-- Calls of functions in schema backtrace.  A role that once had CREATE on that schema may have left an overload there, and
-- an overload that fits a call better would run in place of the extension's function, as the extension's owner or as any
-- caller.  Therefore each call names the schema, passes all arguments, and each argument has exactly the declared type:
-- a variable of that type, or an expression with a cast to it.  Then the extension's function is the exact match, which
-- PostgreSQL always prefers, and no role can make another function with the same name and the same argument types.  An
-- overload with more arguments, which have defaults, makes the call fail: "function ... is not unique".
-- tools/sqlscript tests these rules.
