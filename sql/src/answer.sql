-- The result of capturing one of many processes.
CREATE TYPE backtrace.answer AS (
    pid int, backend_type text, engine text, pause_us double precision, depth int, backtrace text,
    level text, sqlstate text, error text);
COMMENT ON TYPE backtrace.answer IS 'what came of the capture of one of many processes';
