// Package e2e tests the extension's SQL contract with real servers of every version, the worker's program as a
// separate process, and sessions through pgx. It asks only through SQL, and checks the output that a SQL user sees:
// answers, exact texts of warnings and errors, and the server's log. The tests of the inner parts are beside these
// parts.
//
// Tests with standbys made of backups, promotion and similar are in t/, with PostgreSQL's own test modules. The
// result of TestContract, by version, is the table of supported versions in doc/internals/benchmarks.md.
package e2e
