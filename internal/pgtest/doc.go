// Package pgtest starts throw-away PostgreSQL servers for tests: a private data directory, a private socket directory,
// a port of its own, and an end by process id whatever becomes of the test.
//
// It uses a server's own programs (initdb, pg_ctl, postgres) and pgx, never psql. PostgreSQL refuses to run as root, so
// a test that runs as root starts the server as the operating system user postgres. The package knows nothing about
// backtraces and is imported by tests only.
//
// Environment:
//
//	PGSB_TEST_BINDIRS  colon-separated directories with initdb and postgres; default /usr/lib/postgresql/*/bin
//	PGSB_TEST_SERVERS  "none" skips every test that needs a server
//	PGSB_TEST_USER     who runs the servers when the test runs as root; default postgres
package pgtest
