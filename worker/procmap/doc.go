// Package procmap keeps what captures have learnt of processes: their mappings, and the image of each mapping. It is
// one cache, keyed by process id and start time. A Space is the executable part of one process's memory at the time
// of a snapshot, as package unwind walks it. A Check compares the cache with the live process, and Guard bounds the
// threads that wait for a process that does not respond.
package procmap
