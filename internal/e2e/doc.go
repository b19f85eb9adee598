// Package e2e holds the extension's SQL contract against reality: servers of every version, the worker's program as a
// process of its own, and sessions through pgx. It asks only through SQL, and judges what a SQL user sees: answers,
// warnings and errors word by word, and what the server logs. How the parts work inside is tested where they are.
//
// What needs standbys made of backups, promotion and the like is in t/, with PostgreSQL's own test modules. The outcome
// of TestContract, by version, is the table of supported versions in doc/benchmarks.md.
package e2e
