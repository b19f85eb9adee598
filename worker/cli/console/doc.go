// Package console has what the commands share: messages and errors of use, the names of output formats, files for results,
// progress, times as people write them, and the choice of processes and servers.
package console
