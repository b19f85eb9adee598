// Package pgtest starts throw-away PostgreSQL servers for tests. Each has a private data directory, a private socket
// directory and a separate port. Whatever happens to the test, the server is ended by its process id.
//
// It uses a server's own programs (initdb, pg_ctl, postgres) and pgx, never psql. PostgreSQL refuses to run as root,
// so a test that runs as root starts the server as the operating system user postgres. The package knows nothing
// about backtraces and is imported by tests only.
//
// Environment:
//
//	PGSB_TEST_BINDIRS    colon-separated directories with initdb and postgres; default /usr/lib/postgresql/*/bin
//	PGSB_TEST_TEMPLATES  directory where test programs share what initdb makes; default: none is shared
//	PGSB_TEST_SERVERS    "none" skips every test that needs a server
//	PGSB_TEST_USER       user that runs the servers when the test runs as root; default postgres
package pgtest
