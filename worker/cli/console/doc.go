// Package console has functions that several commands use: for messages, usage errors, names of output formats, output files,
// progress of downloads, times as people write them, and the choice of processes and servers.
package console
