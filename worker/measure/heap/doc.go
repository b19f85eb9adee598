// Package heap finds the allocator of a process (malloc and its relatives), traces allocations (package allocs), names the call
// paths, and prints them. A call path is the stack of an allocation. A block is the memory of one allocation.
//
// The package must not know PostgreSQL: any program with a malloc can be traced.
package heap
