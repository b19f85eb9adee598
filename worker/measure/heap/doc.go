// Package heap finds a process's allocator, traces its allocations (package allocs), names the call paths, and
// prints them.
//
// It must not know PostgreSQL: any program with a malloc can be traced.
package heap
