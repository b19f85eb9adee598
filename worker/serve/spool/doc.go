// Package spool carries requests from waiting SQL calls to the worker, and answers back. It uses a private directory
// on tmpfs. The server writes requests there (<uuid>.req), and the worker renames answers into place (<uuid>.rep).
//
// The SQL side is backtrace.call in sql/src/calls.sql. Together they define the protocol, whose version
// this package sets. The file pg_stat_backtrace.pid in the server's data directory names the spool directory, the
// worker and the key that signs requests. Only the server's operating system user can read or write that file (see
// pidfile.go).
//
// The package does not interpret requests. It checks that a request is genuine and well-formed, passes it to a
// function, and delivers the result. It does not know the server or its processes. It logs only errors that no caller
// gets; see Config.Log.
package spool
