// Package procmap caches what captures find out about processes: their mappings, and the image of each mapping. The
// key is the process id with the start time. A Space is the executable part of one process's memory at the time of a
// snapshot, as package unwind walks it. A Check compares the cache with the live process.
package procmap
