// Package pgcluster finds the PostgreSQL server that a worker serves, and knows which processes belong to it.
//
// The postmaster is found by evidence the kernel gives, never by a process name: the peer credentials of the server's
// unix socket (SO_PEERCRED names the process that called listen(), see unix(7)), or the postmaster.pid of a data
// directory, held against the process it names. The package also keeps the worker's own connection to the server
// (Conn) and makes a worker that was started as root the server's operating system user (BecomeServerUser).
//
// It must not know what a backtrace is, who may have one (package policy), or how a call reaches the worker (package
// spool). It writes no log: errors are returned, and changes of the connection's state go to a callback.
package pgcluster
