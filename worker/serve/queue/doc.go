// Package queue serves queued requests, whose callers do not wait, and writes the journal of waiting calls.
//
// In every database that has the extension, the queue keeps one session. The session listens, claims rows of
// backtrace.request, runs them, and writes the results in the transaction that claimed them. If a worker dies, the
// next one claims its rows again. A row gets one result, however many workers, sessions and restarts there are. The
// same sessions write the rows of waiting calls (Journal.Add) in batches. The queue finds databases in pg_database.
// It visits a database without the extension briefly from time to time. During recovery it does nothing.
//
// The order matters: the session listens first, and then claims existing rows. A slow poll replaces late or lost
// notifications and detects half-open connections. Before each transaction uses an object of the schema backtrace, it
// verifies that the object belongs to the extension (see guard).
//
// The package does not capture stacks and does not check privileges. Config.Handle does.
package queue
