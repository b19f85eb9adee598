// Package e2e tests the SQL interface of the extension, with real servers of every version, the worker's program as a
// separate process, and sessions through pgx. It uses only SQL, and checks the output that a SQL user sees: answers,
// exact texts of warnings and errors, and the server's log. The tests of single packages are in these packages.
//
// Tests with standbys made from backups, of promotion and so on are in the folder t, with PostgreSQL's own test modules.
// The result of TestContract, by version, is the table of supported versions in doc/internals/benchmarks.md.
package e2e
