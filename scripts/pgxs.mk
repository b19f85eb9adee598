# The extension's files, installed by PostgreSQL's own build system (PGXS). Run from the top directory through
# scripts/pgxs.sh, which finds pg_config: there is nothing to compile, so the top Makefile stays free of PGXS's rules.

EXTENSION = pg_stat_backtrace
DATA = $(wildcard sql/pg_stat_backtrace--*.sql)

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
