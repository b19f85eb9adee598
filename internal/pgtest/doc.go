// Package pgtest starts throw-away PostgreSQL servers for tests. Each server has a private data directory, a private socket
// directory and a separate port. The server ends with the test, even if the test process is killed.
//
// It uses a server's own programs (initdb, pg_ctl, postgres) and pgx, never psql. PostgreSQL refuses to run as root,
// so a test that runs as root starts the server as the operating system user postgres. The package knows nothing
// about backtraces and is imported by tests only.
//
// Environment:
//
//	PGSB_TEST_BINDIRS    colon-separated directories with initdb and postgres; default /usr/lib/postgresql/*/bin
//	PGSB_TEST_TEMPLATES  directory in which test programs share data directories of initdb; default: not shared
//	PGSB_TEST_SERVERS    "none" skips every test that needs a server
//	PGSB_TEST_USER       user that runs the servers when the test runs as root; default postgres
package pgtest
