-- Schema -----------------------------------------------------------------------------------------------------------------

-- Users call the functions and read the view in the schema chosen for the extension.  Everything else is in schema
-- backtrace, which belongs to the extension's owner: no other role can create or rename anything there.
CREATE SCHEMA backtrace;
COMMENT ON SCHEMA backtrace IS 'internals of pg_stat_backtrace';
