// Package store keeps the history of a server's sessions on disk, and reads it.
//
// The state directory has a folder for each cluster, day and hour, all in UTC:
//
//	cluster=7577921432/journal                        the hour in progress
//	cluster=7577921432/date=2026-11-28/hour=03/       a closed hour
//	    rows.parquet      one row for each session and sweep
//	    stacks.parquet    the stacks that these rows name by id
//	    sums.parquet      samples with equal properties, added up by minute and by hour (type Sum)
//	    sweeps.parquet    the times at which the recorder read the sessions
//
// A sweep has all sessions as they were read at one time. A sample is one active session in one sweep.
//
// The files of a closed hour never change, and need no other hour: any tool that ships files to an object store can copy them, and
// any reader of Parquet can query them. If the clock was set back, an hour has a second part (rows-2.parquet, ...).
//
// The journal is a sequence of records. Each record is independent: its length, a CRC-32C (Castagnoli), the time, and the
// data as JSON, compressed by zstd (RFC 8878). A process that is killed while it writes leaves at most one torn record at
// the end, which readers ignore and the next writer cuts off. Other damage stays in the file: readers search for the next
// good record behind it, and report the skipped bytes (damage.go). The next writer appends, and its first sweep has a note.
// A journal whose begin cannot be read gets the name journal.unreadable-NUMBER. It counts against the size limit and the
// age, like a closed hour.
//
// A forged file must not take all memory. Before the library for Parquet reads a part of a file, check.go verifies it. For
// a sweep in the journal, damage.go bounds the memory of the decoded rows. Records with impossible times or numbers are
// ignored and reported.
//
// ReadSpan reads a span of time, sweep by sweep, with the gaps in it, and Totals counts its samples (span.go).
//
// Normalized removes values from the texts of SQL statements, so that a history can keep the texts without the data in
// them (querytext.go). It does not parse SQL, because a text may be cut or wrong. Its lexer keeps names, key words and
// operators only. If a part of a text is ambiguous, the text from there on is removed.
package store
