// Package locks reads from a server's memory which process waits for which lock, and which processes block it. It uses
// no session and stops no process. So it also works while the server refuses connections, and on a standby.
//
// Shared memory has the same addresses in all processes of a server. The package reads the memory of the postmaster.
// The server may change its tables during the read, and a server with other structures may run under a known version.
// So each lock is copied twice, and both copies must agree. Each structure must also be consistent: pointers back to
// the owner, sums of counts, positions in the array of processes, and the type of the wait event. If a check fails, the
// wait has no blockers and a reason.
//
// NameReader finds the names of relations without a connection (relname.go): in the pages of pg_class, which are in the
// server's shared buffers or in the data directory.
//
// The package must not use SQL.
package locks
