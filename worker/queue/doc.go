// Package queue serves requests that nobody waits for, and keeps the journal of those that somebody does.
//
// In every database that has the extension it keeps one session, which listens, claims rows of backtrace.request, has
// them carried out, and writes the results in the transaction that holds the claim. A worker that dies leaves its
// claims to the next one; a row has one result however many workers, sessions and restarts there were. What is told of
// waiting calls (Journal.Add) is written by the same sessions, in batches. Databases are found by looking at
// pg_database; one without the extension gets a short visit now and then and no session. During recovery nothing is
// done.
//
// Order matters: LISTEN first, then what is there already; a slow poll stands in for a notification that is late or
// lost, and finds connections that are half open. Before it names anything of schema backtrace, each transaction makes
// sure that it is the extension's (see guard).
//
// It must not know how stacks are captured nor who may see them: that is what Config.Handle is for.
package queue
