// Package cluster finds the PostgreSQL server that a worker serves, and identifies its processes.
//
// It identifies the postmaster by evidence from the kernel, never by a process name. One kind of evidence is the peer
// credentials of the server's unix socket: SO_PEERCRED names the process that called listen(), see unix(7). The other
// is the postmaster.pid of a data directory, verified against the process that it names. The package also keeps the
// worker's own connection to the server (Conn). If a worker was started as root, it changes to the server's operating
// system user (BecomeServerUser).
//
// Program (program.go) is the image of a process (its program or a library) that has the server's variables. This image
// can differ from the file that the kernel runs: a server may be started by the dynamic linker, or its code may be in a
// library that a small program loads. A process may also have moved the server's code to memory that is not mapped from
// a file. So FindProgram searches the images at all mappings of a process: the server's image exports the variables, in
// memory that the process can write. The layout of the variables is in package layout.
//
// The package does not know backtraces, privileges (package authz), or how calls reach the worker (package spool). It
// does not log: it returns errors, and reports changes of the connection by a callback.
package cluster
