// Package queue serves queued requests, whose callers do not wait, and writes the journal of waiting calls.
//
// In every database that has the extension, the queue keeps one session. The session listens for notifications, claims
// (locks) rows of backtrace.request, runs these requests, and writes the results in the transaction of the claim. If a
// worker dies, the next worker claims its rows again. A row gets one result, however many workers, sessions and restarts
// there are. The same sessions write the rows of waiting calls (Journal.Add) in batches. The queue finds databases in
// pg_database. It visits a database without the extension briefly from time to time. During recovery it does nothing.
//
// The order matters: the session listens first, and then claims existing rows. It also checks for rows every Config.Poll, in
// case a notification is lost, which also detects half-open connections. Before a transaction uses objects of the schema
// backtrace, it verifies that they belong to the extension (see guard).
//
// The package does not capture stacks and does not check privileges. Config.Handle does.
package queue
