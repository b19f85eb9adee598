// Package spool is the way of a waiting SQL call to the worker and back: a
// private directory on tmpfs in which the server writes requests (<uuid>.req)
// and the worker renames answers into place (<uuid>.rep).
//
// The SQL side is backtrace.call in sql/pg_stat_backtrace--1.0.sql; together
// the two define the protocol, which this package numbers. The directory is
// named, with the worker's identity and the key that signs requests, in
// pg_stat_backtrace.pid in the server's data directory, a file that only the
// server's operating system user can read or write (see pidfile.go).
//
// The package does not know what a request asks for: it checks that it is
// genuine and well-formed, hands it to a function, and delivers what that
// returns. It knows neither the server nor a process, and logs nothing.
package spool
